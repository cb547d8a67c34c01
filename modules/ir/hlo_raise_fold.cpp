// Rules of reductions, scans and products. Sums of small floats run in f32; scans by doubling: each step adds what lies one, two, four … places before.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;

Sizes dims_of(AttrReader& reader, std::string_view op, std::size_t rank) {
  auto const mask = dim_mask(op, reader.list(), static_cast<int>(rank));
  Sizes dims;
  for (std::size_t d = 0; d < rank; ++d)
    if (mask[d]) dims.push_back(static_cast<I>(d));
  return dims;
}
void sum(Raising& r) {
  auto reader = r.attrs();
  Term const x = r.x();
  Type const result = r.result();
  auto const dims = dims_of(reader, r.node.op->name, x.rank());
  bool const to_real = base::is_real(result.dtype), from_real = base::is_real(x.dtype());
  DType const wide = to_real && !from_real ? DType::f64 : from_real ? (result.dtype == DType::f64 ? DType::f64 : working(x.dtype())) : DType::i64;
  bool const product = r.rule.word == "multiply", average = r.node.op->combine == Monoid::avg;
  Term total = folded(r.rule.word, convert(x, wide), dims, product ? 1 : 0);
  if (average) {
    double count = 1;
    for (auto const d : dims) count *= static_cast<double>(x.sizes()[static_cast<std::size_t>(d)]);
    total = total / count;
  }
  r.out = {reshaped(convert(total, result.dtype), result.sizes)};
}
template <bool largest>
void most(Raising& r) {
  auto reader = r.attrs();
  Term const x = r.x();
  auto const dims = dims_of(reader, r.node.op->name, x.rank());
  r.out = {reshaped(folded(most_word(x.dtype(), largest), x, dims, least(x.dtype(), largest)), r.result().sizes)};
}
template <bool all>
void truth(Raising& r) {
  auto reader = r.attrs();
  auto const dims = dims_of(reader, r.node.op->name, r.x().rank());
  r.out = {reshaped(folded(r.rule.word, convert(r.x(), DType::boolean), dims, all), r.result().sizes)};
}
template <bool largest>
void place_of_most(Raising& r) {  // the first place whose element equals the extreme one, or is NaN
  bool const flat = r.node.attrs.ints[0].value == absent || r.x().rank() == 0;
  Term x = r.x();
  if (x.dtype() == DType::boolean) x = convert(x, DType::i32);
  if (flat) x = reshaped(x, {std::accumulate(x.sizes().begin(), x.sizes().end(), I{1}, std::multiplies{})});
  auto const dim = flat ? 0 : place(r.node.attrs.ints[0], x.rank());
  Sizes const dims{static_cast<I>(dim)};
  Sizes kept = x.sizes();
  kept[dim] = 1;
  Term const best = folded(most_word(x.dtype(), largest), x, dims, least(x.dtype(), largest));
  Term found = compare("EQ", x, broadcast(reshaped(best, kept), x.sizes()));
  if (base::is_real(x.dtype())) found = found | compare("NE", x, x);
  Term const places = choose(found, r.to.counting({DType::i64, x.sizes()}, dim), x.sizes()[dim]);
  r.out = {reshaped(folded("minimum", places, dims, x.sizes()[dim]), r.result().sizes)};
}

