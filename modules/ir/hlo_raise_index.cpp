// Rules of ops that pick and place elements by an index operand, of sorting, and of collectives. Indices are taken to be in range: what lies beyond is an Error
// in Tenon and clamped or dropped by XLA.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;

bool none(Term x) { return contains(x.sizes(), 0); }
Term whole_index(Term index) { return base::is_real(index.dtype()) ? convert(index, DType::i64) : index; }  // an empty one may have any dtype
// Adds in what sums need, booleans by or: place_by(x, updates, word).
template <class F>
Term added(Term x, Term updates, F place_by) {
  DType const type = x.dtype();
  if (type == DType::boolean) return place_by(x, updates, "or");
  return convert(place_by(convert(x, working(type)), convert(updates, working(type)), "add"), type);
}
Term added_rows(Term x, std::size_t axis, Term index, Term updates) {
  return added(x, updates, [&](Term to, Term from, std::string_view word) { return put(to, axis, index, from, word); });
}
Term added_each(Term x, std::size_t axis, Term index, Term updates) {
  return added(x, updates, [&](Term to, Term from, std::string_view word) { return put_each(to, axis, index, from, word); });
}

void embedding(Raising& r) { r.out = {taken(r.x(0), 0, whole_index(r.x(1)))}; }
void embedding_grad(Raising& r) {
  Term const zeros = r.to.number(0, r.result());
  r.out = {none(r.x(0)) ? zeros : added_rows(zeros, 0, r.x(1), r.x(0))};
}

// Operand, index and source with at least one dim: a 0-d one is its only element.
Sizes at_least_one(Term x, std::size_t rank) { return x.rank() == 0 ? Sizes(rank, 1) : x.sizes(); }
void gather(Raising& r) {
  Term const x = r.x(0), index = r.x(1);
  if (x.rank() == 0) return void(r.out = {broadcast(x, r.result().sizes)});
  Term const places = reshaped(whole_index(index), at_least_one(index, x.rank()));
  r.out = {reshaped(taken_each(x, place(r.node.attrs.ints[0], x.rank()), places), r.result().sizes)};
}
template <bool adds>
void scatter(Raising& r) {
  if (none(r.x(1))) return void(r.out = {r.x(0)});
  Term const x = reshaped(r.x(0), at_least_one(r.x(0), 1)), index = reshaped(r.x(1), at_least_one(r.x(1), 1));
  Term source = reshaped(r.x(2), at_least_one(r.x(2), 1));
  for (std::size_t d = 0; d < source.rank(); ++d) source = cut(source, d, 0, index.sizes()[d]);
  auto const axis = place(r.node.attrs.ints[0], x.rank());
  r.out = {reshaped(adds ? added_each(x, axis, index, source) : put_each(x, axis, index, source, {}), r.result().sizes)};
}
void index_select(Raising& r) {
  Term const x = r.x(0), index = r.x(1);
  if (x.rank() == 0) return void(r.out = {x});
  r.out = {reshaped(taken(x, place(r.node.attrs.ints[0], x.rank()), whole_index(index)), r.result().sizes)};
}
void index_add(Raising& r) {
  Term const x = r.x(0), index = reshaped(r.x(1), at_least_one(r.x(1), 1));
  double const alpha = r.attrs().num().real;
  DType const type = x.dtype();
  Term source = r.x(2);
  if (alpha != 1 && type != DType::boolean) {
    Term const wide = convert(source, working(type));
    source = convert(wide * (base::is_real(type) ? Term(alpha) : Term(base::truncate(alpha))), type);
  }
  if (alpha != 1 && type == DType::boolean) source = source & r.to.number(base::truncate(alpha) != 0, source.type());
  if (none(index)) return void(r.out = {x});
  if (x.rank() > 0) return void(r.out = {added_rows(x, place(r.node.attrs.ints[0], x.rank()), index, source)});
  r.out = {type == DType::boolean ? x | source : convert(convert(x, working(type)) + convert(source, working(type)), type)};
}

// -- several indices ------------------------------------------------------------------------------------------------------------------------

