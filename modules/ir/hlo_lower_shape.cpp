// Operations that place elements: constants, broadcasts, views, padding; and slices whose start is an operand.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using base::DType;
using List = std::vector<std::int64_t>;

namespace {
Dims dims_of(std::span<std::int64_t const> sizes) {
  Dims dims;
  for (auto size : sizes) dims.push_back(size);
  return dims;
}
bool ascending(std::span<std::int64_t const> list) {
  for (std::size_t k = 0; k < list.size(); ++k)
    if (std::cmp_not_equal(list[k], k)) return false;
  return true;
}
}  // namespace

Var sized(Var x, std::span<std::int64_t const> sizes) {
  return values(x.meta().sizes) == base::Shape(sizes.begin(), sizes.end()) ? x : shaped(x, dims_of(sizes));
}
Var ordered(Var x, std::span<std::int64_t const> order) { return ascending(order) ? x : call(ops::permute, {x}, Attrs{}.with(dims_of(order))); }
Var strided(Var x, std::size_t dim, std::int64_t start, std::int64_t limit, std::int64_t stride) {
  if (start == 0 && stride == 1 && x.size(static_cast<int>(dim)).value == limit) return x;
  return call(ops::slice, {x}, Attrs{}.with(Dim(dim)).with(Dim(start)).with(Dim(limit)).with(Dim(stride)));
}

Var padded(Step& step, Var x, Item& value, std::span<std::int64_t const> low, std::span<std::int64_t const> high, std::span<std::int64_t const> interior) {
  auto const rank = static_cast<std::size_t>(x.rank());
  if (low.size() != rank || high.size() != rank || interior.size() != rank) step.refuse(std::format("padding of another rank than {}", rank));
  auto const fill = [&](Var from, Attrs const& places, Scalar number) {
    Attrs attrs = places;
    return call(ops::pad, {from}, attrs.with_num(number));
  };
  // By a number that is known; by another one with a mask of what was there.
  auto const all = [&](Var from, Scalar number) {
    for (std::size_t d = 0; d < rank; ++d) {
      auto const n = from.size(static_cast<int>(d)).value;
      if (interior[d] < 0) step.refuse(std::format("interior padding {} is negative", interior[d]));
      if (interior[d] == 0 || n < 2) continue;
      List apart = values(from.meta().sizes), joined = apart;
      apart.insert(apart.begin() + static_cast<std::ptrdiff_t>(d) + 1, 1);
      joined[d] = times(n, plus(interior[d], 1));
      List places(2 * (rank - d), 0);  // the last dims first
      places[places.size() - 1] = interior[d];
      from = fill(sized(from, apart), Attrs{}.with(dims_of(places)), number);
      from = strided(sized(from, joined), d, 0, joined[d] - interior[d], 1);
    }
    List edges;
    bool any = false;
    for (std::size_t d = rank; d-- > 0;) {
      edges.push_back(low[d]), edges.push_back(high[d]);
      any = any || low[d] != 0 || high[d] != 0;
      if (plus(plus(from.size(static_cast<int>(d)).value, low[d]), high[d]) < 0) step.refuse(std::format("padding {} and {} leaves nothing", low[d], high[d]));
    }
    return any ? fill(from, Attrs{}.with(dims_of(edges)), number) : from;
  };
  if (value.splat) return all(x, *value.splat);
  Var const kept = all(step.to.filled({DType::boolean, values(x.meta().sizes)}, Scalar(true)), Scalar(false));
  return choose(kept, all(x, scalar_of(x.meta().dtype, 0, 0)), step.to.tensor(value));
}

