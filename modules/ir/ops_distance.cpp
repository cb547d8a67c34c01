// Rows of vector norms and of what is measured by them, as bodies over the core.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
constexpr double inf = std::numeric_limits<double>::infinity();

Attrs norm_attrs(double p, std::span<Dim const> dims, bool keep) { return over(dims, keep).with_num(p); }
// (Σ |x|^p)^(1/p), with its limits at 0 (how many are not 0) and at ±inf.
void vector_norm_body(Body& body) {
  AttrReader reader{body.attrs};
  auto const dims = reader.list();
  bool const keep = reader.flag();
  double const p = pinned(reader.num());
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    auto const total = [&](Var y) { return call(sum, {y}, summed(dims, keep)); };
    if (p == 2) return call(sqrt, {total(x * x)});
    Var const size = call(abs, {x});
    if (p == inf) return call(amax, {size}, over(dims, keep));
    if (p == -inf) return call(amin, {size}, over(dims, keep));
    if (p == 0) return total(cast(call(ne, {x, 0.0}), x.meta().dtype));
    if (p == 1) return total(size);
    return call(pow, {total(call(pow, {size, p})), 1 / p});
  }));
}
void vector_norm_vjp(Vjp& v) {
  AttrReader reader{v.attrs};
  auto const mask = dim_mask("norm", reader.list(), v.x().rank());
  double const p = pinned(v.attrs.nums[0]);
  Dims sizes, dims;
  for (int d = 0; d < v.x().rank(); ++d) {
    bool const gone = mask[static_cast<std::size_t>(d)];
    sizes.push_back(gone ? Dim(1) : v.x().size(d));
    if (gone) dims.push_back(d);
  }
  Var const x = v.x(), g = call(reshape, {v.g()}, Attrs{}.with(sizes)), y = call(reshape, {v.y()}, Attrs{}.with(sizes));
  Var const still = call(eq, {x, 0.0});  // nothing moves from 0 in any direction more than in another
  if (p == 0) return void(v.grad(0) = x * 0.0);
  if (p == 2) return void(v.grad(0) = choose(still, 0.0, g * (x / y)));
  Var const way = call(sign, {x}), size = call(abs, {x});
  if (std::isinf(p)) {  // those at the extreme share it
    Var const there = cast(call(eq, {size, y}), y.meta().dtype);
    return void(v.grad(0) = way * there * (g / call(sum, {there}, summed(dims, true))));
  }
  v.grad(0) = p == 1 ? g * way : choose(still, 0.0, g * way * call(pow, {size / y, p - 1}));
}
/// Parts of a 2-norm have a norm; the dims that any other takes stay whole.
std::string vector_norm_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  auto const plain = reduce_equation(attrs, in);
  if (attrs.nums[0].real == 2) return plain;
  auto const arrow = plain.find("->");
  std::string left;
  for (char c : plain.substr(0, arrow)) left += std::string(1, c) + (plain.find(c, arrow) == std::string::npos ? "!" : "");
  return left + plain.substr(arrow);
}
Scalar order_of(Attrs const& attrs) { return attrs.nums[0].kind == ScalarKind::none ? Scalar(2.0) : attrs.nums[0]; }
// The largest (or smallest) sum of sizes along one of two dims, over the other.
void matrix_norm(Body& body, double p, std::array<int, 2> dims, bool keep) {
  if (std::fabs(p) != 1 && std::fabs(p) != inf) fail("{} of matrices is one of 1, -1, inf, -inf and \"fro\" here, not {}: it needs singular values", "ord", p);
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    int const along = std::fabs(p) == 1 ? dims[0] : dims[1], over_dim = std::fabs(p) == 1 ? dims[1] : dims[0];
    Var const sums = call(sum, {call(abs, {x})}, summed(Dims{Dim(along)}, true));
    Var const most = call(p > 0 ? amax : amin, {sums}, over(Dims{Dim(over_dim)}, true));
    return keep ? most : call(squeeze, {most}, Attrs{}.with(Dims{Dim(dims[0]), Dim(dims[1])}));
  }));
}
// The two dims of a matrix norm; none where ord names a norm of vectors.
std::optional<std::array<int, 2>> matrix_dims(Var x, std::span<Dim const> dims, bool ordered) {
  if (!ordered || (dims.empty() && x.rank() == 1) || dims.size() == 1) return std::nullopt;
  if (dims.empty() ? x.rank() != 2 : dims.size() != 2)
    fail("with ord, {} needs one or two dims, not {}", to_string(x.meta()), dims.empty() ? static_cast<std::size_t>(x.rank()) : dims.size());
  if (dims.empty()) return std::array{0, 1};
  std::array const two{dim_of(x, dims[0]), dim_of(x, dims[1])};
  if (two[0] == two[1]) fail("dim {} is named twice", two[0]);
  return two;
}
void linalg_norm_body(Body& body) {
  AttrReader reader{body.attrs};
  auto const dims = reader.list();
  bool const keep = reader.flag();
  if (auto const two = matrix_dims(body.x(), dims, body.attrs.nums[0].kind != ScalarKind::none))
    return matrix_norm(body, pinned(body.attrs.nums[0]), *two, keep);
  body.out.push_back(call(vector_norm, {body.x()}, over(dims, keep).with_num(order_of(body.attrs))));
}
// ord by name: "fro", or a number as a text.
void named_norm_body(Body& body, std::optional<std::array<int, 2>> two, bool keep) {
  if (!two) fail("ord \"{}\" needs two dims, not {}", body.attrs.text, to_string(body.x().meta()));
  if (body.attrs.text != "fro") fail("ord \"{}\" of matrices is not here: only \"fro\" and numbers", body.attrs.text);
  body.out.push_back(call(vector_norm, {body.x()}, over(Dims{Dim((*two)[0]), Dim((*two)[1])}, keep).with_num(2.0)));
}
std::string all_whole(Attrs const& attrs, std::span<Meta const* const> in) {  // of a vector 2-norm, parts combine
  AttrReader reader{attrs};
  auto const dims = reader.list();
  bool const ordered = attrs.nums[0].kind != ScalarKind::none && (dims.empty() ? in[0]->rank() != 1 : dims.size() == 2);
  Attrs vector = attrs;
  vector.nums[0] = ordered ? Scalar(inf) : order_of(attrs);
  return vector_norm_equation(vector, in);
}
void cdist_body(Body& body) {
  double const p = pinned(body.attrs.nums[0]);
  if (!(p >= 0)) fail("cdist: p can't be negative: {}", p);
  Var const a = body.x(0), b = body.x(1);
  if (a.rank() < 2 || b.rank() < 2) fail("cdist: needs rows in at least two dims: {} and {}", to_string(a.meta()), to_string(b.meta()));
  if (!same(a.size(-1), b.size(-1))) fail("cdist: rows have {} and {} elements", a.size(-1).value, b.size(-1).value);
  auto const x = wide_operands(body);
  Var const gap = call(unsqueeze, {x[0]}, at_dim(-2)) - call(unsqueeze, {x[1]}, at_dim(-3));
  settle(body, same(a.size(-1), 0) ? call(sum, {gap}, summed(Dims{Dim(-1)}, false)) : call(vector_norm, {gap}, norm_attrs(p, Dims{Dim(-1)}, false)));
}

