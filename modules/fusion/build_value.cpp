// How a loop nest computes single values: pointwise rows, reductions, and the gathers that have a form at one point.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :builder;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::DType;
using ir::Dim;
using ir::Dims;
using ir::Monoid;
using ir::Node;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

// The rows of nodes that are not plain pointwise: how each is computed.
using Maker = int (Builder::*)(Node const&, Link const*);
struct MakerOf {
  ir::OpDef const* op;
  Maker make;
};

int Builder::compute(Node const& node, Link const* chain) {
  static constexpr MakerOf makers[] = {
      {&ops::full, &Builder::constant},         {&ops::arange, &Builder::count_up},    {&ops::gather, &Builder::gathered},
      {&ops::index_select, &Builder::gathered}, {&ops::embedding, &Builder::gathered}, {&ops::slice_grad, &Builder::padded},
      {&ops::tril, &Builder::triangle},         {&ops::triu, &Builder::triangle},      {&ops::scatter_add, &Builder::scatter},
      {&ops::cat, &Builder::concatenate},
  };
  if (node.op->geometry) {  // a view that is no view here: a copy, in whose operand's dims the space may be
    int const from = node.inputs[0].value;
    bool const back = node.op == &ops::reshape && chain && chain->op == &ops::reshape &&
                      std::ranges::equal(std::span(chain->attrs.ints).subspan(1), std::span(meta(from).sizes));
    return emit(from, back ? chain->next : link(node.op, node.attrs, chain, {node.first, 1}));
  }
  if (reduction_of(*node.op) != Monoid::none) return reduce(node, chain);
  for (auto const& [op, make] : makers)
    if (op == node.op) return (this->*make)(node, chain);
  auto const& result = meta(node.first);
  Step step{.kind = Step::Kind::op, .dtype = result.dtype, .op = node.op, .attrs = node.attrs};
  for (auto const& input : node.inputs) {
    int const in = operand(input, result.sizes, chain);
    if (in < 0) return -1;
    step.in.push_back(in);
  }
  bool const copies = node.op->copy && kernel_.steps[at(step.in[0])].dtype == result.dtype;
  return copies ? step.in[0] : add(std::move(step));
}

int Builder::reduce(Node const& node, Link const* chain) {
  int const x = node.inputs[0].value, r = node.first;
  auto const monoid = reduction_of(*node.op);
  bool const points = product(meta(x).sizes) == product(sizes_);
  Roles const has = points ? over_all : static_cast<Roles>(over_batch | over_rows);
  if (!points && product(meta(x).sizes) != elements(has)) return refuse(Refusal::space);
  auto const mask = reduced_dims(node, dims_with(has));
  if (!mask) return refuse(Refusal::space);
  Roles over = over_of(*mask);
  if (!points) over &= static_cast<Roles>(~over_columns);
  if (over == 0) return refuse(Refusal::reduction);
  auto const found = row_major(r, chain);
  if (!found) return refuse(Refusal::index);
  Dim step = 1;
  for (std::size_t d = sizes_.size(); d-- > 0;) {
    bool const kept = (has & roles_of(roles_[d])) && !(over & roles_of(roles_[d]));
    Dim const expected = kept && !is_one(sizes_[d]) ? step : Dim(0);
    if (found->strides[d] != expected) return refuse(Refusal::order);
    if (kept) step = step * sizes_[d];
  }
  if (!is_zero(found->offset)) return refuse(Refusal::order);
  int in = emit(x, embed(meta(x).sizes, has));
  if (in < 0) return -1;
  auto const& result = meta(r);
  bool const truth = node.op == &ops::any || node.op == &ops::all;
  if (truth && meta(x).dtype != DType::boolean) in = call(ops::ne, DType::boolean, {in, number(ir::Scalar(0))});
  DType const wide = result.dtype == DType::f64 || !base::is_real(result.dtype) ? result.dtype : DType::f32;
  if (!truth)
    in = cast(
        in, base::is_real(kernel_.steps[at(in)].dtype) && wide == DType::f32 && kernel_.steps[at(in)].dtype != DType::f64 ? kernel_.steps[at(in)].dtype : wide);
  bool const average = monoid == Monoid::avg;
  Step combined{.kind = Step::Kind::reduce, .dtype = truth ? DType::boolean : wide, .combine = average ? Monoid::sum : monoid, .over = over};
  combined.in.push_back(in);
  int done = add(std::move(combined));
  if (average) {
    Dim count = 1;
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (over & roles_of(roles_[d])) count = count * sizes_[d];
    done = call(ops::div, wide, {done, number(ir::Scalar(count))});
  }
  return done;
}