void cumsum(Raising& r) {
  Type const result = r.result();
  Term y = convert(r.x(), working(result.dtype));
  if (result.dtype == DType::boolean) y = convert(r.x(), DType::i64);
  auto const dim = place(r.node.attrs.ints[0], y.rank());
  for (I shift = 1; y.rank() > 0 && shift < y.sizes()[dim]; shift *= 2) y = y + padded(y, 0, dim, shift, -shift);
  r.out = {convert(y, result.dtype)};
}
template <bool largest>
void running(Raising& r) {  // of equal ones the later; NaN stays
  Term best = r.x();
  if (best.rank() == 0) return void(r.out = {best, r.to.number(0, r.result(1))});
  auto const dim = place(r.node.attrs.ints[0], best.rank());
  Term places = r.to.counting(r.result(1), dim);
  for (I shift = 1; shift < best.sizes()[dim]; shift *= 2) {
    Term const before = padded(best, least(best.dtype(), largest), dim, shift, -shift), place_before = padded(places, 0, dim, shift, -shift);
    Term keeps = compare(largest ? "GE" : "LE", best, before);
    if (base::is_real(best.dtype())) keeps = keeps | compare("NE", best, best);
    places = choose(keeps, places, place_before);
    best = choose(keeps, best, before);
  }
  r.out = {best, places};
}

void matmul(Raising& r) {  // a vector is a row on the left, a column on the right
  Type const result = r.result();
  DType const type = working(result.dtype);
  Term a = convert(r.x(0), type), b = convert(r.x(1), type);
  if (a.rank() == 1) a = reshaped(a, {1, a.sizes()[0]});
  if (b.rank() == 1) b = reshaped(b, {b.sizes()[0], 1});
  std::size_t const batch = b.rank() == 2 ? 0 : std::max(a.rank(), b.rank()) - 2;
  if (batch > 0) {  // leading dims broadcast
    Sizes lead(batch, 1);
    for (Term const x : {a, b})
      for (std::size_t d = 0; d + 2 < x.rank(); ++d)
        if (auto const size = x.sizes()[d]; size != 1) lead[batch + 2 - x.rank() + d] = size;
    for (Term* x : {&a, &b}) {
      Sizes sizes = lead;
      sizes.insert(sizes.end(), x->sizes().end() - 2, x->sizes().end());
      *x = broadcast(*x, sizes);
    }
  }
  Type product{type, a.sizes()};
  product.sizes.back() = b.sizes().back();
  auto const last = static_cast<I>(a.rank()) - 1, inner = static_cast<I>(b.rank()) - 2;
  Term const y = r.to.write("dot_general", {a, b}, std::move(product),
                            {{"lhs_batching_dimensions", counted(batch)}, {"rhs_batching_dimensions", counted(batch)},
                             {"lhs_contracting_dimensions", Sizes{last}}, {"rhs_contracting_dimensions", Sizes{inner}}});
  r.out = {convert(reshaped(y, result.sizes), result.dtype)};
}
}  // namespace

Scalar least(DType type, bool largest) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  switch (type) {
    case DType::i64:
      return largest ? std::numeric_limits<I>::min() : std::numeric_limits<I>::max();
    case DType::i32:
    case DType::i16:
    case DType::i8: {
      I const half = I{1} << (8 * base::bytes_of(type) - 1);
      return largest ? -half : half - 1;
    }
    case DType::u8:
      return largest ? 0 : 255;
    case DType::boolean:
      return !largest;
    default:
      return largest ? -inf : inf;
  }
}
std::string_view most_word(DType type, bool largest) {
  if (type == DType::boolean) return largest ? "or" : "and";
  return largest ? "maximum" : "minimum";
}

std::span<Rule const> fold_rules() {
  static constexpr Rule rules[] = {
      // clang-format off
      {.op = "sum", .word = "add", .write = sum},
      {.op = "mean", .word = "add", .write = sum},
      {.op = "prod", .word = "multiply", .write = sum},
      {.op = "amax", .write = most<true>},
      {.op = "amin", .write = most<false>},
      {.op = "any", .word = "or", .write = truth<false>},
      {.op = "all", .word = "and", .write = truth<true>},
      {.op = "argmax", .write = place_of_most<true>},
      {.op = "argmin", .write = place_of_most<false>},
      {.op = "cumsum", .write = cumsum},
      {.op = "cummax", .write = running<true>},
      {.op = "cummin", .write = running<false>},
      {.op = "matmul", .write = matmul},
      // clang-format on
  };
  return rules;
}

}  // namespace tenon::ir::hlo
