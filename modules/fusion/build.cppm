module tenon.fusion:build;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :plan;

namespace tenon::fusion {

/// What is known of every value and node before grouping.
struct Analysis {
  ir::Graph const& graph;
  std::vector<Place> const& places;
  std::vector<Way> const& ways;
  std::vector<std::vector<int>> readers{};  ///< per value: the nodes that read it, through views
  std::vector<char> escapes{};              ///< per value: a graph output lies in it
};
std::vector<Way> ways_of(ir::Graph const& graph, std::vector<Place> const& places);
std::vector<Place> places_of(ir::Graph const& graph);
Analysis analyse(ir::Graph const& graph, std::vector<Place> const& places, std::vector<Way> const& ways);
/// The graph with equal values by cheaper ways, up to last places: what a table of rules knows of softmax and its gradient.
ir::Graph cheaper(ir::Graph const& graph);
/// Whether a reader computes the node's value again rather than load it: constants and counts.
bool inlined(ir::Node const& node);
/// The monoid of a plain reduction; none otherwise.
ir::Monoid reduction_of(ir::OpDef const& op);

/// The kernel of a set of nodes, or why there is none.
struct Built {
  Kernel kernel{};
  Refusal refusal = Refusal::none;
  std::vector<int> buffers{};          ///< per kernel buffer: the root value
  std::int64_t rows = 1, columns = 1;  ///< of this run
};
/// `member` says for each node whether it belongs; `nodes` are those in the graph's order. Without `finish` only whether it can be.
Built build(Analysis const& analysis, std::span<int const> nodes, std::vector<char> const& member, bool finish);

}  // namespace tenon::fusion
