// Rows that read or write places named by an index or a mask: bodies over gather, scatter, index_select and where.
// A negative index counts from the end where PyTorch has it so.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;

namespace {
constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();

void need_whole(Var at) {
  auto const type = at.meta().dtype;
  if (type != DType::i64 && type != DType::i32) fail("the index must be i64 or i32, not {}", base::info(type).name);
}
Var wrapped(Var at, Dim size) {
  need_whole(at);
  return choose(call(lt, {at, Var(0)}), at + Var(size), at);
}
Var flat(Var x) { return shaped(x, std::array{product(x.meta().sizes)}); }
// An index along `dim` as the index of scatter: spread over the other dims of x.
Var spread_index(Var at, Var x, int dim) {
  Dims line, wide = x.meta().sizes;
  if (at.rank() > 1) fail("the index needs rank 0 or 1, not {}", to_string(at.meta()));
  Dim const count = at.rank() ? at.size(0) : Dim(1);
  for (int d = 0; d < x.rank(); ++d) line.push_back(d == dim ? count : Dim(1));
  wide[static_cast<std::size_t>(dim)] = count;
  return call(expand, {shaped(at, line)}, Attrs{}.with(wide));
}
Var filled(Var like, std::span<Dim const> sizes, Scalar value) {
  return create(*like.emit, full, Attrs{}.with(sizes).with(like.meta().dtype).with(like.meta().device).with_num(value));
}
void need_dtype(Var x, Var other) {
  if (x.meta().dtype != other.meta().dtype) fail("dtypes differ: {} and {}", to_string(x.meta()), to_string(other.meta()));
}
void copy_body(Body& b) {
  Var x = b.x(0), source = b.x(2);
  need_dtype(x, source);
  need_whole(b.x(1));
  bool const scalar = x.rank() == 0;
  int const d = dim_of(x, b.attrs.ints[0]);
  if (scalar) x = flat(x);
  if (scalar && source.rank() == 0) source = flat(source);
  Var const at = spread_index(b.x(1), x, d);
  Var const wide = source.rank() == 0 && same(at.size(d), 1) ? call(expand, {source}, Attrs{}.with(at.meta().sizes)) : source;
  bool fits = wide.rank() == at.rank();
  for (int k = 0; fits && k < at.rank(); ++k) fits = same(wide.size(k), at.size(k));
  if (!fits) fail("index_copy: source {} does not fit {} of {}", to_string(source.meta()), to_string(b.x(1).meta()), to_string(b.x(0).meta()));
  Var const y = call(scatter, {x, at, wide}, at_dim(d));
  b.out.push_back(scalar ? shaped(y, {}) : y);
}
void fill_body(Body& b) {
  bool const scalar = b.x(0).rank() == 0;
  Var const x = scalar ? flat(b.x(0)) : b.x(0);
  int const d = dim_of(x, b.attrs.ints[0]);
  Var const at = spread_index(wrapped(b.x(1), x.size(d)), x, d);
  Var const y = call(scatter, {x, at, filled(x, at.meta().sizes, b.attrs.nums[0])}, at_dim(d));
  b.out.push_back(scalar ? shaped(y, {}) : y);
}
void along_body(Body& b) {
  Var x = b.x(0), at = b.x(1);
  if (b.attrs.ints[0].value == absent) {
    x = flat(x), at = flat(at);
    return void(b.out.push_back(call(gather, {x, wrapped(at, x.size(0))}, at_dim(0))));
  }
  if (x.rank() != at.rank() || x.rank() == 0) fail("take_along_dim: needs equal ranks of at least 1: {} and {}", to_string(x.meta()), to_string(at.meta()));
  int const dim = dim_of(x, b.attrs.ints[0]);
  Dims wide_x, wide_at;
  for (int d = 0; d < x.rank(); ++d) {
    Dim const size = same(x.size(d), 1) ? at.size(d) : x.size(d);
    wide_x.push_back(d == dim ? x.size(d) : size), wide_at.push_back(d == dim ? at.size(d) : size);
  }
  at = call(expand, {wrapped(at, x.size(dim))}, Attrs{}.with(wide_at));
  b.out.push_back(call(gather, {call(expand, {x}, Attrs{}.with(wide_x)), at}, at_dim(dim)));
}
}  // namespace

// clang-format off
constinit const OpDef take{.name = "take", .kind = Kind::gather, .signature = "Tensor input, Tensor index", .terms = "a-", .mono = "+.", .copy = true,
    .decompose = [](Body& b) {
      Var const x = flat(b.x(0));
      Var const at = flat(wrapped(b.x(1), x.size(0)));
      b.out.push_back(shaped(call(index_select, {x, at}, at_dim(0)), b.x(1).meta().sizes));
    }};
constinit const OpDef take_along_dim{.name = "take_along_dim", .kind = Kind::gather, .signature = "Tensor input, Tensor indices, int? dim=None", .terms = "a-", .mono = "+.",
    .copy = true, .decompose = along_body};
constinit const OpDef index_copy{.name = "index_copy", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, Tensor source", .terms = "a-b", .mono = "+.+",
    .copy = true, .decompose = copy_body};
constinit const OpDef index_fill{.name = "index_fill", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, float value", .terms = "--", .mono = "+.",
    .affine = true, .decompose = fill_body};
constinit const OpDef select_scatter{.name = "select_scatter", .kind = Kind::gather, .signature = "Tensor input, Tensor src, int dim, size index", .terms = "ab", .mono = "++",
    .copy = true, .decompose = [](Body& b) {
      Var const x = b.x(0), src = b.x(1);
      need_dtype(x, src);
      if (x.rank() == 0) fail("select_scatter: a 0-d tensor has no dim");
      int const d = dim_of(x, b.attrs.ints[0]);
      Var const place = call(select, {x}, Attrs{}.with(Dim(d)).with(b.attrs.ints[1]));  // checks the index
      bool fits = place.rank() == src.rank();
      for (int k = 0; fits && k < src.rank(); ++k) fits = same(place.size(k), src.size(k));
      if (!fits) fail("select_scatter: src {} does not fit {}", to_string(src.meta()), to_string(place.meta()));
      Dim const at = less(b.attrs.ints[1], 0) ? b.attrs.ints[1] + x.size(d) : b.attrs.ints[1];
      b.out.push_back(concat(std::array{cut(x, d, 0, at), call(unsqueeze, {src}, at_dim(d)), cut(x, d, at + 1, last)}, d));
    }};
namespace {
constexpr std::array rows{&take, &take_along_dim, &index_copy, &index_fill, &select_scatter};
}
// clang-format on
std::span<OpDef const* const> index_rows() { return rows; }

}  // namespace tenon::ir::ops
