export module tenon.ir:rewrite;
import std;
import tenon.base;
import :sym;
import :op;
import :rule;
import :graph;

export namespace tenon::ir {

// -- folding and simplifying ----------------------------------------------------------------------------------------------------------------

/// How large a tensor may be that is computed element by element; uniform ones are folded at any size.
struct FoldOptions {
  std::int64_t max_elements = 1024;
};
/// The graph with calls of constants replaced by `full` or `constant`, bit for bit; creations, random, collective and host calls stay.
Graph fold_constants(Graph const& graph, FoldOptions const& options = {});

/// What simplify may do.
struct SimplifyOptions {
  bool exact = true;                                                    ///< false: also what changes the sign of a zero, a NaN, an infinity, or last bits
  std::function<void(std::string_view rule, Node const& node)> seen{};  ///< told each rule that was applied, and to which node
};
/// The graph after the table of rules, to a fixed point; every value that stays has its dtype, sizes and strides.
Graph simplify(Graph const& graph, SimplifyOptions const& options = {});
/// The rules as text, in the order in which they are tried.
std::vector<std::string_view> simplify_rules();

// -- patterns -------------------------------------------------------------------------------------------------------------------------------

/// An attribute of the pattern's node that makes value `from`, which may have any value; node `to` of the replacement gets it as its `as`.
struct Carried {
  int from = -1;
  std::string_view attribute;
  int to = -1;            ///< -1: it only may have any value
  std::string_view as{};  ///< empty: as `attribute`
};
/// One place where a pattern fits: nodes of the graph in the pattern's order, what its inputs are bound to, nodes made instead (of the new graph).
struct Match {
  std::vector<int> nodes;
  std::map<std::string, Input, std::less<>> bindings;
  std::vector<int> replaced;
};
/// Two graphs whose inputs are wildcards, equal by name; their types are not compared. `check` may refuse a match.
struct Rewrite {
  Graph pattern, replacement;
  std::vector<Carried> carried{};
  std::function<bool(Graph const&, Match const&)> check{};
};
struct Rewritten {
  Graph graph;
  std::vector<Match> matches;
};
/// Replaces every match that does not overlap an earlier one; Error if the two graphs make no rule or an output would change its dtype or sizes.
Rewritten rewrite(Graph const& graph, Rewrite const& rule);
/// Whether the first two operands may change places.
bool commutative(OpDef const& op, Attrs const& attrs);
/// The largest |a - b| over all outputs on random inputs (infinite where only one is NaN or infinities differ): 0 if two graphs mean the same.
double largest_difference(Graph const& a, Graph const& b, std::uint64_t seed = 1);

// -- writes ---------------------------------------------------------------------------------------------------------------------------------

/// Whether a call of the op writes into its operand 0: a geometry says where, an `evaluate` what.
bool writes(OpDef const& op);
/// A graph without writes; `mutated` are the inputs that were written to, their new elements are its last outputs in that order.
struct Functional {
  Graph graph;
  std::vector<int> mutated;
};
/// Turns writes into values: later reads of the memory, through any view, see the new ones. Different inputs must not share memory.
Functional functionalize(Graph const& graph);

/// A call of an op with a geometry.
struct ViewCall {
  OpDef const& op;
  Attrs const& attrs;
};
/// Adds what the parent holds after its view `by` got `content`, as a value of the graph: the step of functionalize for one view.
int write_through(Graph& graph, ViewCall const& by, int parent, int content, base::At at);
/// Whether two elements may lie in one place of memory.
bool overlaps(Dims const& sizes, Dims const& strides);

// -- gradients ------------------------------------------------------------------------------------------------------------------------------

/// Forward outputs, then gradients of `wrt`; inputs are those of the forward graph, then a cotangent for each real output.
struct Joint {
  Graph graph;
  int outputs = 0;                ///< how many are of the forward graph
  std::vector<int> cotangents{};  ///< which inputs of `graph`; none: the backward part starts from constants
};
Joint joint_graph(Graph const& graph, std::span<int const> wrt);

/// Whether a backward pass may compute the op again: no contraction, nothing random, on the host, or among ranks.
bool recomputable(OpDef const& op);
struct PartitionOptions {
  std::function<bool(OpDef const&)> may_recompute = recomputable;  ///< asked for calls that are no views
  bool count_inputs = true;                                        ///< false: inputs of the forward graph are held anyway and cost nothing
};
/// A joint graph cut in two: `forward` gives the outputs, then the saved values; `backward` takes these, then the cotangents, and gives the gradients.
struct Partition {
  Graph forward, backward;
  std::vector<int> saved;       ///< values of the joint graph
  std::vector<int> recomputed;  ///< nodes of the joint graph that both parts run
  std::int64_t bytes = 0;       ///< of the saved values, with this run's sizes: no choice saves fewer
};
Partition partition(Joint const& joint, PartitionOptions const& options = {});

}  // namespace tenon::ir

namespace tenon::ir {  // for passes
/// Neither random nor on the host: equal calls have equal results, and an unused one may go.
bool pure(OpDef const& op);
bool same_meta(Symbols const& symbols, Meta const& a, Meta const& b);
/// Error naming the first write: most passes reorder or merge reads.
void need_no_writes(Graph const& graph, std::string_view pass);
/// Emits into a graph: rules see values as ids.
struct GraphEmit : Emit {
  Graph& graph;
  base::At place;
  std::string_view module{};
  GraphEmit(Graph& to, base::At where) : graph(to), place(where) {}
  int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override;
  Meta const& meta(int value) override { return *graph.values[static_cast<std::size_t>(value)].meta; }
};
/// Copies a graph node by node while values move: `moved` maps old values to new ones.
struct Rebuild {
  Graph const& from;
  Graph to{};
  std::vector<int> moved{};
  explicit Rebuild(Graph const& graph, bool with_inputs = true);
  int& at(int value) { return moved[static_cast<std::size_t>(value)]; }
  std::vector<Input> inputs(Node const& node) const;
  void copy(Node const& node);  ///< inferred anew if an operand's meta is another one
  Graph finish();
};
}  // namespace tenon::ir