int Builder::constant(Node const& node, Link const*) {
  auto const& result = meta(node.first);
  auto scalar = node.attrs.nums[0];
  if (!base::is_real(result.dtype) && scalar.kind == ir::ScalarKind::real && scalar.node < 0)
    scalar = result.dtype == DType::boolean ? ir::Scalar(scalar.real != 0) : ir::Scalar(base::truncate(scalar.real));
  return cast(number(scalar), result.dtype);
}

int Builder::count_up(Node const& node, Link const* chain) {
  auto const& result = meta(node.first);
  auto const start = node.attrs.nums[0], step = node.attrs.nums[2];
  bool const whole = start.kind != ir::ScalarKind::real && step.kind != ir::ScalarKind::real;
  DType const type = whole ? DType::i64 : DType::f64;
  int place = coordinate(result.sizes, 0, chain);
  if (place < 0) return -1;
  if (!(whole && step.node < 0 && step.whole == 1)) place = call(ops::mul, type, {cast(place, type), number(step)});
  if (!(whole && start.node < 0 && start.whole == 0)) place = call(ops::add, type, {place, number(start)}, ir::Attrs{}.with_num(ir::Scalar(1)));
  return cast(place, result.dtype);
}

// x at the place that an index names along one dim.
int Builder::gathered(Node const& node, Link const* chain) {
  bool const table = node.op == &ops::embedding;
  int const x = node.inputs[0].value, index = node.inputs[1].value;
  int const table_root = analysis_.places[at(x)].root;
  if (index < 0 || inside(table_root)) return refuse(Refusal::order);
  if (maker(table_root) >= 0 && inlined(graph_.nodes[at(maker(table_root))])) return refuse(Refusal::index);  // it lies in no memory
  auto const &from = meta(x), &result = meta(node.first);
  auto const& place = analysis_.places[at(x)];
  auto const dim = table ? std::size_t{0} : at(base::wrap_dim(node.op->name, node.attrs.ints[0].value, from.rank()));
  Dims strides(table ? std::span<Dim const>() : std::span<Dim const>(place.strides));
  Link const* to_index = chain;
  if (table) {  // rows of a table, an index each
    for (std::size_t d = 0; d + 1 < result.sizes.size(); ++d) strides.push_back(0);
    strides.push_back(place.strides[1]);
    Dims ones = meta(index).sizes;
    ones.push_back(1);
    to_index = to_sizes(ops::reshape, ones, to_sizes(ops::expand, result.sizes, chain));
  } else {
    strides[dim] = 0;
    if (node.op == &ops::index_select) {
      Dims ones;
      for (std::size_t d = 0; d < result.sizes.size(); ++d) ones.push_back(d == dim ? result.sizes[d] : Dim(1));
      to_index = to_sizes(ops::reshape, ones, to_sizes(ops::expand, result.sizes, chain));
    }
  }
  auto const found = layout(result.sizes, strides, place.offset, result.dtype, chain);
  if (!found) return refuse(Refusal::index);
  int const where = emit(index, to_index);
  if (where < 0) return -1;
  return load(place.root, *found, {.index = cast(where, DType::i64), .index_stride = place.strides[dim], .index_size = from.sizes[dim]}, node.op->name);
}

