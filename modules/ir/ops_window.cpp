// Pooling over windows of the last two dims, and its gradients.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
constexpr std::int64_t longest = 1 << 30;  // of a window, so that no product overflows

struct Pool {
  std::array<std::int64_t, 2> kernel, stride, padding, dilation{1, 1};
  bool ceil_mode = false, padded = true;  ///< padded: padding counts in an average
  std::int64_t divisor = absent;
};
// Reads attributes in the order of the signatures: the lists, then for an average its count rule.
Pool pool_of(AttrReader& reader, std::string_view op, bool average) {
  auto const pair = [&](std::string_view what, std::int64_t least, std::optional<std::array<std::int64_t, 2>> fallback) {
    auto const list = reader.list();
    if (list.empty() && fallback) return *fallback;
    if (list.empty() || list.size() > 2) fail("{}: {} takes one or two numbers, not {}", op, what, list.size());
    std::array const two{list.front().value, list.back().value};
    if (std::ranges::min(two) < least || std::ranges::max(two) > longest) fail("{}: {} must be at least {}, not {}", op, what, least, std::ranges::min(two));
    return two;
  };
  Pool pool{};
  pool.kernel = pair("kernel_size", 1, std::nullopt);
  pool.stride = pair("stride", 1, pool.kernel);
  pool.padding = pair("padding", 0, std::nullopt);
  if (!average) pool.dilation = pair("dilation", 1, std::nullopt);
  pool.ceil_mode = reader.flag();
  if (average) {
    pool.padded = reader.flag();
    pool.divisor = reader.number().value;
    if (pool.divisor == 0) fail("{}: divisor_override is 0", op);
  }
  for (std::size_t d = 0; d < 2; ++d)
    if (pool.padding[d] > pool.kernel[d] / 2) fail("{}: padding {} is more than half of kernel size {}", op, pool.padding[d], pool.kernel[d]);
  return pool;
}
bool averages(OpDef const& op) { return &op == &avg_pool2d || &op == &avg_pool2d_grad; }
Dims pooled_sizes(std::string_view op, Dims sizes, Pool const& pool) {
  if (sizes.size() != 3 && sizes.size() != 4) fail("{}: needs rank 3 or 4, not {}", op, sizes.size());
  for (std::size_t d = 0; d < 2; ++d) {
    Dim& size = sizes[sizes.size() - 2 + d];
    Dim const room = size + Dim(2) * Dim(pool.padding[d]) - Dim(pool.dilation[d]) * Dim(pool.kernel[d] - 1) - 1, stride = pool.stride[d];
    if (less(room, 0)) fail("{}: a window of {} does not fit size {} with padding {}", op, pool.kernel[d], size.value, pool.padding[d]);
    Dim steps = pool.ceil_mode ? (room + stride - 1) / stride : room / stride;
    if (pool.ceil_mode && less_equal(size + pool.padding[d], steps * stride)) steps = steps - 1;  // the last window starts inside the image or its left padding
    size = steps + 1;
  }
  return sizes;
}
void infer_pool(Inference& call) {
  auto const& x = call.x();
  AttrReader reader{call.attrs};
  call.out.push_back(contiguous_meta(x.dtype, x.device, pooled_sizes(call.op.name, x.sizes, pool_of(reader, call.op.name, averages(call.op)))));
}
// The sizes before pooling: an operand's, or the `size[]` attribute that stands first.
void infer_pool_grad(Inference& call) {
  auto const& g = call.x();
  AttrReader reader{call.attrs};
  bool const average = averages(call.op);
  Dims const sizes = average ? Dims(reader.list()) : call.x(1).sizes;
  Dims const pooled = pooled_sizes(call.op.name, sizes, pool_of(reader, call.op.name, average));
  bool fits = pooled.size() == g.sizes.size() && (average || g.dtype == call.x(1).dtype);
  for (std::size_t d = 0; fits && d < pooled.size(); ++d) fits = same(pooled[d], g.sizes[d]);
  if (!fits) fail("{}: a gradient {} does not fit a result of sizes {}", call.op.name, to_string(g), base::to_string(values(pooled)));
  call.out.push_back(contiguous_meta(g.dtype, g.device, sizes));
}

