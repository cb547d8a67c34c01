// The graph that grouping reads: bodies in place of composites, but for attention, which a library call computes as a whole.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :build;

namespace tenon::fusion {
namespace ops = ir::ops;
using ir::Dim;
using ir::Node;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
constexpr ir::OpDef const* whole_ops[] = {&ops::scaled_dot_product_attention, &ops::scaled_dot_product_attention_grad};

bool stays(ir::OpDef const& op) { return std::ranges::find(whole_ops, &op) != std::end(whole_ops) || ir::has_kernel(op); }

// Whether a library call takes this attention: queries, keys and values of one batch, no mask.
bool plain_attention(ir::Graph const& graph, Node const& node) {
  bool const gradient = node.op == &ops::scaled_dot_product_attention_grad;
  auto const meta = [&](std::size_t k) -> ir::Meta const& { return *graph.values[at(node.inputs[k].value)].meta; };
  std::size_t const first = gradient ? 1 : 0;
  auto const& q = meta(first);
  if (q.rank() < 2 || !base::is_real(q.dtype)) return false;
  if (!gradient && ((node.inputs.size() > 3 && node.inputs[3].value >= 0) || node.attrs.ints[1].value != 0)) return false;
  auto const scale = node.attrs.nums[gradient ? 0 : 1];
  if (scale.node >= 0 || (!gradient && node.attrs.nums[0].real != 0)) return false;
  for (std::size_t k = 0; k < first + 3; ++k) {
    auto const& other = meta(k);
    if (other.rank() != q.rank() || other.dtype != q.dtype) return false;
    for (std::size_t d = 0; d + 2 < q.sizes.size(); ++d)
      if (other.sizes[d] != q.sizes[d]) return false;
  }
  return true;
}

}  // namespace

ir::Graph primitive(ir::Graph const& graph) {
  auto lowered = ir::decompose(ir::eliminate_dead_code(graph), stays);
  auto const hard = [&](Node const& node) {
    return (node.op == &ops::scaled_dot_product_attention || node.op == &ops::scaled_dot_product_attention_grad) && !plain_attention(lowered, node);
  };
  if (std::ranges::any_of(lowered.nodes, hard)) lowered = ir::decompose(lowered);
  lowered = ir::merge_common(ir::fold_constants(lowered));
  return ir::eliminate_dead_code(ir::merge_common(ir::simplify(turned_products(cheaper(ir::simplify(lowered))))));
}

}  // namespace tenon::fusion
