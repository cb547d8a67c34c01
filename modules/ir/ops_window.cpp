// Pooling over windows of the last two dims, and its gradients.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
struct Pool {
  std::array<std::int64_t, 2> kernel, stride, padding;
};
Pool pool_of(AttrReader& reader, std::string_view op) {
  auto const pair = [&](std::string_view what, std::int64_t least, std::optional<std::array<std::int64_t, 2>> fallback) {
    auto const list = reader.list();
    if (list.empty() && fallback) return *fallback;
    if (list.empty() || list.size() > 2) fail("{}: {} takes one or two numbers, not {}", op, what, list.size());
    std::array const two{list.front().value, list.back().value};
    if (std::ranges::min(two) < least) fail("{}: {} must be at least {}, not {}", op, what, least, std::ranges::min(two));
    return two;
  };
  Pool pool{};
  pool.kernel = pair("kernel_size", 1, std::nullopt);
  pool.stride = pair("stride", 1, pool.kernel);
  pool.padding = pair("padding", 0, std::nullopt);
  for (std::size_t d = 0; d < 2; ++d)
    if (2 * pool.padding[d] > pool.kernel[d]) fail("{}: padding {} is more than half of kernel size {}", op, pool.padding[d], pool.kernel[d]);
  return pool;
}
void infer_pool(Inference& call) {
  auto const& x = call.x();
  AttrReader reader{call.attrs};
  auto const pool = pool_of(reader, call.op.name);
  if (x.rank() != 3 && x.rank() != 4) fail("{}: needs rank 3 or 4, not {}", call.op.name, to_string(x));
  Dims sizes = x.sizes;
  for (std::size_t d = 0; d < 2; ++d) {
    Dim& size = sizes[sizes.size() - 2 + d];
    Dim const room = size + 2 * pool.padding[d] - pool.kernel[d];
    if (room.value < 0) fail("{}: a window of {} does not fit size {} with padding {}", call.op.name, pool.kernel[d], size.value, pool.padding[d]);
    size = room / Dim(pool.stride[d]) + 1;
  }
  call.out.push_back(contiguous_meta(x.dtype, x.device, std::move(sizes)));
}
void infer_pool_grad(Inference& call) { call.out.push_back(contiguous_meta(call.x(1).dtype, call.x(1).device, call.x(1).sizes)); }

// Calls visit(output offset, window) for each output element; window(f) calls f(input offset) for its elements inside the image.
template <class Visit>
void windows(Strided const& x, Strided const& y, Pool const& pool, Visit visit) {
  std::size_t const r = x.sizes.size();
  base::Shape const outer(x.sizes.begin(), x.sizes.end() - 2), x_outer(x.strides.begin(), x.strides.end() - 2), y_outer(y.strides.begin(), y.strides.end() - 2);
  walk<2>(outer, {&x_outer, &y_outer}, [&](auto const& at) {
    for (std::int64_t p = 0; p < y.sizes[r - 2]; ++p)
      for (std::int64_t q = 0; q < y.sizes[r - 1]; ++q)
        visit(at[1] + p * y.strides[r - 2] + q * y.strides[r - 1], [&](auto f) {
          std::int64_t const top = p * pool.stride[0] - pool.padding[0], left = q * pool.stride[1] - pool.padding[1];
          for (std::int64_t i = std::max<std::int64_t>(top, 0); i < std::min(top + pool.kernel[0], x.sizes[r - 2]); ++i)
            for (std::int64_t j = std::max<std::int64_t>(left, 0); j < std::min(left + pool.kernel[1], x.sizes[r - 1]); ++j)
              f(at[0] + i * x.strides[r - 2] + j * x.strides[r - 1]);
        });
  });
}
// The first largest element of a window; NaN wins.
template <class Window>
std::pair<std::int64_t, double> largest(Strided const& x, Window window) {
  std::int64_t best = -1;
  double value = -std::numeric_limits<double>::infinity();
  window([&](std::int64_t at) {
    double const next = x.real(at);
    if (best < 0 || (value == value && (next > value || next != next))) best = at, value = next;
  });
  return {best, value};
}
double area(Pool const& pool) { return static_cast<double>(pool.kernel[0] * pool.kernel[1]); }

