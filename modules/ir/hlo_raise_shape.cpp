// Rules of views, of what only moves elements, and of creation; random ones are Philox4x32-10 in whole numbers, as base counts it.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;
I product_of(Sizes const& sizes) { return std::accumulate(sizes.begin(), sizes.end(), I{1}, std::multiplies{}); }

void to_result_sizes(Raising& r) { r.out = {reshaped(r.x(), r.result().sizes)}; }
void permute(Raising& r) {
  auto reader = r.attrs();
  Sizes order;
  for (auto const dim : reader.list()) order.push_back(static_cast<I>(place(dim, r.x().rank())));
  r.out = {permuted(r.x(), order)};
}
Term swapped(Term x, std::size_t a, std::size_t b) {
  auto order = counted(x.rank());
  if (x.rank() > 0) std::swap(order[a], order[b]);
  return permuted(x, order);
}
void transpose(Raising& r) {
  auto const rank = r.x().rank();
  r.out = {swapped(r.x(), place(r.node.attrs.ints[0], rank), place(r.node.attrs.ints[1], rank))};
}
void expand(Raising& r) { r.out = {broadcast(r.x(), r.result().sizes)}; }

struct Range {
  std::size_t dim;
  I start, step;
};
Range range_of(AttrReader& reader, Sizes const& sizes) {  // as PyTorch counts: from the end where negative, never beyond
  auto const dim = place(reader.number(), sizes.size());
  I const from = reader.number().value, size = sizes[dim];
  reader.number();
  return {dim, std::clamp(from < 0 ? from + size : from, I{0}, size), reader.number().value};
}
void slice(Raising& r) {
  auto reader = r.attrs();
  auto const range = range_of(reader, r.x().sizes());
  I const count = r.result().sizes[range.dim];
  r.out = {cut(r.x(), range.dim, range.start, range.start + (count - 1) * range.step + 1, range.step)};
}
void slice_grad(Raising& r) {
  auto reader = r.attrs();
  auto const sizes = values(reader.list());
  auto const range = range_of(reader, sizes);
  I const count = r.x().sizes()[range.dim], used = range.start + (count == 0 ? 0 : (count - 1) * range.step + 1);
  r.out = {count == 0 ? r.to.number(0, r.result()) : padded(r.x(), 0, range.dim, range.start, sizes[range.dim] - used, range.step - 1)};
}
void select(Raising& r) {
  auto const dim = place(r.node.attrs.ints[0], r.x().rank());
  I const at = r.node.attrs.ints[1].value, start = at < 0 ? at + r.x().sizes()[dim] : at;
  r.out = {reshaped(cut(r.x(), dim, start, start + 1), r.result().sizes)};
}
void unfold(Raising& r) {  // windows of a dim: the places of their elements, then elements to the end
  auto const x = r.x();
  if (x.rank() == 0) return void(r.out = {reshaped(x, r.result().sizes)});
  auto const dim = place(r.node.attrs.ints[0], x.rank());
  I const step = r.node.attrs.ints[2].value;
  auto const sizes = r.result().sizes;
  Type const type{DType::i64, {sizes[dim], sizes.back()}};
  Term const rows = taken(x, dim, r.to.counting(type, 0) * step + r.to.counting(type, 1));
  auto order = counted(rows.rank());
  order.erase(order.begin() + static_cast<I>(dim) + 1);
  order.push_back(static_cast<I>(dim) + 1);
  r.out = {permuted(rows, order)};
}
void flip(Raising& r) {
  auto reader = r.attrs();
  Sizes dims;
  for (auto const dim : reader.list()) dims.push_back(static_cast<I>(place(dim, r.x().rank())));
  if (r.x().rank() == 0) dims.clear();
  r.out = {reversed(r.x(), dims)};
}

