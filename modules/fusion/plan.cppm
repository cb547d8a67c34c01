export module tenon.fusion:plan;
import std;
import tenon.base;
import tenon.ir;
import :loop;

export namespace tenon::fusion {

/// Where a value lies: in the memory of `root`, which is a graph input or a value that is written row-major.
struct Place {
  int root = -1;
  ir::Dim offset{};
  ir::Dims strides{};
};

/// How a node is computed: not at all (its value is another view of memory), inside a loop nest, or by a call of a library or of ir's reference.
enum class Way : std::uint8_t { view, loop, call };

/// Why two nodes do not share a kernel.
enum class Refusal : std::uint8_t {
  none,       ///< they do
  call,       ///< one is a library's: a barrier
  view,       ///< one is a view, which no kernel computes
  unrelated,  ///< neither reads the other and they read nothing in common
  cycle,      ///< something between them must run after the one and before the other
  space,      ///< their iteration spaces differ
  index,      ///< no strided map leads from the one's elements to the other's
  reduction,  ///< their reductions take away different dims
  order,      ///< a reduction's result would be needed before all of it is there
  size,       ///< the kernel would hold too many steps or buffers
  parallel,   ///< the rows are too few to share among threads with the rest
  memory,     ///< the later one would run far earlier and what it makes would be held all that time, more than it frees
};
/// One line that says it.
std::string_view text_of(Refusal refusal);

/// Nodes that run together: a kernel's, or one call.
struct Group {
  std::vector<int> nodes;  ///< in the graph's order
  bool call = false;
  double bytes_saved = 0;  ///< memory traffic that running them one by one would add
};

/// A primitive graph cut into groups, in an order in which they can run.
struct Grouping {
  ir::Graph graph;
  std::vector<Place> places;  ///< of each value
  std::vector<Way> ways;      ///< of each node
  std::vector<Group> groups;
  std::vector<int> group_of;  ///< of each node; -1: a view, or inlined into its readers
};

/// What grouping may do.
struct GroupOptions {
  bool fuse = true;  ///< false: every node by itself
  int max_steps = 96;
  int max_buffers = 40;
  std::vector<int> apart{};  ///< nodes that join no group, in rising order
};

/// The graph in primitive ops, simplified: what grouping reads.
ir::Graph primitive(ir::Graph const& graph);
/// Cuts a primitive graph into groups, greedily by bytes saved.
Grouping group(ir::Graph graph, GroupOptions const& options = {});
/// The first reason why nodes `a` and `b` do not share a kernel.
Refusal why_not_fused(Grouping const& grouping, int a, int b);
/// A group's kernel, and the value behind each of its buffers.
struct GroupKernel {
  Kernel kernel{};
  std::vector<int> roots{};
};
/// The kernels of all groups, empty ones for calls. New expressions of sizes go into the graph's symbols.
std::vector<GroupKernel> kernels_of(Grouping& grouping);
/// Fewer rows than this, longer than that, are cut for several threads or not fused.
inline constexpr std::int64_t few_rows = 4, long_row = 65536;
/// Chooses form and knobs by the sizes of this run, and lists the kernel's parameters.
void schedule(Kernel& kernel);
/// Whether a kernel can be walked so: `split` needs all reductions along rows in one walk, `online` needs fewer passes than `row`.
bool can_walk(Kernel const& kernel, Form form);
/// Makes it walk so: which reductions are carried along, passes, row buffers.
void walk(Kernel& kernel, Form form);
/// Groups, their nodes, kernels and bytes.
std::string to_string(Grouping const& grouping);

}  // namespace tenon::fusion
