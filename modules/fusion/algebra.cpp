// Cheaper ways to equal values, where last places may differ: one rule a line.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :build;

namespace tenon::fusion {
namespace ops = ir::ops;
using ir::Node;
using ir::Var;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

// A call with operands in the new graph.
struct Call {
  Copy& emit;
  ir::OpDef const& op;
  std::span<ir::Input const> inputs;
  ir::Attrs const& attrs;
  bool sole;  // nothing but sums reads the first operand

  ir::Graph const& graph() const { return emit.to; }
  Var value(ir::Input const& input) const { return {input.value >= 0 ? &emit : nullptr, input}; }
  ir::Meta const& meta(ir::Input const& input) const { return *graph().values[at(input.value)].meta; }
  ir::Dims const& sizes(ir::Input const& input) const { return meta(input).sizes; }
  // The call that makes a value, if it is one of `by`.
  Node const* made(ir::Input const& input, ir::OpDef const& by) const {
    int const n = input.value < 0 ? -1 : graph().values[at(input.value)].node;
    return n >= 0 && graph().nodes[at(n)].op == &by ? &graph().nodes[at(n)] : nullptr;
  }
  static bool is(ir::Scalar const& scalar, double wish) {
    return scalar.node < 0 && (scalar.kind == ir::ScalarKind::real ? scalar.real : static_cast<double>(scalar.whole)) == wish;
  }
  // a - b, not scaled.
  Node const* difference(ir::Input const& input) const {
    auto const* const node = made(input, ops::sub);
    return node && is(node->attrs.nums[0], 1) && node->inputs[1].value >= 0 ? node : nullptr;
  }
  static std::span<ir::Dim const> dims_of(Node const& reduction) {
    ir::AttrReader reader{reduction.attrs};
    return reader.list();
  }
  // Whether z = sum(exp(x - amax(x))) along the same dims: 1 at least where it is finite. Gives the exp.
  std::optional<ir::Input> shifted_exp(ir::Input const& z) const {
    auto const* const sum = made(z, ops::sum);
    auto const* const e = sum ? made(sum->inputs[0], ops::exp) : nullptr;
    auto const* const shifted = e ? difference(e->inputs[0]) : nullptr;
    auto const* const top = shifted ? made(shifted->inputs[1], ops::amax) : nullptr;
    bool const fits = top && top->inputs[0].value == shifted->inputs[0].value && std::ranges::equal(dims_of(*top), dims_of(*sum));
    return fits ? std::optional(sum->inputs[0]) : std::nullopt;
  }
};

Var sum_of_scattered(Call const& c) {
  auto const* const scatter = c.made(c.inputs[0], ops::scatter_add);
  if (!scatter || scatter->inputs[2].value < 0 || c.sole) return {};  // the sum alone would drop the check of the indices
  auto const* const start = c.made(scatter->inputs[0], ops::full);
  auto const &index = c.sizes(scatter->inputs[1]), &source = c.sizes(scatter->inputs[2]), &target = c.sizes(scatter->inputs[0]);
  if (!start || !Call::is(start->attrs.nums[0], 0) || !std::ranges::equal(index, source)) return {};
  int const rank = static_cast<int>(target.size());
  auto const dim = at(base::wrap_dim("scatter_add", scatter->attrs.ints[0].value, rank));
  ir::AttrReader reader{c.attrs};
  auto const gone = reader.list();
  if (gone.size() != 1 || at(base::wrap_dim("sum", gone[0].value, rank)) != dim) return {};
  for (std::size_t d = 0; d < target.size(); ++d)
    if (d != dim && target[d] != source[d]) return {};
  return ir::call(ops::sum, {c.value(scatter->inputs[2])}, c.attrs);
}
Var softmax_of_logarithm(Call const& c) {
  auto const* const shifted = c.difference(c.inputs[0]);
  auto const* const log = shifted ? c.made(shifted->inputs[1], ops::log) : nullptr;
  auto const e = log ? c.shifted_exp(log->inputs[0]) : std::nullopt;
  if (!e || c.made(*e, ops::exp)->inputs[0].value != shifted->inputs[0].value) return {};
  return c.value(*e) * ir::call(ops::reciprocal, {c.value(log->inputs[0])});
}
Var softmax_by_reciprocal(Call const& c) {
  if (c.inputs[0].value < 0 || c.inputs[1].value < 0) return {};
  auto const e = c.shifted_exp(c.inputs[1]);
  if (!e || e->value != c.inputs[0].value) return {};
  return c.value(*e) * ir::call(ops::reciprocal, {c.value(c.inputs[1])});
}

// Places of x, or of what they are made from where that is x less something along the other dims.
Var gathered(Call const& c, ir::Input const& x) {
  auto const dims = c.sizes(x).size(), dim = at(base::wrap_dim("gather", c.attrs.ints[0].value, static_cast<int>(dims)));
  auto const* const less = c.difference(x);
  if (!less || less->inputs[0].value < 0) return ir::call(ops::gather, {c.value(x), c.value(c.inputs[1])}, c.attrs);
  ir::Input const whole = less->inputs[0], off = less->inputs[1];  // by value: calls move the nodes
  auto const &from = c.meta(whole), &shift = c.meta(off);
  auto const &sizes = c.sizes(x), &index = c.sizes(c.inputs[1]);
  bool fits = from.sizes == sizes && shift.sizes.size() == dims && from.dtype == c.meta(x).dtype && shift.dtype == from.dtype;
  for (std::size_t d = 0; d < dims && fits; ++d) fits = d == dim ? shift.sizes[d] == ir::Dim(1) : shift.sizes[d] == sizes[d] && index[d] == sizes[d];
  if (!fits) return ir::call(ops::gather, {c.value(x), c.value(c.inputs[1])}, c.attrs);
  return gathered(c, whole) - c.value(off);
}
Var gather_of_difference(Call const& c) {
  if (c.inputs[0].value < 0 || c.sizes(c.inputs[0]).size() == 0 || !c.difference(c.inputs[0])) return {};
  return gathered(c, c.inputs[0]);
}

struct Rule {
  std::string_view text;
  ir::OpDef const* op;
  Var (*apply)(Call const& call);
};
constexpr Rule rules[] = {
    {"sum(scatter_add(0, index, x)) -> sum(x), along one dim, where something else reads the scattered values", &ops::sum, sum_of_scattered},
    {"exp(s - log(z)) -> exp(s) * (1 / z), where s = x - amax(x) and z = sum(exp(s))", &ops::exp, softmax_of_logarithm},
    {"gather(x - y, index) -> gather(x, index) - y, where y is the same all along the dim", &ops::gather, gather_of_difference},
    {"exp(s) / z -> exp(s) * (1 / z), where s = x - amax(x) and z = sum(exp(s))", &ops::div, softmax_by_reciprocal},
};
}  // namespace

