// One head of attention and its gradient, compiled once an instruction set. Some dozens of queries meet all keys that they may see at once, so that
// their weights stay in the second cache; the gradient computes them again (Dao et al., "FlashAttention", 2022, with a block of all keys).
#include <algorithm>

#include "gemm_kernels.h"
#include "vectors.h"

namespace tenon::fusion::kernels {
namespace {

constexpr std::int64_t queries_at_once = vector_bytes == 64 ? 56 : 60;  // whole blocks of registers

template <class T>
std::int64_t rounded_up(std::int64_t size) {
  return (size + W<T> - 1) / W<T> * W<T>;
}
// Elements from a line of `keys` to the next: an odd number of vectors, so that lines don't share their places in a cache.
template <class T>
std::int64_t line_of(std::int64_t keys) {
  return rounded_up<T>(keys) / W<T> % 2 == 1 ? rounded_up<T>(keys) : rounded_up<T>(keys) + W<T>;
}

// All that a block of queries meets was written or read shortly before.
void product(Product<float> p) { p.near = true, blocks::TENON_ISA.f32(p); }
void product(Product<double> p) { p.near = true, blocks::TENON_ISA.f64(p); }

// exp within 2 ulp for x <= 88; below -87, where results stop being normal, 0. Remainder of a division by log 2, then the polynomial of Cephes' expf.
Vector<float> exp_of(Vector<float> x) {
  constexpr float to_whole = 12582912.0f;  // 1.5 * 2^23: adding it leaves a whole number in the low bits
  Vector<float> const shifted = x * 1.44269504089f + to_whole, n = shifted - to_whole;
  Vector<float> const r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector<float> y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  typedef std::int32_t Bits __attribute__((vector_size(vector_bytes)));
  Bits const scaled = (Bits)y + ((Bits)shifted << 23);
  return x < -87.0f ? Vector<float>{} : x == x ? (Vector<float>)scaled : x;
}
Vector<double> exp_of(Vector<double> x) {
  for (int i = 0; i < W<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// Sums and maxima that are taken side by side, so that none waits for the one before it.
constexpr int chains = 4;

// All lanes as one, halves by halves.
template <class T>
T folded(Vector<T> x, auto const& combine) {
  T lanes[W<T>];
  store(lanes, x);
  for (int half = W<T> / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  return lanes[0];
}
template <class T>
T sum_of(Vector<T> x) {
  return folded<T>(x, [](T a, T b) { return a + b; });
}
// exp(s - max) of `length` scores in place, then zeros up to `line`; gives their sum. NaN where a score is, and where all are -inf.
template <class T>
T weights(T* s, std::int64_t length, std::int64_t line) {
  constexpr T lowest = -__builtin_inff();
  std::int64_t const end = rounded_up<T>(length);
  for (std::int64_t j = length; j < end; ++j) s[j] = lowest;
  Vector<T> highest[chains], sums{};
  for (auto& x : highest) x = Vector<T>{} + lowest;
  auto const raise = [&](int chain, std::int64_t j) {
    auto const x = load(s + j);
    highest[chain] = x > highest[chain] ? x : highest[chain];
  };
  std::int64_t next = 0;
  for (; next + chains * W<T> <= end; next += chains * W<T>)
    for (int chain = 0; chain < chains; ++chain) raise(chain, next + chain * W<T>);
  for (; next < end; next += W<T>) raise(0, next);
  for (int chain = 1; chain < chains; ++chain) highest[0] = highest[chain] > highest[0] ? highest[chain] : highest[0];
  T const top = folded<T>(highest[0], [](T a, T b) { return a > b ? a : b; });
  for (std::int64_t j = 0; j < end; j += W<T>) {
    auto const y = exp_of(load(s + j) - top);
    store(s + j, y), sums += y;
  }
  for (std::int64_t j = end; j < line; ++j) s[j] = 0;
  return sum_of<T>(sums);
}

template <class T>
void scaled_rows(T const* from, std::int64_t line, std::int64_t rows, std::int64_t columns, T const* factors, T factor, T* to, std::int64_t to_line) {
  for (std::int64_t i = 0; i < rows; ++i) {
    T const by = factors ? factors[i] * factor : factor;
    for (std::int64_t j = 0; j < columns; ++j) to[i * to_line + j] = from[i * line + j] * by;
  }
}

// Where the pieces of a part's scratch memory lie.
template <class T>
struct Pieces {
  std::int64_t line;  // of what has an element a key
  T *keys, *values;   // turned: [features, keys]
  T *scores, *grads;  // [queries_at_once, keys]
  T *queries, *upper, *inverse;
  T* rows;  // [keys, features]: those of v forward, of k backward, in lines that don't share places
  Pieces(T* scratch, std::int64_t seen, std::int64_t features, std::int64_t value_features) : line(line_of<T>(seen)) {
    keys = scratch, values = keys + features * line;
    scores = values + value_features * line, grads = scores + queries_at_once * line;
    queries = grads + queries_at_once * line, upper = queries + queries_at_once * features, inverse = upper + queries_at_once * value_features;
    rows = inverse + queries_at_once;
  }
};
template <class T>
std::int64_t seen_keys(AttentionPart<T> const& p) {
  return p.causal ? std::min(p.keys, p.high) : p.keys;
}
template <class T>
void turn_keys(T const* from, std::int64_t row, std::int64_t keys, std::int64_t features, T* to, std::int64_t line) {
  for (std::int64_t j = 0; j < keys; j += W<T>) turn(from + j * row, row, std::min<std::int64_t>(W<T>, keys - j), features, to + j, line);
}

template <class T>
void copy_rows(T const* from, std::int64_t row, std::int64_t keys, std::int64_t features, T* to) {
  for (std::int64_t j = 0; j < keys; ++j) std::copy_n(from + j * row, features, to + j * line_of<T>(features));
}

// f(first query, queries, keys they see as whole vectors) with the weights, not divided by their sums, in `scores` and 1 / sum in `inverse`.
template <class T, class F>
void each_block(AttentionPart<T> const& p, Pieces<T> const& at, F f) {
  for (std::int64_t first = p.low; first < p.high; first += queries_at_once) {
    auto const rows = std::min(queries_at_once, p.high - first), keys = p.causal ? std::min(p.keys, first + rows) : p.keys, wide = rounded_up<T>(keys);
    scaled_rows<T>(p.q + first * p.q_row, p.q_row, rows, p.features, nullptr, p.scale, at.queries, p.features);
    product({.m = rows, .n = wide, .k = p.features, .a = at.queries, .a_row = p.features, .b = at.keys, .b_row = at.line, .c = at.scores, .c_row = at.line});
    for (std::int64_t i = 0; i < rows; ++i) at.inverse[i] = 1 / weights(at.scores + i * at.line, p.causal ? std::min(p.keys, first + i + 1) : p.keys, wide);
    f(first, rows, keys);
  }
}
template <class T>
void no_rows(T* to, std::int64_t row, std::int64_t low, std::int64_t high, std::int64_t columns) {
  for (std::int64_t i = low; i < high; ++i) std::fill_n(to + i * row, columns, T{});
}

template <class T>
void forward(AttentionPart<T> const& p) {
  auto const seen = seen_keys(p);
  if (seen == 0) return no_rows(p.out, p.out_row, p.low, p.high, p.value_features);  // sums of nothing
  Pieces<T> const at(p.scratch, seen, p.features, p.value_features);
  turn_keys(p.k, p.k_row, seen, p.features, at.keys, at.line);
  copy_rows(p.v, p.v_row, seen, p.value_features, at.rows);
  each_block(p, at, [&](std::int64_t first, std::int64_t rows, std::int64_t keys) {
    T* const out = p.out + first * p.out_row;
    product({.m = rows,
             .n = p.value_features,
             .k = keys,
             .a = at.scores,
             .a_row = at.line,
             .b = at.rows,
             .b_row = line_of<T>(p.value_features),
             .c = out,
             .c_row = p.out_row});
    scaled_rows<T>(out, p.out_row, rows, p.value_features, at.inverse, 1, out, p.out_row);
  });
}

// With e the weights before the division, u = g / sum and dp = u vᵀ: dv += eᵀ u, ds = e (dp - rowsum(e dp) / sum) scale, dq = ds k, dk += dsᵀ q.
template <class T>
void backward(AttentionPart<T> const& p) {
  auto const seen = seen_keys(p);
  if (seen == 0) return no_rows(p.out, p.out_row, p.low, p.high, p.features);
  Pieces<T> const at(p.scratch, seen, p.features, p.value_features);
  turn_keys(p.k, p.k_row, seen, p.features, at.keys, at.line);
  turn_keys(p.v, p.v_row, seen, p.value_features, at.values, at.line);
  copy_rows(p.k, p.k_row, seen, p.features, at.rows);
  each_block(p, at, [&](std::int64_t first, std::int64_t rows, std::int64_t keys) {
    auto const wide = rounded_up<T>(keys), f = p.features, vf = p.value_features;
    scaled_rows<T>(p.g + first * p.g_row, p.g_row, rows, vf, at.inverse, 1, at.upper, vf);
    product({.m = keys,
             .n = vf,
             .k = rows,
             .a = at.scores,
             .a_row = 1,
             .a_column = at.line,
             .b = at.upper,
             .b_row = vf,
             .c = p.dv,
             .c_row = vf,
             .accumulate = true});
    product({.m = rows, .n = wide, .k = vf, .a = at.upper, .a_row = vf, .b = at.values, .b_row = at.line, .c = at.grads, .c_row = at.line});
    for (std::int64_t i = 0; i < rows; ++i) {
      T *const e = at.scores + i * at.line, *const dp = at.grads + i * at.line;
      Vector<T> sums[chains]{};
      std::int64_t next = 0;
      for (; next + chains * W<T> <= wide; next += chains * W<T>)
        for (int chain = 0; chain < chains; ++chain) sums[chain] += load(e + next + chain * W<T>) * load(dp + next + chain * W<T>);
      for (; next < wide; next += W<T>) sums[0] += load(e + next) * load(dp + next);
      T const mean = sum_of<T>((sums[0] + sums[1]) + (sums[2] + sums[3])) * at.inverse[i];
      for (std::int64_t j = 0; j < wide; j += W<T>) store(e + j, load(e + j) * (load(dp + j) - mean) * p.scale);
    }
    product({.m = keys,
             .n = f,
             .k = rows,
             .a = at.scores,
             .a_row = 1,
             .a_column = at.line,
             .b = p.q + first * p.q_row,
             .b_row = p.q_row,
             .c = p.dk,
             .c_row = f,
             .accumulate = true});
    product({.m = rows,
             .n = f,
             .k = keys,
             .a = at.scores,
             .a_row = at.line,
             .b = at.rows,
             .b_row = line_of<T>(p.features),
             .c = p.out + first * p.out_row,
             .c_row = p.out_row});
  });
}

template <class T>
std::int64_t scratch(std::int64_t keys, std::int64_t features, std::int64_t value_features) {
  return (features + value_features + 2 * queries_at_once) * line_of<T>(keys) + queries_at_once * (features + value_features + 1) +
         keys * line_of<T>(std::max(features, value_features)) + W<T>;
}

}  // namespace

constinit AttentionTable const attention::TENON_ISA{.scratch_f32 = scratch<float>,
                                                    .scratch_f64 = scratch<double>,
                                                    .forward_f32 = forward<float>,
                                                    .forward_f64 = forward<double>,
                                                    .backward_f32 = backward<float>,
                                                    .backward_f64 = backward<double>};

}  // namespace tenon::fusion::kernels