/// Two operands that stretch to each other and lose dim `dim` of their common sizes (or keep 1 there).
std::string pair_equation(Attrs const&, std::span<Meta const* const> in, std::int64_t dim, bool keep) {
  int const rank = std::max(in[0]->rank(), in[1]->rank());
  if (rank == 0) return ",->";
  auto const all = letters(rank);
  auto const gone = static_cast<std::size_t>(base::wrap_dim("equation", dim, rank));
  auto const sizes_at = [&](std::size_t k, std::size_t d) {
    auto const lead = static_cast<std::size_t>(rank - in[k]->rank());
    return d < lead ? std::int64_t{-1} : in[k]->sizes[d - lead].value;
  };
  std::string text;
  for (std::size_t k = 0; k < 2; ++k) {
    for (std::size_t d = 0; d < all.size(); ++d)
      if (auto const size = sizes_at(k, d); size >= 0) text += size == 1 && sizes_at(1 - k, d) > 1 ? "1" : std::string(1, all[d]) + (d == gone ? "!" : "");
    text += k == 0 ? "," : "->";
  }
  for (std::size_t d = 0; d < all.size(); ++d) text += d != gone ? std::string(1, all[d]) : keep ? "1" : "";
  return text;
}
Var norm_at_least(Var x, double p, std::span<Dim const> dims, bool keep, Scalar eps) {
  return call(clamp, {call(vector_norm, {x}, norm_attrs(p, dims, keep))}, Attrs{}.with_num(eps).with_num(Scalar()));
}
void cosine_similarity_body(Body& body) {
  auto const x = wide_operands(body);
  Var const product = x[0] * x[1];
  Dims const dims{body.attrs.ints[0]};
  auto const size = [&](Var y) { return norm_at_least(call(expand, {y}, Attrs{}.with(product.meta().sizes)), 2, dims, false, body.attrs.nums[0]); };
  settle(body, call(sum, {product}, summed(dims, false)) / (size(x[0]) * size(x[1])));
}
void pairwise_distance_body(Body& body) {
  auto const x = wide_operands(body);
  Var const gap = x[0] - x[1] + num(body.attrs.nums[1]);
  settle(body, call(vector_norm, {gap}, norm_attrs(pinned(body.attrs.nums[0]), Dims{Dim(-1)}, body.attrs.ints[0].value != 0)));
}
}  // namespace