// The dims of x that a list of indices names, and where the dims of the indices stand: in place of adjacent ones, else in front.
struct Named {
  Sizes dims;
  std::size_t at = 0;
};
Named named_by(Raising& r, std::size_t first, std::size_t rank) {
  auto reader = r.attrs();
  auto const list = reader.list();
  Named named;
  for (std::size_t k = first; k < r.node.inputs.size(); ++k)
    named.dims.push_back(list.empty() ? static_cast<I>(k - first) : static_cast<I>(place(list[k - first], rank)));
  auto const [low, high] = std::ranges::minmax(named.dims);
  if (high - low + 1 == std::ssize(named.dims)) named.at = static_cast<std::size_t>(low);
  return named;
}
// Indices from operand `first` on as places, those below 0 counted from the end.
Term places(Raising& r, std::size_t first, Named const& named) {
  Sizes block;
  for (std::size_t k = first; k < r.node.inputs.size(); ++k) {
    auto const& sizes = r.x(k).sizes();
    if (sizes.size() > block.size()) block.insert(block.begin(), sizes.size() - block.size(), 1);
    for (std::size_t d = 0; d < sizes.size(); ++d)
      if (sizes[d] != 1) block[block.size() - sizes.size() + d] = sizes[d];
  }
  std::vector<Term> coordinates;
  for (std::size_t k = first; k < r.node.inputs.size(); ++k) {
    Term const at = broadcast(convert(r.x(k), DType::i64), block);
    coordinates.push_back(choose(compare("LT", at, 0), at + r.x(0).sizes()[static_cast<std::size_t>(named.dims[k - first])], at));
  }
  return places_of(coordinates);
}
void index(Raising& r) {
  auto const named = named_by(r, 1, r.x().rank());
  r.out = {taken_at(r.x(), named.dims, named.at, places(r, 1, named))};
}
Term total(Term x, Term y) {
  DType const type = x.dtype();
  return type == DType::boolean ? x | y : convert(convert(x, working(type)) + convert(y, working(type)), type);
}
// Under a mask the values are one for all places, or the k-th is for the k-th place.
void put_masked(Raising& r) {
  Term const x = r.x(0), mask = r.x(2);
  Term given = r.x(1);
  if (r.node.inputs.size() != 3) base::fail("index_put has no form in StableHLO with a mask beside other indices");
  auto reader = r.attrs();
  auto const list = reader.list();
  std::size_t const first = list.empty() ? 0 : place(list[0], x.rank()), behind = x.rank() - first - mask.rank();
  Sizes sizes = given.sizes(), line(x.rank(), 1);
  sizes.insert(sizes.begin(), first + 1 + behind - sizes.size(), 1);
  std::ranges::copy(mask.sizes(), line.begin() + static_cast<I>(first));
  Term const wide_mask = broadcast(reshaped(mask, line), x.sizes());
  I const count = sizes[first];
  given = reshaped(given, sizes);
  Sizes spread_sizes(sizes.begin(), sizes.begin() + static_cast<I>(first));
  if (count == 1) {
    spread_sizes.insert(spread_sizes.end(), mask.rank(), 1);
  } else {
    I const all = std::accumulate(mask.sizes().begin(), mask.sizes().end(), I{1}, std::multiplies{});
    Term const number = running_sum(convert(reshaped(mask, {all}), DType::i64), 0) - 1;
    given = taken(given, first, binary("maximum", number, 0));
    spread_sizes.insert(spread_sizes.end(), mask.sizes().begin(), mask.sizes().end());
  }
  spread_sizes.insert(spread_sizes.end(), sizes.begin() + static_cast<I>(first) + 1, sizes.end());
  given = broadcast(reshaped(given, spread_sizes), x.sizes());
  r.out = {choose(wide_mask, r.node.attrs.ints.back().value ? total(x, given) : given, x)};
}
void index_put(Raising& r) {
  Term const x = r.x(0);
  bool masks = false, empty = none(r.x(1));
  for (std::size_t k = 2; k < r.node.inputs.size(); ++k) masks = masks || r.x(k).dtype() == DType::boolean, empty = empty || none(r.x(k));
  if (empty) return void(r.out = {x});
  if (masks) return put_masked(r);
  auto const named = named_by(r, 2, x.rank());
  Term const at = places(r, 2, named);
  Sizes sizes;
  for (std::size_t d = 0; d < x.rank(); ++d)
    if (!contains(named.dims, static_cast<I>(d))) sizes.push_back(x.sizes()[d]);
  sizes.insert(sizes.begin() + static_cast<I>(named.at), at.sizes().begin(), at.sizes().end() - 1);
  Term const given = broadcast(r.x(1), sizes);
  auto const place_by = [&](Term to, Term from, std::string_view word) { return put_at(to, named.dims, named.at, at, from, word); };
  r.out = {r.node.attrs.ints.back().value ? added(x, given, place_by) : place_by(x, given, {})};
}

// -- places by count ------------------------------------------------------------------------------------------------------------------------

