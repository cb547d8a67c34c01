// Attention by heads: operands that the kernels can't read where they are (small floats, features apart) are copied as f32 first.
module;
#include "gemm_kernels.h"
module tenon.fusion;
import std;
import tenon.base;
import tenon.device;

namespace tenon::fusion {
using base::DType;
using kernels::AttentionPart;
namespace {

template <class T>
constexpr bool is_float = std::is_same_v<T, float>;

// Memory of this thread that only grows; slots: what the kernels need, and one for each operand that is copied.
enum Slot : std::size_t { work, q_copy, k_copy, v_copy, g_copy, out_copy, dk_sum, dv_sum, slots };
template <class T>
T* memory(Slot slot, std::int64_t elements) {
  thread_local std::array<Aligned<double>, slots> all;
  auto const needed = static_cast<std::size_t>(elements) * sizeof(T) / sizeof(double) + 1;
  if (all[slot].size() < needed) all[slot] = Aligned<double>(needed);
  return reinterpret_cast<T*>(all[slot].data());
}

// One head's rows [time, feature].
struct Rows {
  std::byte* data;
  std::int64_t time, feature, bytes;
  DType dtype;
  std::byte* row(std::int64_t t) const { return data + t * time * bytes; }
};
Rows rows_of(Attention const& call, Heads const& x, std::int64_t head) {
  auto const bytes = base::bytes_of(call.dtype);
  return {.data = x.data + (head / call.heads * x.batch + head % call.heads * x.head) * bytes,
          .time = x.time,
          .feature = x.feature,
          .bytes = bytes,
          .dtype = call.dtype};
}
template <class T>
bool readable(Rows const& x, std::int64_t features) {
  return x.dtype == dtype_for<T> && (x.feature == 1 || features == 1);
}
template <class T>
struct Source {
  T const* data;
  std::int64_t row;
};
// Rows [low, high) with the features side by side; `data` stands for row 0 either way.
template <class T>
Source<T> source(Rows const& x, std::int64_t low, std::int64_t high, std::int64_t features, Slot slot) {
  if (readable<T>(x, features)) return {reinterpret_cast<T const*>(x.data), x.time};
  T* const copy = memory<T>(slot, (high - low) * features);
  for (auto t = low; t < high; ++t) load_line(x.dtype, x.row(t), x.feature, copy + (t - low) * features, features);
  return {copy - low * features, features};
}
template <class T>
void put(Rows const& x, std::int64_t low, std::int64_t high, std::int64_t features, T const* from, std::int64_t line) {
  for (auto t = low; t < high; ++t) store_line(x.dtype, x.row(t), x.feature, from + t * line, features);
}

// Runs the kernel for queries [low, high), `out` where it lies or through a copy.
template <class T>
void run(Attention const& call, AttentionPart<T> part, Rows const& q, Rows const& k, Rows const& v, Rows const& out, std::int64_t features,
         void (*kernel)(AttentionPart<T> const&)) {
  auto const seen = call.causal ? std::min(call.keys, part.high) : call.keys;
  auto const [q_data, q_row] = source<T>(q, part.low, part.high, call.features, q_copy);
  auto const [k_data, k_row] = source<T>(k, 0, seen, call.features, k_copy);
  auto const [v_data, v_row] = source<T>(v, 0, seen, call.value_features, v_copy);
  part.q = q_data, part.q_row = q_row, part.k = k_data, part.k_row = k_row, part.v = v_data, part.v_row = v_row;
  part.keys = call.keys, part.features = call.features, part.value_features = call.value_features;
  part.scale = static_cast<T>(call.scale), part.causal = call.causal;
  auto const& table = kernels::attention_here();
  part.scratch = memory<T>(work, (is_float<T> ? table.scratch_f32 : table.scratch_f64)(seen, call.features, call.value_features));
  bool const direct = readable<T>(out, features);
  part.out = direct ? reinterpret_cast<T*>(out.data) : memory<T>(out_copy, (part.high - part.low) * features) - part.low * features;
  part.out_row = direct ? out.time : features;
  kernel(part);
  if (!direct) put<T>(out, part.low, part.high, features, part.out, features);
}

template <class T>
void forward(Attention const& call, std::int64_t head, std::int64_t low, std::int64_t high) {
  auto const& table = kernels::attention_here();
  auto const at = [&](Heads const& x) { return rows_of(call, x, head); };
  AttentionPart<T> const part{.low = low, .high = high};
  if constexpr (is_float<T>)
    run<T>(call, part, at(call.q), at(call.k), at(call.v), at(call.o), call.value_features, table.forward_f32);
  else
    run<T>(call, part, at(call.q), at(call.k), at(call.v), at(call.o), call.value_features, table.forward_f64);
}
// Adds what queries [low, high) give to dk and dv, writes their dq.
template <class T>
void backward(AttentionGrad const& grad, std::int64_t head, std::int64_t low, std::int64_t high, T* dk, T* dv) {
  auto const& call = grad.call;
  auto const& table = kernels::attention_here();
  auto const at = [&](Heads const& x) { return rows_of(call, x, head); };
  auto const [g, g_row] = source<T>(at(grad.g), low, high, call.value_features, g_copy);
  AttentionPart<T> const part{.low = low, .high = high, .g = g, .g_row = g_row, .dk = dk, .dv = dv};
  if constexpr (is_float<T>)
    run<T>(call, part, at(call.q), at(call.k), at(call.v), at(grad.dq), call.features, table.backward_f32);
  else
    run<T>(call, part, at(call.q), at(call.k), at(call.v), at(grad.dq), call.features, table.backward_f64);
}
template <class T>
void put_sums(AttentionGrad const& grad, std::int64_t head, T const* dk, T const* dv) {
  auto const& call = grad.call;
  put<T>(rows_of(call, grad.dk, head), 0, call.keys, call.features, dk, call.features);
  put<T>(rows_of(call, grad.dv, head), 0, call.keys, call.value_features, dv, call.value_features);
}
template <class T>
void whole_head(AttentionGrad const& grad, std::int64_t head) {
  auto const& call = grad.call;
  auto const keys = call.keys * call.features, values = call.keys * call.value_features;
  T *const dk = memory<T>(dk_sum, keys), *const dv = memory<T>(dv_sum, values);
  std::fill_n(dk, keys, T{}), std::fill_n(dv, values, T{});
  backward<T>(grad, head, 0, call.queries, dk, dv);
  put_sums<T>(grad, head, dk, dv);
}

// Where part k of so many begins: causal queries cost what they see, so later parts are shorter.
std::int64_t part_begin(Attention const& call, std::int64_t k, std::int64_t parts) {
  double const share = static_cast<double>(k) / static_cast<double>(parts);
  return static_cast<std::int64_t>(std::llround(static_cast<double>(call.queries) * (call.causal ? std::sqrt(share) : share)));
}
template <class T>
void in_parts(AttentionGrad const& grad, std::int64_t parts) {
  auto const& call = grad.call;
  auto const heads = call.batch * call.heads, keys = call.keys * call.features, values = call.keys * call.value_features, each = keys + values;
  Aligned<T> sums(static_cast<std::size_t>(heads * parts * each));
  device::parallel(heads * parts, [&](std::int64_t item, int) {
    T* const mine = sums.data() + item * each;
    backward<T>(grad, item / parts, part_begin(call, item % parts, parts), part_begin(call, item % parts + 1, parts), mine, mine + keys);
  });
  device::parallel(heads, [&](std::int64_t head, int) {
    T* const total = sums.data() + head * parts * each;
    for (std::int64_t k = 1; k < parts; ++k)
      for (std::int64_t i = 0; i < each; ++i) total[i] += total[k * each + i];
    put_sums<T>(grad, head, total, total + keys);
  });
}
// How many parts a head is cut in so that each thread has one, of some length.
std::int64_t parts_of(Attention const& call) {
  auto const heads = call.batch * call.heads, threads = std::int64_t{device::threads()};
  if (heads >= threads || heads == 0) return 1;
  return std::clamp<std::int64_t>((threads + heads - 1) / heads, 1, std::max<std::int64_t>(call.queries / 32, 1));
}
}  // namespace

void attention(Attention const& call, std::int64_t head, std::int64_t low, std::int64_t high) {
  if (high <= low || call.value_features == 0) return;
  call.dtype == DType::f64 ? forward<double>(call, head, low, high) : forward<float>(call, head, low, high);
}
void attention(Attention const& call) {
  auto const parts = parts_of(call);
  device::parallel(call.batch * call.heads * parts, [&](std::int64_t item, int) {
    attention(call, item / parts, part_begin(call, item % parts, parts), part_begin(call, item % parts + 1, parts));
  });
}
void attention_grad(AttentionGrad const& grad, std::int64_t head) {
  grad.call.dtype == DType::f64 ? whole_head<double>(grad, head) : whole_head<float>(grad, head);
}
void attention_grad(AttentionGrad const& grad) {
  auto const parts = parts_of(grad.call);
  if (parts > 1) return grad.call.dtype == DType::f64 ? in_parts<double>(grad, parts) : in_parts<float>(grad, parts);
  device::parallel(grad.call.batch * grad.call.heads, [&](std::int64_t head, int) { attention_grad(grad, head); });
}

}  // namespace tenon::fusion