// Calls visit(output offset, window) for each output element; window(f) calls f(input offset) for its elements inside the image and returns
// how many elements it has with padding.
template <class Visit>
void windows(Strided const& x, Strided const& y, Pool const& pool, Visit visit) {
  std::size_t const r = x.sizes.size();
  base::Shape const outer(x.sizes.begin(), x.sizes.end() - 2), x_outer(x.strides.begin(), x.strides.end() - 2), y_outer(y.strides.begin(), y.strides.end() - 2);
  walk<2>(outer, {&x_outer, &y_outer}, [&](auto const& at) {
    for (std::int64_t p = 0; p < y.sizes[r - 2]; ++p)
      for (std::int64_t q = 0; q < y.sizes[r - 1]; ++q)
        visit(at[1] + p * y.strides[r - 2] + q * y.strides[r - 1], [&](auto f) {
          std::array<std::int64_t, 2> const start{p * pool.stride[0] - pool.padding[0], q * pool.stride[1] - pool.padding[1]};
          std::int64_t count = 1;
          for (std::size_t d = 0; d < 2; ++d) count *= std::min(pool.kernel[d], x.sizes[r - 2 + d] + pool.padding[d] - start[d]);
          for (std::int64_t i = 0, row = start[0]; i < pool.kernel[0]; ++i, row += pool.dilation[0])
            for (std::int64_t j = 0, column = start[1]; j < pool.kernel[1]; ++j, column += pool.dilation[1])
              if (row >= 0 && row < x.sizes[r - 2] && column >= 0 && column < x.sizes[r - 1]) f(at[0] + row * x.strides[r - 2] + column * x.strides[r - 1]);
          return count;
        });
  });
}
// The first largest element of a window, if it has any; NaN wins.
template <class Window>
std::optional<std::int64_t> largest(Strided const& x, Window window) {
  std::optional<std::int64_t> best;
  double value = 0;
  window([&](std::int64_t at) {
    double const next = x.real(at);
    if (!best || (value == value && (next > value || next != next))) best = at, value = next;
  });
  return best;
}
// What the sum over a window is divided by.
template <class Window>
double divisor(Pool const& pool, Window window) {
  if (pool.divisor != absent) return static_cast<double>(pool.divisor);
  std::int64_t inside = 0;
  std::int64_t const padded = window([&](std::int64_t) { ++inside; });
  return static_cast<double>(pool.padded ? padded : inside);
}