// clang-format off
constinit const OpDef vector_norm{.name = "linalg.vector_norm", .kind = Kind::reduction, .signature = "Tensor x, fixed ord=2, int[] dim=[], bool keepdim=False",
    .equation = {.build = vector_norm_equation}, .terms = "-", .combine = Monoid::norm, .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 3,
    .vjp = vector_norm_vjp, .saves = 1 | saves_result, .decompose = vector_norm_body};
constinit const OpDef norm{.name = "norm", .kind = Kind::reduction, .signature = "Tensor input, fixed p=2, int[] dim=[], bool keepdim=False",
    .equation = {.build = vector_norm_equation}, .terms = "-", .combine = Monoid::norm, .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 3,
    .decompose = [](Body& b) { b.out.push_back(call(vector_norm, {b.x()}, b.attrs)); }};
constinit const OpDef linalg_norm{.name = "linalg.norm", .kind = Kind::reduction, .signature = "Tensor A, fixed? ord=None, int[] dim=[], bool keepdim=False",
    .equation = {.build = all_whole}, .terms = "-", .combine = Monoid::norm, .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 3,
    .decompose = linalg_norm_body};
constinit const OpDef linalg_norm_named{.name = "linalg.norm.ord_str", .kind = Kind::reduction, .signature = "Tensor A, str ord, int[] dim=[], bool keepdim=False",
    .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 3, .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const dims = reader.list();
      named_norm_body(b, matrix_dims(b.x(), dims, true), reader.flag());
    }};
constinit const OpDef linalg_matrix_norm{.name = "linalg.matrix_norm", .kind = Kind::reduction,
    .signature = "Tensor A, fixed ord, int[] dim=[-2,-1], bool keepdim=False", .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 3,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const dims = reader.list();
      if (dims.size() != 2) fail("linalg.matrix_norm: takes two dims, not {}", dims.size());
      matrix_norm(b, pinned(b.attrs.nums[0]), *matrix_dims(b.x(), dims, true), reader.flag());
    }};
constinit const OpDef linalg_matrix_norm_named{.name = "linalg.matrix_norm.str_ord", .kind = Kind::reduction,
    .signature = "Tensor A, str ord=fro, int[] dim=[-2,-1], bool keepdim=False", .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 3,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const dims = reader.list();
      if (dims.size() != 2) fail("linalg.matrix_norm: takes two dims, not {}", dims.size());
      named_norm_body(b, matrix_dims(b.x(), dims, true), reader.flag());
    }};
constinit const OpDef cdist{.name = "cdist", .kind = Kind::reduction, .signature = "Tensor x1, Tensor x2, fixed p=2", .terms = "--", .mono = "..", .types = Types::real,
    .precision = Precision::wide, .cost = 5, .decompose = cdist_body};
constinit const OpDef normalize{.name = "normalize", .kind = Kind::normalise, .signature = "Tensor input, fixed p=2, int dim=1, float eps=1e-12",
    .equation = {.build = whole_dim_equation}, .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 7,
    .decompose = [](Body& b) {
      Dims const dims{b.attrs.ints[0]};
      b.out.push_back(in_wide(b.x(), [&](Var x) { return x / norm_at_least(x, pinned(b.attrs.nums[0]), dims, true, b.attrs.nums[1]); }));
    }};
constinit const OpDef cosine_similarity{.name = "cosine_similarity", .kind = Kind::reduction, .signature = "Tensor x1, Tensor x2, int dim=1, float eps=1e-08",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return pair_equation(attrs, in, attrs.ints[0].value, false); }}, .terms = "--", .mono = "..",
    .types = Types::real, .precision = Precision::wide, .cost = 6, .decompose = cosine_similarity_body};
constinit const OpDef pairwise_distance{.name = "pairwise_distance", .kind = Kind::reduction,
    .signature = "Tensor x1, Tensor x2, fixed p=2, float eps=1e-06, bool keepdim=False",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return pair_equation(attrs, in, -1, attrs.ints[0].value != 0); }}, .terms = "--",
    .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 5, .decompose = pairwise_distance_body};

namespace {
constexpr std::array rows{&vector_norm, &norm, &linalg_norm, &linalg_norm_named, &linalg_matrix_norm, &linalg_matrix_norm_named, &cdist, &normalize, &cosine_similarity, &pairwise_distance};
}
// clang-format on
std::span<OpDef const* const> distance_rows() { return rows; }

}  // namespace tenon::ir::ops
