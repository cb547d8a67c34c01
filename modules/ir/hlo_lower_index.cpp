// gather and scatter: rows of the operand, seen as a matrix of its leading places by what every window holds whole, named by their number.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using base::DType;
using List = std::vector<std::int64_t>;

namespace {
constexpr std::int64_t most_elements = std::int64_t{1} << 24;
std::size_t place(std::int64_t dim) { return static_cast<std::size_t>(dim); }
Dims dims_of(std::span<std::int64_t const> list) {
  Dims dims;
  for (auto n : list) dims.push_back(n);
  return dims;
}
std::int64_t product_of(std::span<std::int64_t const> sizes) {
  std::int64_t total = 1;
  for (auto n : sizes) total = times(total, n);
  return total;
}

// How an index array names windows of an operand: common to gather and scatter.
struct Indexing {
  List collapsed, batching, index_batching, map;  // dims of the operand but index_batching
  std::int64_t vector_dim;
  List window;            // the window's size in every dim of the operand
  List batch;             // sizes of the index array without its vector
  std::size_t split = 0;  // the operand's dims from here on are whole in every window
  List kept;              // dims of the operand that a window keeps, ascending
  Var rows;               // [batch.., kept dims before split..]: numbers of rows
  Var valid;              // [batch..]: whether the window lies within; empty if it always does
};

bool has(List const& list, std::size_t d) { return contains(list, static_cast<std::int64_t>(d)); }

// One line of numbers along dim `at` of `rank`, times a stride.
Var line(Step& step, std::int64_t n, std::int64_t stride, std::size_t at, std::size_t rank) {
  List sizes(rank, 1);
  sizes[at] = n;
  Var const x = step.to.counting(n);
  return sized(stride == 1 ? x : x * stride, sizes);
}

void number_rows(Step& step, Indexing& how, Type const& operand, int index, bool clamps) {
  auto const& sizes = operand.sizes;
  auto const rank = sizes.size();
  auto const& at = step.type(index);
  if (base::is_real(at.dtype) || at.dtype == DType::boolean) step.refuse(std::format("the index is {}", to_string(at)));
  auto const v = how.vector_dim;
  if (v < 0 || std::cmp_greater(v, at.sizes.size())) step.refuse(std::format("index_vector_dim {} of rank {}", v, at.sizes.size()));
  auto const vectors = std::cmp_equal(v, at.sizes.size()) ? 1 : at.sizes[place(v)];
  if (std::cmp_not_equal(vectors, how.map.size())) step.refuse(std::format("{} numbers an index, {} dims mapped", vectors, how.map.size()));
  for (std::size_t d = 0; d < at.sizes.size(); ++d)
    if (std::cmp_not_equal(d, v)) how.batch.push_back(at.sizes[d]);
  for (std::size_t d = 0; d < rank; ++d) {
    if (how.window[d] < 0 || how.window[d] > sizes[d]) step.refuse(std::format("a window of {} elements of size {} at dim {}", how.window[d], sizes[d], d));
    if ((has(how.collapsed, d) || has(how.batching, d)) && how.window[d] > 1)
      step.refuse(std::format("a window of {} elements at dim {}, which it does not keep", how.window[d], d));
    if (!has(how.collapsed, d) && !has(how.batching, d)) how.kept.push_back(static_cast<std::int64_t>(d));
  }
  how.split = rank;
  while (how.split > 0 && has(how.kept, how.split - 1) && how.window[how.split - 1] == sizes[how.split - 1] && !has(how.map, how.split - 1)) --how.split;
  List strides(how.split, 1);  // in rows
  for (std::size_t d = how.split; d-- > 1;) strides[d - 1] = times(strides[d], sizes[d]);
  std::size_t before = 0;
  while (before < how.kept.size() && std::cmp_less(how.kept[before], how.split)) ++before;
  auto const wide = how.batch.size() + before;
  List named = how.batch;
  named.resize(wide, 1);
  Var total, valid;
  auto const add = [&](Var part) { total = total ? total + part : part; };
  Var const indices = cast(step.x(index), DType::i64);
  for (std::size_t k = 0; k < how.map.size(); ++k) {
    auto const d = place(how.map[k]);
    Var one = std::cmp_equal(v, at.sizes.size()) ? indices
                                                 : call(ops::select,
                                                        {
                                                            indices,
                                                        },
                                                        Attrs{}.with(Dim(v)).with(Dim(k)));
    auto const last = sizes[d] - how.window[d];
    if (!clamps) {
      Var const in = call(ops::logical_and, {call(ops::ge, {one, 0}), call(ops::le, {one, last})});
      valid = valid ? call(ops::logical_and, {valid, in}) : in;
    }
    one = call(ops::minimum, {call(ops::maximum, {one, 0}), last});  // one that is not valid must not lie outside either
    if (d >= how.split) continue;
    add(sized(strides[d] == 1 ? one : one * strides[d], named));
  }
  for (std::size_t k = 0; k < how.batching.size(); ++k) {
    auto const b = how.index_batching[k];
    if (b == v || b < 0 || std::cmp_greater_equal(b, at.sizes.size()) || at.sizes[place(b)] != sizes[place(how.batching[k])])
      step.refuse(std::format("dim {} of the index does not go with dim {} of the operand", b, how.batching[k]));
    if (std::cmp_less(how.batching[k], how.split)) add(line(step, at.sizes[place(b)], strides[place(how.batching[k])], place(b > v ? b - 1 : b), wide));
  }
  for (std::size_t k = 0; k < before; ++k)
    if (auto const d = place(how.kept[k]); how.window[d] > 1) add(line(step, how.window[d], strides[d], how.batch.size() + k, wide));
  if (!total) total = step.to.filled({DType::i64, List(wide, 1)}, Scalar(0));
  for (std::size_t k = 0; k < before; ++k) named[how.batch.size() + k] = how.window[place(how.kept[k])];
  how.rows = values(total.meta().sizes) == named ? total : call(ops::expand, {total}, Attrs{}.with(dims_of(named)));
  how.valid = valid;
}

// The dims that are not named, in order, take what is left.
List interleaved(Step& step, List const& named, std::size_t rank) {
  List rest;
  for (std::size_t d = 0; d < rank; ++d)
    if (!has(named, d)) rest.push_back(static_cast<std::int64_t>(d));
  if (rest.size() + named.size() != rank) step.refuse("more dims named than there are");
  rest.insert(rest.end(), named.begin(), named.end());
  return rest;
}
void check_batching(Step& step, Indexing const& how) {
  if (how.batching.size() != how.index_batching.size())
    step.refuse(std::format("{} batching dims of the operand, {} of the index", how.batching.size(), how.index_batching.size()));
}

void gather(Step& step) {
  if (step.count() != 2) step.refuse(std::format("{} operands, 2 needed", step.count()));
  auto const operand = step.type(0);
  auto const rank = operand.sizes.size(), index_rank = step.type(1).sizes.size();
  Indexing how{step.dims("collapsed_slice_dims", rank, List{}),
               step.dims("operand_batching_dims", rank, List{}),
               step.dims("start_indices_batching_dims", index_rank, List{}),
               step.dims("start_index_map", rank, List{}),
               step.whole("index_vector_dim", static_cast<std::int64_t>(0)),
               step.list("slice_sizes"),
               {},
               0,
               {},
               {},
               {}};
  if (how.window.size() != rank) step.refuse(std::format("{} slice sizes for rank {}", how.window.size(), rank));
  check_batching(step, how);
  auto const to = step.result();
  auto const offsets = step.dims("offset_dims", to.sizes.size(), List{});
  number_rows(step, how, operand, 1, true);
  if (offsets.size() != how.kept.size()) step.refuse(std::format("{} offset dims for windows of rank {}", offsets.size(), how.kept.size()));
  if (how.batch.size() + how.kept.size() != to.sizes.size())
    step.refuse(std::format("the result has rank {}, not {}", how.batch.size() + how.kept.size(), to.sizes.size()));
  if (base::numel(to.sizes) == 0) return step.give(step.to.filled(to, scalar_of(to.dtype, 0, 0)));
  auto const leading = std::span(operand.sizes).first(how.split), trailing = std::span(operand.sizes).subspan(how.split);
  Var const matrix = sized(step.x(0), std::array{product_of(leading), product_of(trailing)});
  auto const count = base::numel(values(how.rows.meta().sizes));
  Var const found = call(ops::index_select, {matrix, sized(how.rows, std::array{count})}, at_dim(0));
  List apart = how.batch;
  for (auto d : how.kept) apart.push_back(how.window[place(d)]);
  auto const order = interleaved(step, offsets, to.sizes.size());  // order[k]: where dim k of `apart` goes
  List back(order.size());
  for (std::size_t k = 0; k < order.size(); ++k) back[place(order[k])] = static_cast<std::int64_t>(k);
  step.give(ordered(sized(found, apart), back));
}

// Updates that meet are combined by comparing every row with every index: for what no row of ours adds up.
Var met(Step& step, std::string_view name, Var rows, Var at, Var updates) {
  auto const n = rows.size(0).value, inner = rows.size(1).value, count = at.size(0).value;
  if (times(times(n, inner), count) > most_elements) step.refuse(std::format("{} rows by {} updates of {} elements are too many", n, count, inner));
  Var const here = call(ops::eq, {sized(step.to.counting(n), std::array<std::int64_t, 3>{n, 1, 1}), sized(at, std::array<std::int64_t, 3>{1, count, 1})});
  Var const each = sized(updates, std::array<std::int64_t, 3>{1, count, inner});
  Var const spread = choose(here, each, num(identity(name, rows.meta().dtype)));
  auto const all = reduced_by(name, spread, std::array{std::int64_t{1}});
  if (!all) step.refuse(std::format("updates of {} are not combined by {}", to_string(step.type(0)), name));
  return combined(name, rows, *all);
}

void scatter(Step& step) {
  if (step.count() != 3) step.refuse(std::format("{} operands: only one input with its updates is supported", step.count()));
  auto const operand = step.type(0), updates = step.type(2);
  auto const rank = operand.sizes.size(), index_rank = step.type(1).sizes.size();
  if (operand.dtype != updates.dtype) step.refuse(std::format("{} into {}", to_string(updates), to_string(operand)));
  Indexing how{step.dims("inserted_window_dims", rank, List{}),
               step.dims("input_batching_dims", rank, List{}),
               step.dims("scatter_indices_batching_dims", index_rank, List{}),
               step.dims("scatter_dims_to_operand_dims", rank, List{}),
               step.whole("index_vector_dim", static_cast<std::int64_t>(0)),
               List(rank, 1),
               {},
               0,
               {},
               {},
               {}};
  check_batching(step, how);
  auto const windows = step.dims("update_window_dims", updates.sizes.size(), List{});
  std::size_t next = 0;
  for (std::size_t d = 0; d < rank; ++d)
    if (!has(how.collapsed, d) && !has(how.batching, d)) {
      if (next == windows.size()) step.refuse(std::format("{} window dims, more are needed", windows.size()));
      how.window[d] = updates.sizes[place(windows[next++])];
    }
  if (next != windows.size()) step.refuse(std::format("{} window dims, {} needed", windows.size(), next));
  auto const name = combiner(step.region(0, 2));
  if (name.empty()) step.refuse("updates are combined by one operation, or replace what was there; this region does more");
  if (base::numel(updates.sizes) == 0 || base::numel(operand.sizes) == 0) return step.give(step.item(0));
  number_rows(step, how, operand, 1, false);
  auto const order = interleaved(step, windows, updates.sizes.size());
  for (std::size_t k = 0; k < how.batch.size(); ++k)
    if (order.size() < how.batch.size() || updates.sizes[place(order[k])] != how.batch[k])
      step.refuse(std::format("updates {} for an index {}", to_string(updates), to_string(step.type(1))));
  auto const leading = std::span(operand.sizes).first(how.split), trailing = std::span(operand.sizes).subspan(how.split);
  auto const n = product_of(leading), inner = product_of(trailing), count = base::numel(values(how.rows.meta().sizes));
  Var rows = sized(step.x(0), std::array{n, inner}), at = sized(how.rows, std::array{count}), from = sized(ordered(step.x(2), order), std::array{count, inner});
  Var valid;  // one flag a row
  if (how.valid) {
    List sizes = how.batch;
    sizes.resize(how.rows.meta().sizes.size(), 1);
    Var const wide = sized(how.valid, sizes);
    valid = sized(values(wide.meta().sizes) == values(how.rows.meta().sizes) ? wide : call(ops::expand, {wide}, Attrs{}.with(how.rows.meta().sizes)),
                  std::array{count, std::int64_t{1}});
  }
  Var made;
  if (name == "second") {  // what lies outside goes to a row of its own
    if (valid) {
      Var const outside = step.to.filled({operand.dtype, {1, inner}}, scalar_of(operand.dtype, 0, 0));
      at = choose(sized(valid, std::array{count}), at, n);
      made = strided(call(ops::index_copy, {concat(std::array{rows, outside}, 0), at, from}, at_dim(0)), 0, 0, n, 1);
    } else {
      made = call(ops::index_copy, {rows, at, from}, at_dim(0));
    }
  } else {
    bool const adds = name == "add" && operand.dtype != DType::boolean;
    if (valid) from = choose(valid, from, num(identity(name, operand.dtype)));
    made = adds ? call(ops::index_add, {rows, at, from}, at_dim(0).with_num(1.0)) : met(step, name, rows, at, from);
  }
  step.give(sized(made, operand.sizes));
}

constexpr Rule rules[] = {{"gather", gather}, {"scatter", scatter}};
}  // namespace

std::span<Rule const> index_rules() { return rules; }

}  // namespace tenon::ir::hlo