// A diagonal is every (columns + 1)-th element of its plane in a row.
struct Plane {
  std::size_t row, column;
  I start, step;
  Sizes order;  ///< the dims of the plane last
};
Plane plane_of(AttrReader& reader, Sizes const& sizes) {
  I const offset = reader.number().value;
  Plane plane{place(reader.number(), sizes.size()), 0, 0, 0, {}};
  plane.column = place(reader.number(), sizes.size());
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (d != plane.row && d != plane.column) plane.order.push_back(static_cast<I>(d));
  plane.order.push_back(static_cast<I>(plane.row)), plane.order.push_back(static_cast<I>(plane.column));
  plane.step = sizes[plane.column] + 1;
  plane.start = offset < 0 ? -offset * sizes[plane.column] : offset;
  return plane;
}
void diagonal(Raising& r) {
  auto reader = r.attrs();
  auto const plane = plane_of(reader, r.x().sizes());
  Sizes flat = r.result().sizes;
  I const count = flat.back();
  flat.back() = r.x().sizes()[plane.row] * r.x().sizes()[plane.column];
  Term const row = reshaped(permuted(r.x(), plane.order), flat);
  r.out = {cut(row, flat.size() - 1, plane.start, plane.start + (count - 1) * plane.step + 1, plane.step)};
}
void diagonal_grad(Raising& r) {
  auto reader = r.attrs();
  auto const sizes = values(reader.list());
  auto const plane = plane_of(reader, sizes);
  I const count = r.x().sizes().back(), rest = sizes[plane.row] * sizes[plane.column] - plane.start - (count - 1) * plane.step - 1;
  if (count == 0) return void(r.out = {r.to.number(0, r.result())});
  Sizes apart, back(sizes.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    apart.push_back(sizes[static_cast<std::size_t>(plane.order[d])]);
    back[static_cast<std::size_t>(plane.order[d])] = static_cast<I>(d);
  }
  r.out = {permuted(reshaped(padded(r.x(), 0, r.x().rank() - 1, plane.start, rest, plane.step - 1), apart), back)};
}
template <bool upper>
void triangle(Raising& r) {
  Type const type{DType::i64, r.x().sizes()};
  std::size_t const rank = type.sizes.size();
  Term const limit = r.to.counting(type, rank - 2) + r.node.attrs.ints[0].value;
  r.out = {choose(compare(upper ? "GE" : "LE", r.to.counting(type, rank - 1), limit), r.x(), 0)};
}
void cat(Raising& r) {
  Type const type = r.result();
  std::vector<Term> parts;
  for (std::size_t k = 0; k < r.node.inputs.size(); ++k)
    if (r.x(k).rank() == type.sizes.size()) parts.push_back(convert(r.x(k), type.dtype));
  r.out = {joined(parts, place(r.node.attrs.ints[0], type.sizes.size()))};
}

void full(Raising& r) {
  auto reader = r.attrs();
  r.out = {r.to.number(reader.num(), r.result())};
}
// What its attributes alone decide, element by element.
void computed(Raising& r) {
  Type const type = r.result();
  auto const count = static_cast<std::size_t>(product_of(type.sizes));
  auto const buffer = base::make_ref<base::Buffer>(static_cast<I>(count) * base::bytes_of(type.dtype));
  Strided out{buffer->data(), type.dtype, type.sizes, base::contiguous_strides(type.sizes)};
  evaluate(*r.node.op, {}, {}, r.node.attrs, std::span(&out, 1));
  Literal literal{type, {}, {}};
  for (std::size_t i = 0; i < count; ++i)
    if (base::is_real(type.dtype))
      literal.reals.push_back(out.real(static_cast<I>(i)));
    else
      literal.wholes.push_back(out.whole(static_cast<I>(i)));
  r.out = {r.to.literal(std::move(literal))};
}
void arange(Raising& r) {
  Type const type = r.result();
  auto const& n = r.node.attrs.nums;
  bool const whole = std::ranges::all_of(n, [](Scalar const& number) { return number.kind != ScalarKind::real; });
  Term const index = r.to.counting({whole ? DType::i64 : DType::f64, type.sizes}, 0);
  auto const number = [&](std::size_t k) { return whole ? Term(n[k].whole) : Term(n[k].real); };
  Term const steps = n[2].real == 1 ? index : index * number(2);
  r.out = {convert(n[0].real == 0 ? steps : steps + number(0), type.dtype)};
}