Copy::Copy(ir::Graph const& graph) : from(graph), moved(graph.values.size(), -1) {
  to.name = from.name, to.symbols = from.symbols, to.mutated = from.mutated;
  for (int const input : from.inputs) to.inputs.push_back(value(input, -1));
}
int Copy::value(int old, int node) {
  moved[at(old)] = static_cast<int>(to.values.size());
  to.values.push_back(from.values[at(old)]);
  to.values.back().node = node;
  return moved[at(old)];
}
int Copy::op(ir::OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) {
  return to.add(op, {inputs.begin(), inputs.end()}, std::move(attrs), place);
}
ir::Meta const& Copy::meta(int value) { return *to.values[at(value)].meta; }
std::vector<ir::Input> Copy::inputs(Node const& node) const {
  auto list = node.inputs;
  for (auto& input : list)
    if (input.value >= 0) input.value = moved[at(input.value)];
  return list;
}
void Copy::node(Node const& node) {
  auto list = inputs(node);
  bool same = true;
  for (std::size_t k = 0; k < list.size(); ++k) {
    if (list[k].value < 0) continue;
    auto const &was = *from.values[at(node.inputs[k].value)].meta, &now = meta(list[k].value);
    same &= was.dtype == now.dtype && was.sizes == now.sizes && was.strides == now.strides;
  }
  int const number = static_cast<int>(to.nodes.size());
  if (same) {
    int const first = static_cast<int>(to.values.size());
    for (int k = 0; k < node.results; ++k) value(node.first + k, number);
    to.nodes.push_back({node.op, std::move(list), node.attrs, first, node.results, node.at, node.module});
    return;
  }
  int const first = to.add(*node.op, std::move(list), node.attrs, node.at);
  to.nodes.back().module = node.module;
  for (int k = 0; k < node.results; ++k) {
    moved[at(node.first + k)] = first + k;
    to.values[at(first + k)].name = from.values[at(node.first + k)].name;
  }
}
ir::Graph Copy::finish() {
  for (int const output : from.outputs) to.outputs.push_back(moved[at(output)]);
  return std::move(to);
}

ir::Graph cheaper(ir::Graph const& given) {
  auto const graph = ir::eliminate_dead_code(given);
  Copy copy(graph);
  ir::Symbols::Scope const scope(&copy.to.symbols);
  std::vector<char> otherwise(graph.values.size(), 0);  // read by more than sums
  for (int const output : graph.outputs) otherwise[at(output)] = 1;
  for (auto const& node : graph.nodes)
    for (auto const& input : node.inputs)
      if (input.value >= 0 && node.op != &ops::sum) otherwise[at(input.value)] = 1;
  for (auto const& node : graph.nodes) {
    auto const inputs = copy.inputs(node);
    bool const sole = !node.inputs.empty() && node.inputs[0].value >= 0 && !otherwise[at(node.inputs[0].value)];
    copy.place = node.at;
    int instead = -1;
    for (auto const& rule : rules) {
      if (rule.op != node.op || instead >= 0) continue;
      auto const made = rule.apply({copy, *node.op, inputs, node.attrs, sole});
      auto const& meta = *graph.values[at(node.first)].meta;
      if (made && made.meta().dtype == meta.dtype && made.meta().sizes == meta.sizes && made.meta().strides == meta.strides) instead = made.input.value;
    }
    if (instead >= 0)
      copy.moved[at(node.first)] = instead;
    else
      copy.node(node);
  }
  return ir::eliminate_dead_code(copy.finish());
}

}  // namespace tenon::fusion
