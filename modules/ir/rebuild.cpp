// What passes share: copying a graph while values move.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

bool pure(OpDef const& op) { return op.kind != Kind::random && op.kind != Kind::host; }
bool writes(OpDef const& op) { return op.geometry && op.evaluate; }
bool same_meta(Symbols const& symbols, Meta const& a, Meta const& b) {  // equal expressions have equal ids
  auto const agree = [&](Dims const& x, Dims const& y) { return std::ranges::equal(x, y, [&](Dim p, Dim q) { return symbols.own(p) == symbols.own(q); }); };
  return a.dtype == b.dtype && a.device == b.device && agree(a.sizes, b.sizes) && agree(a.strides, b.strides);
}
// Dims by the size of their strides, each must step over all that the smaller ones reach.
bool overlaps(Dims const& sizes, Dims const& strides) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // stride, times
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d].value == 0) return false;
    if (sizes[d].value > 1) steps.emplace_back(std::abs(strides[d].value), sizes[d].value - 1);
  }
  std::ranges::sort(steps);
  std::int64_t reach = 0;
  for (auto const& [stride, count] : steps) {
    if (stride <= reach) return true;
    reach = plus(reach, times(stride, count));
  }
  return false;
}
void need_no_writes(Graph const& graph, std::string_view pass) {
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (graph.nodes[n].op && writes(*graph.nodes[n].op))
      fail("{}: node {} ({}) writes into %{}: functionalize first", pass, n, graph.nodes[n].op->name, graph.nodes[n].inputs[0].value);
}

int GraphEmit::op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) {
  int const first = graph.add(op, {inputs.begin(), inputs.end()}, std::move(attrs), place);
  graph.nodes.back().module = module;
  return first;
}

Rebuild::Rebuild(Graph const& graph, bool with_inputs) : from(graph), moved(graph.values.size(), -1) {
  to.name = from.name;
  to.symbols = from.symbols;
  if (!with_inputs) return;
  to.nodes.reserve(from.nodes.size());
  to.values.reserve(from.values.size());
  for (int input : from.inputs) {
    at(input) = static_cast<int>(to.values.size());
    to.inputs.push_back(at(input));
    to.values.push_back(from.values[static_cast<std::size_t>(input)]);
  }
}
std::vector<Input> Rebuild::inputs(Node const& node) const {
  auto list = node.inputs;
  for (auto& input : list)
    if (input.value >= 0) input.value = moved[static_cast<std::size_t>(input.value)];
  return list;
}
void Rebuild::copy(Node const& node) {
  auto in = inputs(node);
  bool same = true;
  for (std::size_t k = 0; same && k < in.size(); ++k) {
    if (in[k].value < 0) continue;
    auto const &before = from.values[static_cast<std::size_t>(node.inputs[k].value)].meta, &now = to.values[static_cast<std::size_t>(in[k].value)].meta;
    same = before.get() == now.get() || same_meta(to.symbols, *before, *now);
  }
  int first = static_cast<int>(to.values.size());
  if (same) {
    for (int k = 0; k < node.results; ++k) {
      to.values.push_back(from.values[static_cast<std::size_t>(node.first + k)]);
      to.values.back().node = static_cast<int>(to.nodes.size());
    }
    to.nodes.push_back({node.op, std::move(in), node.attrs, first, node.results, node.at, node.module});
  } else {
    first = to.add(*node.op, std::move(in), node.attrs, node.at);
    to.nodes.back().module = node.module;
  }
  for (int k = 0; k < node.results; ++k) {
    to.values[static_cast<std::size_t>(first + k)].name = from.values[static_cast<std::size_t>(node.first + k)].name;
    at(node.first + k) = first + k;
  }
}
Graph Rebuild::finish() {
  for (int output : from.outputs) to.outputs.push_back(at(output));
  to.mutated = from.mutated;
  return std::move(to);
}

}  // namespace tenon::ir