// How many along the last dim hold.
Term counted_true(Term holds, DType dtype) { return folded("add", convert(holds, dtype), {static_cast<I>(holds.rank()) - 1}, 0); }
void searchsorted(Raising& r) {
  auto reader = r.attrs();
  reader.flag();
  bool const right = reader.flag() || reader.number().value == 2;
  Term row = r.x(0), x = r.x(1);
  if (r.has(2)) row = taken_each(row, row.rank() - 1, r.x(2));
  bool const real = base::is_real(row.dtype()) || base::is_real(x.dtype());
  DType const type = row.dtype() == x.dtype() ? row.dtype() : real ? DType::f64 : DType::i64;
  row = convert(row, type), x = convert(x, type);
  I const n = row.sizes().back();
  Type const counts{DType::i64, x.sizes()};
  Term low = r.to.number(0, counts), high = r.to.number(n, counts);
  for (I left = n; left > 0; left /= 2) {  // halves what is left, as the evaluator does
    Term const open = compare("LT", low, high), middle = low + (high - low) / 2, at = binary("minimum", middle, n - 1);
    Term const value = row.rank() == 1 ? taken(row, 0, at) : taken_each(row, row.rank() - 1, at);
    Term const on = !compare(right ? "GT" : "GE", value, x);
    low = choose(open & on, middle + 1, low);
    high = choose(open & !on, middle, high);
  }
  r.out = {convert(low, r.result().dtype)};
}
void repeat_places(Raising& r) {  // element j stands where the sums of repeats pass j
  Type const grid{DType::i64, {r.result().sizes[0], r.x().sizes()[0]}};
  Term const ends = broadcast(running_sum(convert(r.x(), DType::i64), 0), grid.sizes);
  r.out = {counted_true(compare("LE", ends, r.to.counting(grid, 0)), DType::i64)};
}
void one_hot(Raising& r) {
  Type const type{r.x().dtype(), r.result().sizes};
  Sizes each = r.x().sizes();
  each.push_back(1);
  r.out = {convert(compare("EQ", broadcast(reshaped(r.x(), each), type.sizes), r.to.counting(type, type.sizes.size() - 1)), DType::i64)};
}
// A group of one: nothing moves.
void alone(Raising& r) {
  if (auto const size = r.node.attrs.ints.back().value; size != 1)
    base::fail("{} has no form in the text of one process: its group has {}", r.node.op->name, size);
  r.out = {r.x()};
}

// NaN is larger than any number; equal ones stay in order.
void sort(Raising& r) {
  Term const x = r.x(0);
  if (x.rank() == 0) return void(r.out = {x, r.to.number(0, r.result(1))});
  auto const axis = place(r.node.attrs.ints[0], x.rank());
  bool const descending = r.node.attrs.ints[1].value != 0, real = base::is_real(x.dtype());
  auto const before = r.to.region({x.dtype(), x.dtype(), DType::i64, DType::i64}, [&](std::span<Term const> keys) {
    if (!real) return compare(descending ? "GT" : "LT", keys[0], keys[1]);
    Term const a = keys[descending ? 1 : 0], b = keys[descending ? 0 : 1];
    return compare("LT", a, b) | (compare("NE", b, b) & compare("EQ", a, a));
  });
  r.out = r.to.write("sort", std::array{x, r.to.counting(r.result(1), axis)}, {r.result(0), r.result(1)},
                     {{"dimension", static_cast<I>(axis)}, {"is_stable", true}}, {before});
}
}  // namespace

std::span<RaiseRule const> raised_index() {
  static constexpr RaiseRule rules[] = {
      // clang-format off
      {.op = "embedding", .write = embedding},
      {.op = "embedding_grad", .write = embedding_grad},
      {.op = "gather", .write = gather},
      {.op = "scatter_add", .write = scatter<true>},
      {.op = "scatter", .write = scatter<false>},
      {.op = "index_select", .write = index_select},
      {.op = "index_add", .write = index_add},
      {.op = "index", .write = index},
      {.op = "index_put", .write = index_put},
      {.op = "searchsorted", .write = searchsorted},
      {.op = "repeat_interleave.Tensor", .write = repeat_places},
      {.op = "one_hot", .write = one_hot},
      {.op = "sort", .write = sort},
      {.op = "all_reduce", .write = alone},
      {.op = "all_gather", .write = alone},
      {.op = "reduce_scatter", .write = alone},
      {.op = "all_to_all", .write = alone},
      {.op = "broadcast", .write = alone},
      {.op = "reduce", .write = alone},
      {.op = "collective_permute", .write = alone},
      // clang-format on
  };
  return rules;
}

}  // namespace tenon::ir::hlo
