export module tenon.fusion:memory;
import std;
import tenon.base;
import tenon.ir;

export namespace tenon::fusion {

// -- places for the values of a plan --------------------------------------------------------------------------------------------------------

/// Where a value lies: `persistent` memory (parameters, state) is held all the time, `step` memory (activations) is shared by values that do not
/// live together, and so is that of `communication`.
enum class Arena : std::uint8_t { persistent, step, communication };
inline constexpr std::size_t arenas = 3;
std::string_view to_string(Arena arena);

/// A value of a plan: written at step `first`, last read at step `last`, alive at both and between.
struct Block {
  std::int64_t bytes = 0;
  int first = 0, last = 0;
  Arena arena = Arena::step;
  int instead_of = -1;  ///< another block whose memory it may take in place: one as large that is last read at `first`
  std::string name{};
};

/// An offset in its arena for every block, and what that costs.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::vector<int> taken;                             ///< per block, the one whose memory it takes in place; -1: none
  std::array<std::int64_t, arenas> bytes{}, bound{};  ///< an arena's size, and the most bytes alive at once in it: no layout is smaller
  int peak_step = 0;                                  ///< the step with the most bytes alive in all arenas
  std::vector<int> holders;                           ///< blocks that are alive there, the largest first
  std::int64_t alignment = 64;

  std::int64_t peak() const { return bytes[0] + bytes[1] + bytes[2]; }
  std::int64_t lower_bound() const { return bound[0] + bound[1] + bound[2]; }
};
/// Places blocks greedily in several orders, repairs the best and keeps the smallest; sizes count in whole `alignment`s. An offer to work in
/// place is declined if the sizes, steps or arenas do not fit, or a larger block takes the same memory. Equal plans give equal layouts.
/// Error naming a block with negative bytes, a life that ends before it begins, or an offer that names no block.
Layout place(std::span<Block const> blocks, std::int64_t alignment = 64);
/// Bug naming two blocks that live and lie together, an offset that is not aligned, or a block that reaches out of its arena.
void verify(std::span<Block const> blocks, Layout const& layout);
/// Bytes alive at each step in `arena`, a block in place of another counted once; step s stands at s - (the first step of all).
std::vector<std::int64_t> live_bytes(std::span<Block const> blocks, Layout const& layout, Arena arena);
/// Peak, lower bound, their ratio, arenas, and who holds what at the peak, at most `rows` of them.
std::string report(std::span<Block const> blocks, Layout const& layout, std::size_t rows = 20);

// -- order and recomputation of a graph that runs node by node -----------------------------------------------------------------------------

/// The values of a graph as blocks, step n being node n: inputs persistent, outputs alive to the end, views no memory, pointwise results offered
/// the memory of an operand; `values[b]` is the value of block b.
struct GraphBlocks {
  std::vector<Block> blocks;
  std::vector<int> values;
};
GraphBlocks blocks_of(ir::Graph const& graph);
/// The most bytes of step memory alive at once when the graph runs node by node: what reordering and recomputation lower.
std::int64_t step_peak(ir::Graph const& graph);
/// The most bytes that eager execution holds at once beside the inputs: nodes in their order, results of each allocated when it runs and freed behind
/// their last reader, outputs never; nothing in place, nothing fused, views no memory, a composite without what is inside it.
std::int64_t eager_peak(ir::Graph const& graph);

/// The nodes in the order that needs the least step memory of: as they stand, greedy from the start, greedy from the end. Random, host and
/// collective calls keep their order.
std::vector<int> order_for_memory(ir::Graph const& graph);
/// The graph in that order.
ir::Graph reorder(ir::Graph const& graph);

/// How far to go: recomputation ends as soon as the step peak is within the budget.
struct RematOptions {
  std::int64_t budget_bytes = 0;
  std::function<bool(ir::OpDef const&)> may_recompute = ir::recomputable;  ///< asked for calls that are no views
  int longest = 16;                                                        ///< calls that one late reader may make again
  std::int64_t effort = std::numeric_limits<std::int64_t>::max();          ///< nodes that all tried graphs may have together
};
/// A graph with the same results that holds less across its middle, and what that costs.
struct Rematerialized {
  ir::Graph graph;
  std::int64_t before = 0, peak = 0, budget = 0;
  std::vector<int> recomputed;  ///< nodes of the given graph that run again, once a time
  double flops = 0;             ///< of those
  bool reached() const { return peak <= budget; }
};
/// Computes values again just before their late readers, the cheapest FLOPs per byte and step first, until the peak is within the budget or
/// nothing lowers it.
Rematerialized rematerialize(ir::Graph const& graph, RematOptions const& options);
/// Likewise, and also from the minimum cut of ir::partition; of the two the one that reaches the budget with fewer FLOPs, else the lower peak.
Rematerialized rematerialize(ir::Joint const& joint, RematOptions const& options);
/// One line: peak before and after, the budget, whether it was reached, calls and FLOPs.
std::string to_string(Rematerialized const& done);

}  // namespace tenon::fusion

namespace tenon::fusion {  // for passes of this layer
/// Which offers place accepts: per block the one whose memory it takes, or -1.
std::vector<int> accepted(std::span<Block const> blocks);
/// Copies a graph node by node while values move; a node may be copied more than once.
struct Moving {
  ir::Graph const& from;
  ir::Graph to{};
  std::vector<int> moved{};  ///< of the values of `from`, as they were made last
  explicit Moving(ir::Graph const& graph);
  void copy(int node);
  ir::Graph finish();
};
/// The value whose memory a value looks at through views, itself if it has its own.
std::vector<int> roots_of(ir::Graph const& graph);
/// Error naming the first write: the passes of this layer move reads.
void need_no_writes(ir::Graph const& graph, std::string_view pass);
}  // namespace tenon::fusion