// `value` where the coordinate along `dim` of these sizes lies in its range from `start`, 0 elsewhere.
int Builder::guarded(int value, Dims const& sizes, std::size_t dim, Dim start, Link const* chain) {
  auto const& place = analysis_.places[at(value)];
  if (inside(place.root) || (maker(place.root) >= 0 && inlined(graph_.nodes[at(maker(place.root))]))) return refuse(Refusal::index);
  auto const found = layout(sizes, place.strides, place.offset - start * place.strides[dim], meta(value).dtype, chain);
  if (!found) return refuse(Refusal::index);
  int const c = coordinate(sizes, dim, chain);
  if (c < 0) return -1;
  int const low = call(ops::ge, DType::boolean, {c, number(ir::Scalar(start))});
  int const high = call(ops::lt, DType::boolean, {c, number(ir::Scalar(start + meta(value).sizes[dim]))});
  return load(place.root, *found, {.guard = call(ops::logical_and, DType::boolean, {low, high})});
}
int Builder::padded(Node const& node, Link const* chain) {
  ir::AttrReader reader{node.attrs};
  reader.list();
  auto const& result = meta(node.first);
  auto const dim = at(base::wrap_dim("slice_grad", reader.number().value, result.rank()));
  Dim start = reader.number();
  if (start.value < 0) start = start + result.sizes[dim];
  return guarded(node.inputs[0].value, result.sizes, dim, start, chain);
}
int Builder::concatenate(Node const& node, Link const* chain) {
  auto const& result = meta(node.first);
  auto const dim = at(base::wrap_dim("cat", node.attrs.ints[0].value, result.rank()));
  Dim start = 0;
  int sum = -1, c = -1;
  for (auto const& input : node.inputs) {
    int part = guarded(input.value, result.sizes, dim, start, chain);
    if (part < 0) return -1;
    part = cast(part, result.dtype);
    if (sum >= 0) {
      c = coordinate(result.sizes, dim, chain);
      part = call(ops::where, result.dtype, {call(ops::lt, DType::boolean, {c, number(ir::Scalar(start))}), sum, part});
    }
    sum = part;
    start = start + meta(input.value).sizes[dim];
  }
  return sum;
}
int Builder::triangle(Node const& node, Link const* chain) {
  auto const& result = meta(node.first);
  bool const lower = node.op == &ops::tril;
  int const x = operand(node.inputs[0], result.sizes, chain);
  int const row = coordinate(result.sizes, result.sizes.size() - 2, chain), column = coordinate(result.sizes, result.sizes.size() - 1, chain);
  if (x < 0 || row < 0 || column < 0) return -1;
  int const edge = call(ops::add, DType::i64, {row, number(ir::Scalar(node.attrs.ints[0]))}, ir::Attrs{}.with_num(ir::Scalar(1)));
  return call(ops::where, result.dtype, {call(lower ? ops::le : ops::ge, DType::boolean, {column, edge}), x, number(ir::Scalar(0))});
}
// scatter_add of one place along dim: the source where the coordinate is that place.
int Builder::scatter(Node const& node, Link const* chain) {
  auto const& result = meta(node.first);
  auto const dim = at(base::wrap_dim("scatter_add", node.attrs.ints[0].value, result.rank()));
  int const x = operand(node.inputs[0], result.sizes, chain), index = operand(node.inputs[1], result.sizes, chain),
            source = operand(node.inputs[2], result.sizes, chain);
  int const c = coordinate(result.sizes, dim, chain);
  if (x < 0 || index < 0 || source < 0 || c < 0) return -1;
  Step checked{.kind = Step::Kind::op, .dtype = DType::i64, .op = &checked_index};
  checked.attrs.text = node.op->name;
  checked.in.push_back(cast(index, DType::i64)), checked.in.push_back(number(ir::Scalar(result.sizes[dim])));
  int const there = call(ops::eq, DType::boolean, {add(std::move(checked)), c});
  auto const& start = kernel_.steps[at(x)];
  bool const zeros = start.kind == Step::Kind::number && start.number.node < 0 && start.number.real == 0;
  int const added = call(ops::where, result.dtype, {there, source, number(ir::Scalar(0))});
  return zeros ? added : call(ops::add, result.dtype, {x, added}, ir::Attrs{}.with_num(ir::Scalar(1)));
}

}  // namespace tenon::fusion
