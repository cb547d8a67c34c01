// Products that are read the other way round: gradients of weights come out transposed, and a product can be computed either way at the same price.
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

struct Uses {
  std::vector<int> readers, reader;  // how many nodes read a value, and one of them
  std::vector<char> leaves;          // an output lies in its memory
};
Uses uses_of(ir::Graph const& graph) {
  Uses uses{std::vector<int>(graph.values.size(), 0), std::vector<int>(graph.values.size(), -1), std::vector<char>(graph.values.size(), 0)};
  for (int n = 0; std::cmp_less(n, graph.nodes.size()); ++n)
    for (auto const& input : graph.nodes[at(n)].inputs)
      if (input.value >= 0) ++uses.readers[at(input.value)], uses.reader[at(input.value)] = n;
  auto const places = places_of(graph);
  for (int const output : graph.outputs) uses.leaves[at(places[at(output)].root)] = 1;
  return uses;
}

// Whether a view swaps the last two dims of a row-major value and does nothing else.
bool swaps(ir::Graph const& graph, Node const& view) {
  if (!view.op->geometry) return false;
  auto const& from = *graph.values[at(view.inputs[0].value)].meta;
  auto const& to = *graph.values[at(view.first)].meta;
  int const rank = from.rank();
  if (rank < 2 || to.rank() != rank) return false;
  auto sizes = from.sizes, strides = ir::contiguous_meta(from.dtype, from.device, from.sizes).strides;
  if (from.strides != strides) return false;
  ir::View walked{view.attrs, from.dtype, sizes, strides, 0};
  std::swap(sizes[at(rank - 2)], sizes[at(rank - 1)]), std::swap(strides[at(rank - 2)], strides[at(rank - 1)]);
  return view.op->geometry(walked) && walked.sizes == sizes && walked.strides == strides && walked.offset == ir::Dim(0);
}

bool turns(ir::Graph const& graph, Uses const& uses, Node const& node) {
  if (node.op != &ops::matmul || uses.readers[at(node.first)] != 1 || uses.leaves[at(node.first)]) return false;
  for (auto const& input : node.inputs)
    if (input.value < 0 || graph.values[at(input.value)].meta->rank() < 2) return false;
  return swaps(graph, graph.nodes[at(uses.reader[at(node.first)])]);
}
}  // namespace

ir::Graph turned_products(ir::Graph const& graph) {
  auto const uses = uses_of(graph);
  Copy copy(graph);
  ir::Symbols::Scope const scope(&copy.to.symbols);
  std::vector<char> fresh(graph.values.size(), 0);  // row-major memory that no input and no output shares
  for (auto const& node : graph.nodes) {
    if (node.op->geometry && node.inputs[0].value >= 0) {
      int const n = graph.values[at(node.inputs[0].value)].node;
      if (n >= 0 && turns(graph, uses, graph.nodes[at(n)])) {
        auto const& product = graph.nodes[at(n)];
        copy.place = product.at;
        auto const turned = [&](std::size_t k) { return ir::call(ops::transpose, {Var(copy, copy.moved[at(product.inputs[k].value)])}, {.ints = {-2, -1}}); };
        copy.moved[at(node.first)] = ir::call(ops::matmul, {turned(1), turned(0)}, product.attrs).input.value;
        fresh[at(node.first)] = !uses.leaves[at(product.first)];
        continue;
      }
    }
    if (node.op == &ops::matmul && turns(graph, uses, node)) continue;
    if (node.op == &ops::clone && fresh[at(node.inputs[0].value)]) {  // of what nobody else keeps
      auto const &now = *copy.to.values[at(copy.moved[at(node.inputs[0].value)])].meta, &was = *graph.values[at(node.first)].meta;
      if (now.dtype == was.dtype && now.sizes == was.sizes && now.strides == was.strides) {
        copy.moved[at(node.first)] = copy.moved[at(node.inputs[0].value)];
        continue;
      }
    }
    copy.node(node);
  }
  return copy.finish();
}

}  // namespace tenon::fusion
