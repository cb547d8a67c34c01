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
/// A graph made from another one: nodes are copied while values move, rules add calls at `place`.
struct Copy final : ir::Emit {
  explicit Copy(ir::Graph const& graph);
  int op(ir::OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) override;
  ir::Meta const& meta(int value) override;
  std::vector<ir::Input> inputs(ir::Node const& node) const;
  /// Copies a node; its results are inferred anew where an operand's Meta is another one.
  void node(ir::Node const& node);
  ir::Graph finish();

  ir::Graph const& from;
  ir::Graph to{};
  std::vector<int> moved;  ///< per value of `from`
  base::At place = base::At::current();

 private:
  int value(int old, int node);
};
/// The graph with equal values by cheaper ways, up to last places: what a table of rules knows of softmax and its gradient.
ir::Graph cheaper(ir::Graph const& graph);
/// Computes a product that is only read with its last two dims swapped as the product of the swapped operands, and drops copies made of it.
ir::Graph turned_products(ir::Graph const& graph);
/// What it is called where kernels say what they were made from: "%5 = gelu  model.cpp:41".
std::string line_of(ir::Node const& node);
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
