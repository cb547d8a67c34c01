// Rows that cut a tensor into several views of it: bodies of slices. One number says how many parts or how long they are, several say where.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
constexpr std::int64_t most_parts = 1 << 16;

Dim length(Body const& b, int dim) {
  if (b.x().rank() == 0) fail("a 0-d tensor has no dim to split");
  return b.x().size(dim);
}
void every(Body& b, int dim, Dim step) {  // parts of `step` elements, the last may be shorter
  Dim const size = length(b, dim);
  if (less(step, 0) || (same(step, 0) && !same(size, 0))) fail("a part needs at least one element, not {}", step.value);
  Dim start = 0;
  do {
    Dim const end = start + step;
    b.out.push_back(cut(b.x(), dim, start, less(end, size) ? end : size));
    start = end;
  } while (less(start, size) && std::cmp_less(b.out.size(), most_parts));
  if (less(start, size)) fail("more than {} parts", most_parts);
}
void into(Body& b, int dim, Dim count) {  // `count` parts, the first ones longer by one where it does not divide
  Dim const size = length(b, dim);
  if (count.value < 1 || count.value > most_parts) fail("the number of parts must lie in [1, {}], not {}", most_parts, count.value);
  Dim const whole = size / count, longer = size % count;
  Dim start = 0;
  for (std::int64_t k = 0; k < count.value; ++k) {
    Dim const end = start + (less(k, longer) ? whole + 1 : whole);
    b.out.push_back(cut(b.x(), dim, start, end));
    start = end;
  }
}
void at_places(Body& b, int dim, std::span<Dim const> places) {
  length(b, dim);
  Dim start = 0;
  for (Dim const place : places) b.out.push_back(cut(b.x(), dim, start, place)), start = place;
  b.out.push_back(cut(b.x(), dim, start, std::numeric_limits<std::int64_t>::max()));
}
void sections(Body& b, int dim, std::span<Dim const> wish) { wish.size() == 1 ? into(b, dim, wish[0]) : at_places(b, dim, wish); }
// hsplit, vsplit, dsplit: along dim 1, 0 or 2; a single number must divide the size.
template <int dim>
void split_along(Body& b) {
  AttrReader reader{b.attrs};
  auto const wish = reader.list();
  int const rank = b.x().rank(), least = dim == 1 ? 1 : dim == 0 ? 2 : 3, along = rank == 1 ? 0 : dim;
  if (rank < least) fail("needs a rank of at least {}, not {}", least, to_string(b.x().meta()));
  if (wish.size() == 1 && (wish[0].value < 1 || !same(b.x().size(along) % wish[0], 0)))
    fail("{} parts do not divide size {} of dim {}", wish[0].value, b.x().size(along).value, along);
  sections(b, along, wish);
}
}  // namespace

// clang-format off
constinit const OpDef narrow{.name = "narrow", .kind = Kind::view, .signature = "Tensor input, int dim, size start, size length", .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) {
      int const d = dim_of(b.x(), b.attrs.ints[0]);
      Dim const size = length(b, d), count = b.attrs.ints[2];
      Dim start = b.attrs.ints[1];
      if (less(start, 0)) start = start + size;
      if (less(start, 0) || less(count, 0) || !less_equal(start + count, size))
        fail("narrow: start {} and length {} exceed size {} of dim {}", b.attrs.ints[1].value, count.value, size.value, d);
      b.out.push_back(cut(b.x(), d, start, start + count));
    }};
constinit const OpDef split{.name = "split", .kind = Kind::view, .signature = "Tensor input, int[] split_size, int dim=0", .results = 0, .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const sizes = reader.list();
      int const d = dim_of(b.x(), reader.number());
      if (sizes.size() == 1) return every(b, d, sizes[0]);
      Dim start = 0;
      for (Dim const size : sizes) {
        if (less(size, 0)) fail("a part can't have {} elements", size.value);
        b.out.push_back(cut(b.x(), d, start, start + size)), start = start + size;
      }
      if (!same(start, length(b, d))) fail("parts of {} elements do not fill size {} of dim {}", start.value, b.x().size(d).value, d);
    }};
constinit const OpDef chunk{.name = "chunk", .kind = Kind::view, .signature = "Tensor input, int chunks, int dim=0", .results = 0, .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = [](Body& b) {
      int const d = dim_of(b.x(), b.attrs.ints[1]);
      Dim const count = b.attrs.ints[0], size = length(b, d);
      if (count.value < 1) fail("the number of chunks must be at least 1, not {}", count.value);
      same(size, 0) ? into(b, d, count) : every(b, d, (size + count - 1) / count);
    }};
constinit const OpDef tensor_split{.name = "tensor_split", .kind = Kind::view, .signature = "Tensor input, int[] indices_or_sections, int dim=0", .results = 0, .terms = "a",
    .mono = "+", .copy = true, .cost = 0, .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const wish = reader.list();
      sections(b, dim_of(b.x(), reader.number()), wish);
    }};
constinit const OpDef hsplit{.name = "hsplit", .kind = Kind::view, .signature = "Tensor input, int[] indices_or_sections", .results = 0, .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = split_along<1>};
constinit const OpDef vsplit{.name = "vsplit", .kind = Kind::view, .signature = "Tensor input, int[] indices_or_sections", .results = 0, .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = split_along<0>};
constinit const OpDef dsplit{.name = "dsplit", .kind = Kind::view, .signature = "Tensor input, int[] indices_or_sections", .results = 0, .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = split_along<2>};
constinit const OpDef unbind{.name = "unbind", .kind = Kind::view, .signature = "Tensor input, int dim=0", .results = 0, .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) {
      int const d = dim_of(b.x(), b.attrs.ints[0]);
      Dim const size = length(b, d);
      if (same(size, 0)) fail("unbind: dim {} of {} is empty", d, to_string(b.x().meta()));
      if (size.value > most_parts) fail("unbind: {} parts are more than {}", size.value, most_parts);
      for (std::int64_t k = 0; less(k, size); ++k) b.out.push_back(call(select, {b.x()}, Attrs{}.with(Dim(d)).with(Dim(k))));
    }};

namespace {
constexpr std::array rows{&narrow, &split, &chunk, &tensor_split, &hsplit, &vsplit, &dsplit, &unbind};
}
// clang-format on
std::span<OpDef const* const> split_rows() { return rows; }

}  // namespace tenon::ir::ops
