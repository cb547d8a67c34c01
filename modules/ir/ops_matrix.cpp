// Rows of products of vectors and matrices, alone or added to something, as bodies over matmul.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
void need_ranks(Body const& body, std::string_view op, std::initializer_list<int> ranks, std::size_t first) {
  for (int rank : ranks)
    if (Var const x = body.in[first++]; x.rank() != rank) fail("{}: operand {} must have rank {}: {}", op, first - 1, rank, to_string(x.meta()));
}
bool is(Scalar number, double value) { return number.node < 0 && number.real == value; }
/// beta · bias + alpha · product, where the bias is stretched to the product's sizes; beta 0 drops even NaN.
void biased(Body& body, std::string_view op, Var product) {
  Var const bias = body.x(0);
  bool fits = bias.rank() <= product.rank();
  for (int d = 1; fits && d <= bias.rank(); ++d) fits = same(bias.size(-d), 1) || same(bias.size(-d), product.size(-d));
  if (!fits) fail("{}: {} does not stretch to {}", op, to_string(bias.meta()), to_string(product.meta()));
  Scalar const beta = body.attrs.nums[0], alpha = body.attrs.nums[1];
  if (!is(alpha, 1)) product = product * num(alpha);
  if (is(beta, 0)) return body.out.push_back(product);
  body.out.push_back(product + (is(beta, 1) ? bias : bias * num(beta)));
}
/// The factors of a bias under a result of these letters.
std::string bias_factors(Meta const& bias, std::string_view result) {
  std::string text;
  for (std::size_t d = 0, n = bias.sizes.size(); d < n; ++d) text += bias.sizes[d].value == 1 || n > result.size() ? '1' : result[result.size() - n + d];
  return text;
}
template <auto rest>
std::string biased_equation(Attrs const&, std::span<Meta const* const> in) {
  std::string const product = rest();
  return bias_factors(*in[0], std::string_view(product).substr(product.find('>') + 1)) + "," + product;
}

void inner_body(Body& body) {
  Var const x = body.x(0), y = body.x(1);
  if (x.rank() == 0 || y.rank() == 0) return body.out.push_back(x * y);
  Dim const shared = y.size(-1);
  if (!same(x.size(-1), shared)) fail("inner: the last dims differ: {} and {}", x.size(-1).value, shared.value);
  Dims sizes(std::span<Dim const>(x.meta().sizes).first(static_cast<std::size_t>(x.rank() - 1)));
  Dim rows = 1;
  for (int d = 0; d + 1 < y.rank(); ++d) sizes.push_back(y.size(d)), rows = rows * y.size(d);
  Var const flat = call(reshape, {y}, Attrs{}.with(Dims{rows, shared}));
  body.out.push_back(call(reshape, {call(matmul, {x, call(transpose, {flat}, Attrs{}.with(Dim(0)).with(Dim(1)))})}, Attrs{}.with(sizes)));
}
Var outer_product(Var x, Var y) { return call(unsqueeze, {x}, at_dim(1)) * y; }
}  // namespace

// clang-format off
// m, k, n as in matmul; d batch
constinit const OpDef outer{.name = "outer", .kind = Kind::contraction, .signature = "Tensor input, Tensor vec2", .equation = {"m,n->mn"}, .terms = "aa", .mono = "..",
    .decompose = [](Body& b) {
      need_ranks(b, "outer", {1, 1}, 0);
      b.out.push_back(outer_product(b.x(0), b.x(1)));
    }};
constinit const OpDef dot{.name = "dot", .kind = Kind::contraction, .signature = "Tensor input, Tensor tensor", .equation = {"k,k->"}, .terms = "aa", .combine = Monoid::sum,
    .mono = "..", .precision = Precision::low,
    .decompose = [](Body& b) {
      need_ranks(b, "dot", {1, 1}, 0);
      if (b.x(0).meta().dtype != b.x(1).meta().dtype) fail("dot: dtypes differ: {} and {}", to_string(b.x(0).meta()), to_string(b.x(1).meta()));
      b.out.push_back(call(matmul, {b.x(0), b.x(1)}));
    }};