constexpr I low_word = 0xFFFFFFFF;
// The high and low word of the product of words in i64 and a constant word, by halves, so that nothing overflows.
std::pair<Term, Term> product_words(Term x, I factor) {
  Term const high = x * (factor >> 16), low = x * (factor & 0xFFFF);
  return {(high + low / 0x10000) / 0x10000, ((high & 0xFFFF) * 0x10000 + low) & low_word};
}
std::array<Term, 4> philox_blocks(Writer& to, I count, I seed, I offset) {
  Type const type{DType::i64, {count}};
  Term const block = to.counting(type, 0);
  auto const word = [&](I number) { return to.number(number & low_word, type); };
  std::array<Term, 4> counter{block & low_word, block / (low_word + 1), word(offset), word(offset >> 32)};
  std::array<I, 2> key{seed & low_word, seed >> 32 & low_word};
  for (int round = 0; round < 10; ++round) {
    auto const [even_high, even_low] = product_words(counter[0], 0xD2511F53);
    auto const [odd_high, odd_low] = product_words(counter[2], 0xCD9E8D57);
    counter = {odd_high ^ counter[1] ^ Term(key[0]), odd_low, even_high ^ counter[3] ^ Term(key[1]), even_low};
    key = {(key[0] + 0x9E3779B9) & low_word, (key[1] + 0xBB67AE85) & low_word};
  }
  return counter;
}
// Columns side by side, read row by row as the sizes of the result.
Term interleaved(std::span<Term const> columns, Type const& type) {
  I const rows = columns[0].sizes()[0];
  std::vector<Term> apart;
  for (auto const column : columns) apart.push_back(reshaped(column, {rows, 1}));
  return reshaped(cut(reshaped(joined(apart, 1), {rows * static_cast<I>(columns.size())}), 0, 0, product_of(type.sizes)), type.sizes);
}
Term uniform(Raising& r, AttrReader& reader) {  // f32 holds its 24 bits
  I const seed = reader.number().value, offset = reader.number().value;
  auto lanes = philox_blocks(r.to, (product_of(r.result().sizes) + 3) / 4, seed, offset);
  for (auto& lane : lanes) lane = convert(lane / 256, DType::f32) * 0x1p-24;
  return interleaved(lanes, r.result());
}
void rand(Raising& r) {
  auto reader = r.attrs();
  reader.list();
  r.out = {convert(uniform(r, reader), r.result().dtype)};
}
void randn(Raising& r) {
  auto reader = r.attrs();
  reader.list();
  I const seed = reader.number().value, offset = reader.number().value;
  auto const lanes = philox_blocks(r.to, (product_of(r.result().sizes) + 1) / 2, seed, offset);
  auto const fraction = [](Term high, Term low) { return convert(high * 0x200000 + low / 2048, DType::f64); };
  Term const radius = unary("sqrt", unary("log", (fraction(lanes[0], lanes[1]) + 1) * 0x1p-53) * -2);
  Term const angle = fraction(lanes[2], lanes[3]) * (2 * std::numbers::pi * 0x1p-53);
  r.out = {convert(interleaved(std::array{radius * unary("cosine", angle), radius * unary("sine", angle)}, r.result()), r.result().dtype)};
}
void randint(Raising& r) {
  auto reader = r.attrs();
  I const low = reader.number().value, high = reader.number().value;
  reader.list();
  Term const number = convert(convert(uniform(r, reader), DType::f64) * static_cast<double>(high - low), DType::i64);
  r.out = {convert(number + low, r.result().dtype)};
}
}  // namespace

std::span<RaiseRule const> raised_shape() {
  static constexpr RaiseRule rules[] = {
      // clang-format off
      {.op = "detach", .write = [](Raising& r) { r.out = {r.x()}; }},
      {.op = "reshape", .write = to_result_sizes},
      {.op = "unsqueeze", .write = to_result_sizes},
      {.op = "squeeze", .write = to_result_sizes},
      {.op = "permute", .write = permute},
      {.op = "transpose", .write = transpose},
      {.op = "expand", .write = expand},
      {.op = "slice", .write = slice},
      {.op = "slice_grad", .write = slice_grad},
      {.op = "select", .write = select},
      {.op = "unfold", .write = unfold},
      {.op = "flip", .write = flip},
      {.op = "diagonal", .write = diagonal},
      {.op = "diagonal_grad", .write = diagonal_grad},
      {.op = "tril", .write = triangle<false>},
      {.op = "triu", .write = triangle<true>},
      {.op = "cat", .write = cat},
      {.op = "full", .write = full},
      {.op = "constant", .write = computed},
      {.op = "arange", .write = arange},
      {.op = "rand", .write = rand},
      {.op = "randn", .write = randn},
      {.op = "randint", .write = randint},
      {.op = "randperm", .write = computed},
      // clang-format on
  };
  return rules;
}

}  // namespace tenon::ir::hlo
