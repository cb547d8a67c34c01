// Rows that carry something along a dim. Running extremes have a kernel; running products and log-sum-exps are built by doubling: each turn
// combines a prefix with the one that ends before it, so their gradients need no division.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
template <bool largest>
void evaluate_running(Kernel const& kernel) {  // of equal ones the later; NaN stays
  auto const &x = kernel.in[0], &best = kernel.out[0], &places = kernel.out[1];
  auto const axis =
      x.sizes.empty() ? 0 : static_cast<std::size_t>(base::wrap_dim(kernel.op.name, kernel.attrs.ints[0].value, static_cast<int>(x.sizes.size())));
  std::int64_t const n = x.sizes.empty() ? 1 : x.sizes[axis];
  auto const step = [&](Strided const& of) { return of.sizes.empty() ? std::int64_t{0} : of.strides[axis]; };
  bool const real = base::is_real(x.dtype);
  base::Shape outer = x.sizes;
  if (!outer.empty()) outer[axis] = std::min<std::int64_t>(n, 1);
  walk<3>(outer, {&x.strides, &best.strides, &places.strides}, [&](auto const& at) {
    auto const replaces = [&](std::int64_t from, std::int64_t held) {
      if (!real) {
        auto const a = x.whole(at[0] + from * step(x)), b = x.whole(at[0] + held * step(x));
        return largest ? a >= b : a <= b;
      }
      double const a = x.real(at[0] + from * step(x)), b = x.real(at[0] + held * step(x));
      return a != a || (largest ? a >= b : a <= b);
    };
    for (std::int64_t k = 0, held = 0; k < n; ++k) {
      if (replaces(k, held)) held = k;
      std::memcpy(best.at(at[1] + k * step(best)), x.at(at[0] + held * step(x)), static_cast<std::size_t>(base::bytes_of(x.dtype)));
      places.set_whole(at[2] + k * step(places), held);
    }
  });
}
void infer_running(Inference& call) {
  auto const& x = call.x();
  base::wrap_dim(call.op.name, call.attrs.ints[0].value, std::max(x.rank(), 1));
  call.out.push_back(contiguous_meta(x.dtype, x.device, x.sizes));
  call.out.push_back(contiguous_meta(DType::i64, x.device, x.sizes));
}
void running_vjp(Vjp& v) {
  if (v.g(0)) v.grad(0) = call(scatter_add, {zeros_like(v.x()), v.y(1), v.g(0)}, v.attrs);
}
std::string pair_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  auto const one = whole_dim_equation(attrs, in);
  return one + "," + one.substr(one.find("->") + 2);
}

template <class F>
Var doubled(Var x, int dim, F combine) {
  if (x.rank() == 0) return x;
  Dim const size = x.size(dim);
  for (Dim shift = 1; less(shift, size); shift = shift * 2)
    x = concat(std::array{cut(x, dim, 0, shift), combine(cut(x, dim, 0, size - shift), cut(x, dim, shift, size))}, dim);
  return x;
}
void cumprod_body(Body& b) {
  int const dim = dim_of(b.x(), b.attrs.ints[0]);
  DType const own = base::is_real(b.x().meta().dtype) ? b.x().meta().dtype : DType::i64;
  DType const type = b.attrs.ints[1].value == absent ? own : static_cast<DType>(b.attrs.ints[1].value);
  Var const x = cast(b.x(), type);
  Var const product =
      base::is_real(type) ? cast(doubled(widened(x), dim, [](Var p, Var q) { return p * q; }), type) : doubled(x, dim, [](Var p, Var q) { return p * q; });
  b.out.push_back(product.input.value == b.x().input.value ? call(clone, {product}) : product);
}
void logcumsumexp_body(Body& b) {
  int const dim = dim_of(b.x(), b.attrs.ints[0]);
  if (!base::is_real(b.x().meta().dtype)) fail("logcumsumexp: needs a floating dtype, not {}", to_string(b.x().meta()));
  Var const y = in_wide(b.x(), [&](Var x) {
    return doubled(x, dim, [](Var p, Var q) {
      Var const high = call(maximum, {p, q}), low = call(minimum, {p, q});
      return high + call(log1p, {call(exp, {choose(call(eq, {high, low}), 0.0, low - high)})});  // equal infinities have no difference
    });
  });
  b.out.push_back(y.input.value == b.x().input.value ? call(clone, {y}) : y);
}
}  // namespace

// clang-format off
constinit const OpDef cummax{.name = "cummax", .kind = Kind::scan, .signature = "Tensor input, int dim", .results = 2, .equation = {.build = pair_equation}, .terms = "-",
    .mono = ".", .vjp = running_vjp, .saves = saves_result << 1, .infer = infer_running, .evaluate = evaluate_running<true>};
constinit const OpDef cummin{.name = "cummin", .kind = Kind::scan, .signature = "Tensor input, int dim", .results = 2, .equation = {.build = pair_equation}, .terms = "-",
    .mono = ".", .vjp = running_vjp, .saves = saves_result << 1, .infer = infer_running, .evaluate = evaluate_running<false>};
constinit const OpDef cumprod{.name = "cumprod", .kind = Kind::scan, .signature = "Tensor input, int dim, *, dtype? dtype=None", .equation = {.build = whole_dim_equation},
    .terms = "-", .mono = ".", .precision = Precision::wide, .decompose = cumprod_body};
constinit const OpDef logcumsumexp{.name = "logcumsumexp", .kind = Kind::scan, .signature = "Tensor input, int dim", .equation = {.build = whole_dim_equation}, .terms = "-",
    .mono = "+", .precision = Precision::wide, .decompose = logcumsumexp_body};

namespace {
constexpr std::array rows{&cummax, &cummin, &cumprod, &logcumsumexp};
}
// clang-format on
std::span<OpDef const* const> scan_rows() { return rows; }

}  // namespace tenon::ir::ops