constinit const OpDef vdot{.name = "vdot", .kind = Kind::contraction, .signature = "Tensor input, Tensor other", .equation = {"k,k->"}, .terms = "aa", .combine = Monoid::sum,
    .mono = "..", .precision = Precision::low, .decompose = [](Body& b) { b.out.push_back(call(dot, {b.x(0), b.x(1)})); }};
constinit const OpDef mv{.name = "mv", .kind = Kind::contraction, .signature = "Tensor input, Tensor vec", .equation = {"mk,k->m"}, .terms = "aa", .combine = Monoid::sum,
    .mono = "..", .precision = Precision::low,
    .decompose = [](Body& b) {
      need_ranks(b, "mv", {2, 1}, 0);
      b.out.push_back(call(matmul, {b.x(0), b.x(1)}));
    }};
constinit const OpDef inner{.name = "inner", .kind = Kind::contraction, .signature = "Tensor input, Tensor other",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      int const left = in[0]->rank(), right = in[1]->rank();
      if (left == 0 || right == 0) return letters(left, 1) + "," + letters(right, 1) + "->" + letters(std::max(left, right), 1);
      auto const x = letters(left - 1, 1), y = letters(right - 1, left);
      return x + "a," + y + "a->" + x + y;
    }},
    .terms = "aa", .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .decompose = inner_body};
constinit const OpDef addmv{.name = "addmv", .kind = Kind::contraction, .signature = "Tensor input, Tensor mat, Tensor vec, *, float beta=1, float alpha=1",
    .equation = {.build = biased_equation<[] { return "mk,k->m"; }>}, .terms = "abb", .combine = Monoid::sum, .mono = "...", .precision = Precision::low,
    .decompose = [](Body& b) {
      need_ranks(b, "addmv", {2, 1}, 1);
      biased(b, "addmv", call(matmul, {b.x(1), b.x(2)}));
    }};
constinit const OpDef addr{.name = "addr", .kind = Kind::contraction, .signature = "Tensor input, Tensor vec1, Tensor vec2, *, float beta=1, float alpha=1",
    .equation = {.build = biased_equation<[] { return "m,n->mn"; }>}, .terms = "abb", .mono = "...",
    .decompose = [](Body& b) {
      need_ranks(b, "addr", {1, 1}, 1);
      biased(b, "addr", outer_product(b.x(1), b.x(2)));
    }};
constinit const OpDef baddbmm{.name = "baddbmm", .kind = Kind::contraction, .signature = "Tensor input, Tensor batch1, Tensor batch2, *, float beta=1, float alpha=1",
    .equation = {.build = biased_equation<[] { return "dmk,dkn->dmn"; }>}, .terms = "abb", .combine = Monoid::sum, .mono = "...", .precision = Precision::low,
    .decompose = [](Body& b) { biased(b, "baddbmm", call(bmm, {b.x(1), b.x(2)})); }};
constinit const OpDef addbmm{.name = "addbmm", .kind = Kind::contraction, .signature = "Tensor input, Tensor batch1, Tensor batch2, *, float beta=1, float alpha=1",
    .equation = {.build = biased_equation<[] { return "dmk,dkn->mn"; }>}, .terms = "abb", .combine = Monoid::sum, .mono = "...", .precision = Precision::low,
    .decompose = [](Body& b) { biased(b, "addbmm", call(sum, {call(bmm, {b.x(1), b.x(2)})}, summed(Dims{Dim(0)}, false))); }};

namespace {
constexpr std::array rows{&outer, &dot, &vdot, &mv, &inner, &addmv, &addr, &baddbmm, &addbmm};
}
// clang-format on
std::span<OpDef const* const> matrix_rows() { return rows; }

}  // namespace tenon::ir::ops
