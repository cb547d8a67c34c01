// What grouping asks of single values and nodes: where a value lies, how a node is computed, who reads it.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :build;

namespace tenon::fusion {
namespace ops = ir::ops;
using ir::Dim;
using ir::Monoid;
using ir::Node;

namespace {
// Reductions that a loop nest computes, and how it combines elements; `any` and `all` first compare with 0.
constexpr std::pair<ir::OpDef const*, Monoid> reductions[] = {
    {&ops::sum, Monoid::sum},  {&ops::mean, Monoid::avg}, {&ops::prod, Monoid::prod}, {&ops::amax, Monoid::max},
    {&ops::amin, Monoid::min}, {&ops::any, Monoid::max},  {&ops::all, Monoid::min},
};

std::int64_t value_of(Dim dim) { return dim.value; }

// Ops that are no plain pointwise rows and still have a form in a loop, and when.
struct Special {
  ir::OpDef const* op;
  bool (*fits)(ir::Graph const&, Node const&);
};
ir::Meta const& meta_of(ir::Graph const& graph, ir::Input const& input) { return *graph.values[static_cast<std::size_t>(input.value)].meta; }
bool always(ir::Graph const&, Node const&) { return true; }
bool one_index_a_row(ir::Graph const& graph, Node const& node) {  // scatter_add of one place along dim: a comparison does it
  if (node.inputs[1].value < 0 || node.inputs[2].value < 0) return false;
  auto const &x = meta_of(graph, node.inputs[0]), &index = meta_of(graph, node.inputs[1]), &source = meta_of(graph, node.inputs[2]);
  if (x.rank() == 0 || x.rank() != index.rank() || source.rank() != index.rank() || !base::is_real(x.dtype)) return false;
  auto const dim = static_cast<std::size_t>(base::wrap_dim("scatter_add", value_of(node.attrs.ints[0]), x.rank()));
  if (x.sizes[dim] == Dim(0)) return false;  // no point of a loop would check the index
  for (std::size_t d = 0; d < x.sizes.size(); ++d)
    if (index.sizes[d] != (d == dim ? Dim(1) : x.sizes[d]) || source.sizes[d] != index.sizes[d]) return false;
  return true;
}
bool dense_steps(ir::Graph const&, Node const& node) { return node.attrs.ints[node.attrs.ints.size() - 1] == Dim(1); }
bool few(ir::Graph const& graph, Node const& node) {
  if (node.inputs.size() > 4) return false;
  auto const& result = *graph.values[static_cast<std::size_t>(node.first)].meta;
  return std::ranges::all_of(node.inputs, [&](ir::Input const& i) { return i.value >= 0 && meta_of(graph, i).rank() == result.rank() && result.rank() > 0; });
}
bool within(ir::Graph const& graph, Node const& node) {
  return meta_of(graph, node.inputs[0]).rank() > 0 && meta_of(graph, node.inputs[0]).rank() == graph.values[static_cast<std::size_t>(node.first)].meta->rank();
}
constexpr Special specials[] = {
    {&ops::full, always},
    {&ops::arange, always},
    {&ops::gather, within},
    {&ops::index_select, within},
    {&ops::embedding, always},
    {&ops::slice_grad, dense_steps},
    {&ops::tril, always},
    {&ops::triu, always},
    {&ops::scatter_add, one_index_a_row},
    {&ops::cat, few},
};
}  // namespace

Monoid reduction_of(ir::OpDef const& op) {
  for (auto const& [row, monoid] : reductions)
    if (row == &op) return monoid;
  return Monoid::none;
}

std::string line_of(Node const& node) { return std::format("%{} = {}{}", node.first, node.op->name, node.at.line ? "  " + base::short_place(node.at) : ""); }
bool inlined(Node const& node) { return node.op == &ops::full || node.op == &ops::arange; }

std::vector<Place> places_of(ir::Graph const& graph) {
  std::vector<Place> places(graph.values.size());
  for (int const input : graph.inputs) places[static_cast<std::size_t>(input)] = {input, 0, graph.values[static_cast<std::size_t>(input)].meta->strides};
  for (auto const& node : graph.nodes) {
    for (int value = node.first; value < node.first + node.results; ++value) {
      auto const& meta = *graph.values[static_cast<std::size_t>(value)].meta;
      places[static_cast<std::size_t>(value)] = {value, 0, ir::contiguous_meta(meta.dtype, meta.device, meta.sizes).strides};
    }
    if (!node.op->geometry || node.inputs[0].value < 0) continue;
    auto const& parent = places[static_cast<std::size_t>(node.inputs[0].value)];
    auto const& meta = meta_of(graph, node.inputs[0]);
    ir::View view{node.attrs, meta.dtype, meta.sizes, parent.strides, parent.offset};
    if (node.op->geometry(view)) places[static_cast<std::size_t>(node.first)] = {parent.root, view.offset, view.strides};
  }
  return places;
}

std::vector<Way> ways_of(ir::Graph const& graph, std::vector<Place> const& places) {
  std::vector<Way> ways;
  for (auto const& node : graph.nodes) {
    auto const way = [&] {
      if (node.op->geometry)
        return places[static_cast<std::size_t>(node.first)].root != node.first ? Way::view : node.inputs[0].value >= 0 ? Way::loop : Way::call;
      if (node.results != 1) return Way::call;
      bool const tensors = std::ranges::any_of(node.inputs, [](ir::Input const& i) { return i.value >= 0; });
      if (reduction_of(*node.op) != Monoid::none) return Way::loop;
      for (auto const& special : specials)
        if (special.op == node.op) return special.fits(graph, node) ? Way::loop : Way::call;
      return node.op->kind == ir::Kind::pointwise && !node.op->source.empty() && tensors ? Way::loop : Way::call;
    };
    ways.push_back(way());
  }
  return ways;
}

Analysis analyse(ir::Graph const& graph, std::vector<Place> const& places, std::vector<Way> const& ways) {
  Analysis done{graph, places, ways, std::vector<std::vector<int>>(graph.values.size()), std::vector<char>(graph.values.size(), 0)};
  for (int const output : graph.outputs) done.escapes[static_cast<std::size_t>(places[static_cast<std::size_t>(output)].root)] = 1;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (ways[n] == Way::view) continue;
    for (auto const& input : graph.nodes[n].inputs)
      if (input.value >= 0) {
        auto& list = done.readers[static_cast<std::size_t>(places[static_cast<std::size_t>(input.value)].root)];
        if (list.empty() || list.back() != static_cast<int>(n)) list.push_back(static_cast<int>(n));
      }
  }
  return done;
}

}  // namespace tenon::fusion