void evaluate_max(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  windows(kernel.in[0], kernel.out[0], pool_of(reader, kernel.op.name, false), [&](std::int64_t to, auto window) {
    auto const best = largest(kernel.in[0], window);
    kernel.out[0].set(to, best ? kernel.in[0].real(*best) : -std::numeric_limits<double>::infinity());
  });
}
void evaluate_avg(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  auto const pool = pool_of(reader, kernel.op.name, true);
  windows(kernel.in[0], kernel.out[0], pool, [&](std::int64_t to, auto window) {
    double total = 0;
    window([&](std::int64_t at) { total += kernel.in[0].real(at); });
    kernel.out[0].set(to, total / divisor(pool, window));
  });
}
// Adds into row-major f64 sums of the result's sizes, then rounds once.
template <class Add>
void scatter_windows(Kernel const& kernel, Pool const& pool, Add add) {
  auto const &g = kernel.in[0], &dx = kernel.out[0];
  std::vector<double> sums(static_cast<std::size_t>(base::numel(dx.sizes)), 0.0);
  windows(dx, g, pool, [&](std::int64_t from, auto window) { add(g.real(from), window, sums); });
  for (std::size_t i = 0; i < sums.size(); ++i) dx.set(static_cast<std::int64_t>(i), sums[i]);
}
void evaluate_max_grad(Kernel const& kernel) {
  auto const& x = kernel.in[1];
  AttrReader reader{kernel.attrs};
  std::vector<double> plain;  // x in row-major order, so that offsets agree with the sums
  walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { plain.push_back(x.real(at[0])); });
  Strided const copy{reinterpret_cast<std::byte*>(plain.data()), base::DType::f64, x.sizes, base::contiguous_strides(x.sizes)};
  scatter_windows(kernel, pool_of(reader, kernel.op.name, false), [&](double g, auto window, auto& sums) {
    if (auto const best = largest(copy, window)) sums[static_cast<std::size_t>(*best)] += g;
  });
}
void evaluate_avg_grad(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  reader.list();
  auto const pool = pool_of(reader, kernel.op.name, true);
  scatter_windows(kernel, pool, [&](double g, auto window, auto& sums) {
    double const share = g / divisor(pool, window);
    window([&](std::int64_t at) { sums[static_cast<std::size_t>(at)] += share; });
  });
}
std::string pool_equation(Attrs const&, std::span<Meta const* const> in) { return in[0]->rank() == 4 ? "nch!w!->ncp!q!" : "ch!w!->cp!q!"; }
}  // namespace

// clang-format off
constinit const OpDef max_pool2d{.name = "max_pool2d", .kind = Kind::reduction,
    .signature = "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0], int[] dilation=[1], bool ceil_mode=False", .equation = {.build = pool_equation},
    .terms = "-", .mono = "+", .types = Types::first, .vjp = [](Vjp& v) { v.grad(0) = call(max_pool2d_grad, {v.g(), v.x()}, v.attrs); }, .saves = 1, .infer = infer_pool,
    .evaluate = evaluate_max};
constinit const OpDef max_pool2d_grad{.name = "max_pool2d_grad", .kind = Kind::reduction,
    .signature = "Tensor grad, Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0], int[] dilation=[1], bool ceil_mode=False",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      return std::string(in[0]->rank() == 4 ? "ncp!q!,nch!w!->nch!w!" : "cp!q!,ch!w!->ch!w!");
    }},
    .terms = "a-", .mono = "..", .types = Types::first, .infer = infer_pool_grad, .evaluate = evaluate_max_grad};
constinit const OpDef avg_pool2d{.name = "avg_pool2d", .kind = Kind::reduction,
    .signature = "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0], bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None",
    .equation = {.build = pool_equation}, .terms = "a", .mono = "+", .types = Types::first,
    .vjp = [](Vjp& v) {
      Attrs attrs = Attrs{}.with(v.x().meta().sizes);
      for (auto number : v.attrs.ints) attrs.with(number);
      v.grad(0) = call(avg_pool2d_grad, {v.g()}, attrs);
    }, .infer = infer_pool, .evaluate = evaluate_avg};
constinit const OpDef avg_pool2d_grad{.name = "avg_pool2d_grad", .kind = Kind::reduction,
    .signature = "Tensor grad, size[] sizes, int[] kernel_size, int[] stride=[], int[] padding=[0], bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) { return std::string(in[0]->rank() == 4 ? "ncp!q!->nch!w!" : "cp!q!->ch!w!"); }}, .terms = "a",
    .mono = "+", .types = Types::first,
    .vjp = [](Vjp& v) {
      Attrs attrs;
      AttrReader reader{v.attrs};
      for (reader.list(); reader.at < v.attrs.ints.size();) attrs.with(reader.number());
      v.grad(0) = call(avg_pool2d, {v.g()}, attrs);
    }, .infer = infer_pool_grad, .evaluate = evaluate_avg_grad};

namespace {
constexpr std::array rows{&max_pool2d, &max_pool2d_grad, &avg_pool2d, &avg_pool2d_grad};
}
// clang-format on
std::span<OpDef const* const> window_rows() { return rows; }

}  // namespace tenon::ir::ops