void evaluate_max(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  windows(kernel.in[0], kernel.out[0], pool_of(reader, kernel.op.name),
          [&](std::int64_t to, auto window) { kernel.out[0].set(to, largest(kernel.in[0], window).second); });
}
void evaluate_avg(Kernel const& kernel) {  // padding counts as zeros
  AttrReader reader{kernel.attrs};
  auto const pool = pool_of(reader, kernel.op.name);
  windows(kernel.in[0], kernel.out[0], pool, [&](std::int64_t to, auto window) {
    double total = 0;
    window([&](std::int64_t at) { total += kernel.in[0].real(at); });
    kernel.out[0].set(to, total / area(pool));
  });
}
// Adds into row-major f64 sums of x's sizes, then rounds once.
template <class Add>
void scatter_windows(Kernel const& kernel, Add add) {
  auto const &g = kernel.in[0], &x = kernel.in[1], &dx = kernel.out[0];
  AttrReader reader{kernel.attrs};
  auto const pool = pool_of(reader, kernel.op.name);
  std::vector<double> sums(static_cast<std::size_t>(base::numel(dx.sizes)), 0.0);
  Strided grid = x;  // offsets into sums, whatever the strides of x
  grid.strides = base::contiguous_strides(x.sizes);
  windows(grid, g, pool, [&](std::int64_t from, auto window) { add(g.real(from), window, pool, sums); });
  for (std::size_t i = 0; i < sums.size(); ++i) dx.set(static_cast<std::int64_t>(i), sums[i]);
}
void evaluate_max_grad(Kernel const& kernel) {
  auto const& x = kernel.in[1];
  std::vector<double> plain;  // x in row-major order, so that offsets agree with the sums
  walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { plain.push_back(x.real(at[0])); });
  Strided const copy{reinterpret_cast<std::byte*>(plain.data()), base::DType::f64, x.sizes, base::contiguous_strides(x.sizes)};
  scatter_windows(kernel, [&](double g, auto window, Pool const&, auto& sums) {
    if (auto const best = largest(copy, window).first; best >= 0) sums[static_cast<std::size_t>(best)] += g;
  });
}
void evaluate_avg_grad(Kernel const& kernel) {
  scatter_windows(kernel, [](double g, auto window, Pool const& pool, auto& sums) {
    window([&](std::int64_t at) { sums[static_cast<std::size_t>(at)] += g / area(pool); });
  });
}
std::string pool_equation(Attrs const&, std::span<Meta const* const> in) { return in[0]->rank() == 4 ? "nch!w!->ncp!q!" : "ch!w!->cp!q!"; }
std::string pool_grad_equation(Attrs const&, std::span<Meta const* const> in) { return in[0]->rank() == 4 ? "ncp!q!,nch!w!->nch!w!" : "cp!q!,ch!w!->ch!w!"; }
}  // namespace

// clang-format off
constinit const OpDef max_pool2d{.name = "max_pool2d", .kind = Kind::reduction, .signature = "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0]",
    .equation = {.build = pool_equation}, .terms = "-", .mono = "+", .types = Types::first, .vjp = [](Vjp& v) { v.grad(0) = call(max_pool2d_grad, {v.g(), v.x()}, v.attrs); },
    .saves = 1, .infer = infer_pool, .evaluate = evaluate_max};
constinit const OpDef max_pool2d_grad{.name = "max_pool2d_grad", .kind = Kind::reduction,
    .signature = "Tensor grad, Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0]", .equation = {.build = pool_grad_equation}, .terms = "a-", .mono = "..",
    .types = Types::first, .infer = infer_pool_grad, .evaluate = evaluate_max_grad};
constinit const OpDef avg_pool2d{.name = "avg_pool2d", .kind = Kind::reduction, .signature = "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0]",
    .equation = {.build = pool_equation}, .terms = "a", .mono = "+", .types = Types::first, .vjp = [](Vjp& v) { v.grad(0) = call(avg_pool2d_grad, {v.g(), v.x()}, v.attrs); },
    .saves = 1, .infer = infer_pool, .evaluate = evaluate_avg};
constinit const OpDef avg_pool2d_grad{.name = "avg_pool2d_grad", .kind = Kind::reduction,
    .signature = "Tensor grad, Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0]", .equation = {.build = pool_grad_equation}, .terms = "a-", .mono = "+.",
    .types = Types::first,
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = call(avg_pool2d, {v.g()}, v.attrs);
    }, .infer = infer_pool_grad, .evaluate = evaluate_avg_grad};
// clang-format on

}  // namespace tenon::ir::ops
