// Running products and log-sum-exps, built by doubling: each turn combines a prefix with the one that ends before it, so their gradients need
// no division.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
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
constinit const OpDef cumprod{.name = "cumprod", .kind = Kind::scan, .signature = "Tensor input, int dim, *, dtype? dtype=None", .equation = {.build = whole_dim_equation},
    .terms = "-", .mono = ".", .precision = Precision::wide, .decompose = cumprod_body};
constinit const OpDef logcumsumexp{.name = "logcumsumexp", .kind = Kind::scan, .signature = "Tensor input, int dim", .equation = {.build = whole_dim_equation}, .terms = "-",
    .mono = "+", .precision = Precision::wide, .decompose = logcumsumexp_body};

namespace {
constexpr std::array rows{&cumprod, &logcumsumexp};
}
// clang-format on
std::span<OpDef const* const> scan_rows() { return rows; }

}  // namespace tenon::ir::ops