namespace {
void constant(Step& step) {
  auto const* found = step.op.find("value");
  auto const* literal = found ? std::get_if<Literal>(found) : nullptr;
  if (!literal) step.refuse("a constant without elements");
  auto const& type = literal->type;
  bool const real = base::is_real(type.dtype);
  auto const n = real ? literal->reals.size() : literal->wholes.size();
  if (n == 0) return step.give(step.to.filled(type, scalar_of(type.dtype, 0, 0)));
  if (n == 1) return step.give(Item{type, {}, scalar_of(type.dtype, real ? literal->reals[0] : 0, real ? 0 : literal->wholes[0])});
  std::string words;
  std::array<char, 64> digits;
  for (std::size_t i = 0; i < n; ++i) {
    auto const end =
        real ? std::to_chars(digits.begin(), digits.end(), literal->reals[i]).ptr : std::to_chars(digits.begin(), digits.end(), literal->wholes[i]).ptr;
    if (i) words += ' ';
    words.append(digits.data(), end);
  }
  step.give(create(step.to, ops::constant, Attrs{}.with_text(words).with(dims_of(type.sizes)).with(type.dtype).with(base::Device{})));
}

void broadcast(Step& step) {
  auto const& from = step.type(0).sizes;
  auto const& to = step.result().sizes;
  auto dims = step.dims("broadcast_dimensions", to.size());
  if (dims.size() != from.size()) step.refuse(std::format("{} dims named for rank {}", dims.size(), from.size()));
  for (std::size_t k = 0; k < dims.size(); ++k)
    if (auto const wide = to[static_cast<std::size_t>(dims[k])]; from[k] != 1 && from[k] != wide)
      step.refuse(std::format("size {} does not broadcast to {}", from[k], wide));
  auto const& item = step.item(0);
  if (item.splat) return step.give(Item{{item.type.dtype, to}, {}, item.splat});
  Var x = step.x();
  if (!std::ranges::is_sorted(dims)) {
    List order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](std::int64_t k) { return dims[static_cast<std::size_t>(k)]; });
    x = ordered(x, order);
  }
  List apart(to.size(), 1);
  for (std::size_t k = 0; k < dims.size(); ++k) apart[static_cast<std::size_t>(dims[k])] = from[k];
  if (!from.empty()) x = sized(x, apart);
  step.give(values(x.meta().sizes) == to ? x : call(ops::expand, {x}, Attrs{}.with(dims_of(to))));
}
// Views of a number that all elements are, are that number.
bool of_number(Step& step, List sizes) {
  auto const& item = step.item(0);
  if (!item.splat || item.made) return false;
  step.give(Item{{item.type.dtype, std::move(sizes)}, {}, item.splat});
  return true;
}
void reshape(Step& step) {
  if (base::numel(step.type(0).sizes) != base::numel(step.result().sizes))
    step.refuse(std::format("{} has other elements than {}", to_string(step.type(0)), to_string(step.result())));
  if (!of_number(step, step.result().sizes)) step.give(sized(step.x(), step.result().sizes));
}
void transpose(Step& step) {
  auto const order = step.dims("permutation", step.type(0).sizes.size());
  if (order.size() != step.type(0).sizes.size()) step.refuse(std::format("{} dims named for rank {}", order.size(), step.type(0).sizes.size()));
  if (!of_number(step, step.result().sizes)) step.give(ordered(step.x(), order));
}
void slice(Step& step) {
  auto const& from = step.type(0).sizes;
  auto const start = step.list("start_indices"), limit = step.list("limit_indices"), stride = step.list("strides", List(from.size(), 1));
  if (start.size() != from.size() || limit.size() != from.size() || stride.size() != from.size())
    step.refuse(std::format("a slice of another rank than {}", from.size()));
  for (std::size_t d = 0; d < from.size(); ++d)
    if (start[d] < 0 || limit[d] < start[d] || limit[d] > from[d] || stride[d] < 1)
      step.refuse(std::format("{}:{}:{} is no slice of size {}", start[d], limit[d], stride[d], from[d]));
  if (of_number(step, step.result().sizes)) return;
  Var x = step.x();
  for (std::size_t d = 0; d < from.size(); ++d) x = strided(x, d, start[d], limit[d], stride[d]);
  step.give(x);
}
void reverse(Step& step) {
  auto const dims = step.dims("dimensions", step.type(0).sizes.size());
  if (!of_number(step, step.type(0).sizes)) step.give(dims.empty() ? step.x() : call(ops::flip, {step.x()}, Attrs{}.with(dims_of(dims))));
}
void concatenate(Step& step) {
  if (step.count() == 0) step.refuse("no operands");
  auto const& first = step.type(0);
  auto const dim = step.whole("dimension");
  if (dim < 0 || std::cmp_greater_equal(dim, first.sizes.size())) step.refuse(std::format("dim {} of rank {}", dim, first.sizes.size()));
  std::vector<Var> parts;
  for (int k = 0; k < step.count(); ++k) {
    if (step.type(k).dtype != first.dtype || step.type(k).sizes.size() != first.sizes.size())
      step.refuse(std::format("{} beside {}", to_string(step.type(k)), to_string(first)));
    parts.push_back(step.x(k));
  }
  step.give(parts.size() == 1 ? parts[0] : concat(parts, dim));
}
void iota(Step& step) {
  auto const& to = step.result();
  auto const dim = step.whole("iota_dimension");
  if (dim < 0 || std::cmp_greater_equal(dim, to.sizes.size())) step.refuse(std::format("dim {} of rank {}", dim, to.sizes.size()));
  if (to.dtype == DType::boolean) step.refuse("booleans do not count");
  List line(to.sizes.size(), 1);
  line[static_cast<std::size_t>(dim)] = to.sizes[static_cast<std::size_t>(dim)];
  Var const x = sized(step.to.counting(line[static_cast<std::size_t>(dim)], to.dtype), line);
  step.give(line == to.sizes ? x : call(ops::expand, {x}, Attrs{}.with(dims_of(to.sizes))));
}
void pad(Step& step) {
  auto const zeros = List(step.type(0).sizes.size(), 0);
  if (!step.item(1).type.sizes.empty()) step.refuse("the padding value must be a scalar");
  Var const x = step.x();
  step.give(padded(step, x, step.item(1), step.list("edge_padding_low"), step.list("edge_padding_high"), step.list("interior_padding", zeros)));
}

// -- starts that are operands -----------------------------------------------------------------------------------------------------------------

// The first place in a dim, moved so that `count` elements lie within `size`: a number where the operand is one.
Var start_of(Step& step, int k, std::int64_t size, std::int64_t count) {
  if (!step.type(k).sizes.empty() || base::is_real(step.type(k).dtype))
    step.refuse(std::format("start {} must be a whole scalar, not {}", k, to_string(step.type(k))));
  if (count < 0 || count > size) step.refuse(std::format("a slice of {} elements of size {}", count, size));
  if (auto const known = step.known(k)) return Var(std::clamp<std::int64_t>(*known, 0, size - count));
  Var const at = cast(step.x(k), DType::i64);
  return call(ops::minimum, {call(ops::maximum, {at, 0}), size - count});
}
Var places(Step& step, Var start, std::int64_t count) { return start.is_tensor() ? start + step.to.counting(count) : step.to.counting(count) + start; }
void dynamic_slice(Step& step) {
  auto const from = step.type(0).sizes;
  auto const sizes = step.list("slice_sizes");
  if (sizes.size() != from.size() || std::cmp_not_equal(step.count(), from.size() + 1))
    step.refuse(std::format("a slice of another rank than {}", from.size()));
  std::vector<Var> starts;
  for (std::size_t d = 0; d < from.size(); ++d) starts.push_back(start_of(step, static_cast<int>(d) + 1, from[d], sizes[d]));
  if (of_number(step, sizes)) return;
  Var x = step.x();
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (sizes[d] == from[d]) continue;
    auto const start = starts[d].input.scalar.whole;
    x = starts[d].is_tensor() ? call(ops::index_select, {x, places(step, starts[d], sizes[d])}, at_dim(static_cast<std::int64_t>(d)))
                              : strided(x, d, start, start + sizes[d], 1);
  }
  step.give(x);
}
// x with `part` written from `starts` on, by the dims from `d` on: a slab along dim d is changed and put back.
Var written(Step& step, Var x, Var part, std::span<Var const> starts, std::size_t d) {
  while (d < starts.size() && x.size(static_cast<int>(d)).value == part.size(static_cast<int>(d)).value) ++d;
  if (d == starts.size()) return part;
  auto const n = x.size(static_cast<int>(d)).value, count = part.size(static_cast<int>(d)).value;
  if (starts[d].is_tensor()) {
    Var const at = places(step, starts[d], count);
    auto const dim = at_dim(static_cast<std::int64_t>(d));
    Var const slab = written(step, call(ops::index_select, {x, at}, dim), part, starts, d + 1);
    return call(ops::index_copy, {x, at, slab}, dim);
  }
  auto const start = starts[d].input.scalar.whole;
  std::vector<Var> parts;
  if (start > 0) parts.push_back(strided(x, d, 0, start, 1));
  parts.push_back(written(step, strided(x, d, start, start + count, 1), part, starts, d + 1));
  if (start + count < n) parts.push_back(strided(x, d, start + count, n, 1));
  return concat(parts, Dim(d));
}
void dynamic_update_slice(Step& step) {
  auto const from = step.type(0).sizes, sizes = step.type(1).sizes;
  if (sizes.size() != from.size() || std::cmp_not_equal(step.count(), from.size() + 2))
    step.refuse(std::format("an update of another rank than {}", from.size()));
  if (step.type(0).dtype != step.type(1).dtype) step.refuse(std::format("{} into {}", to_string(step.type(1)), to_string(step.type(0))));
  std::vector<Var> starts;
  for (std::size_t d = 0; d < from.size(); ++d) starts.push_back(start_of(step, static_cast<int>(d) + 2, from[d], sizes[d]));
  if (base::numel(sizes) == 0) return step.give(step.item(0));
  step.give(written(step, step.x(0), step.x(1), starts, 0));
}

constexpr Rule rules[] = {{"constant", constant, {}, true},
                          {"broadcast_in_dim", broadcast},
                          {"reshape", reshape},
                          {"transpose", transpose},
                          {"slice", slice},
                          {"reverse", reverse},
                          {"concatenate", concatenate},
                          {"iota", iota},
                          {"pad", pad},
                          {"dynamic_slice", dynamic_slice},
                          {"dynamic_update_slice", dynamic_update_slice}};
}  // namespace

std::span<Rule const> shape_rules() { return rules; }

}  // namespace tenon::ir::hlo
