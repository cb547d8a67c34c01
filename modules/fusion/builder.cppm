/// Builds the loop nest of a set of nodes.
module tenon.fusion:builder;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :plan;
import :build;

namespace tenon::fusion {
using base::DType;
using ir::Dim;
using ir::Dims;
using ir::Node;

inline bool is_one(Dim dim) { return dim.node < 0 && dim.value == 1; }
inline bool is_zero(Dim dim) { return dim.node < 0 && dim.value == 0; }

/// A view that is applied to a value on its way to the space, and what comes after it.
struct Link {
  ir::OpDef const* op;
  ir::Attrs attrs;
  Link const* next;
};
/// Strides and offset of a value over the dims of the root.
struct Strides {
  Dims strides;
  Dim offset;
};

class Builder {
 public:
  Builder(Analysis const& analysis, std::span<int const> nodes, std::vector<char> const& member)
      : analysis_(analysis), graph_(analysis.graph), nodes_(nodes), member_(member) {}

  Built run(bool finish);

 private:
  int refuse(Refusal why);
  ir::Meta const& meta(int value) const { return *graph_.values[static_cast<std::size_t>(value)].meta; }
  int maker(int value) const { return graph_.values[static_cast<std::size_t>(value)].node; }
  bool inside(int root) const { return maker(root) >= 0 && member_[static_cast<std::size_t>(maker(root))]; }
  bool needed_outside(int n) const;

  // -- the space
  // The dims of the largest value that is reduced, else of the largest: what has the most dims among equals.
  void choose_root();
  static bool equal(Dims const& a, Dims const& b) { return std::ranges::equal(a, b); }
  static Dim product(std::span<Dim const> sizes) { return ir::product(sizes); }

  // For each root dim whether a reduction of `x` takes it away; `kept` are the root dims that x has (all, or without columns). Nothing if dims don't meet.
  std::optional<std::vector<char>> reduced_dims(Node const& node, std::vector<char> const& has) const;
  void choose_roles();
  // The set of roles that a mask takes away; 0 if it is no such set.
  Roles over_of(std::vector<char> const& mask) const;
  std::vector<char> dims_with(Roles roles) const;

  // -- chains of views
  Link const* link(ir::OpDef const* op, ir::Attrs attrs, Link const* next, std::pair<int, int> identity);
  Link const* to_sizes(ir::OpDef const& op, Dims const& sizes, Link const* next);
  // From a value to the space: all points, one a row, one a column, or one a batch index.
  Link const* embed(Dims const& from, Roles roles);
  Dim elements(Roles roles) const;
  std::optional<Strides> layout(Dims sizes, Dims strides, Dim offset, DType dtype, Link const* chain);
  std::optional<Strides> row_major(int value, Link const* chain);

  // -- steps
  int known(Step const& step) const;
  int add(Step step);
  void reads(Step& step, int in) const;
  int number(ir::Scalar scalar);
  int call(ir::OpDef const& op, DType dtype, std::initializer_list<int> in, ir::Attrs attrs = {});
  int cast(int step, DType dtype);
  int buffer(int root);
  int load(int value, Link const* chain);
  int load(int root, Strides const& found, Access extra = {}, std::string_view by = {});
  // The coordinate along a dim of a value of these sizes, at each point.
  int coordinate(Dims const& sizes, std::size_t dim, Link const* chain);
  int linear(Strides const& found);

  // -- values
  // The step that holds `value`, seen through the chain, at each point.
  int emit(int value, Link const* chain);
  // An operand, broadcast to the sizes of the result.
  int operand(ir::Input const& input, Dims const& sizes, Link const* chain);
  int compute(Node const& node, Link const* chain);
  int reduce(Node const& node, Link const* chain);
  int scatter(Node const& node, Link const* chain);
  int concatenate(Node const& node, Link const* chain);
  int guarded(int value, Dims const& sizes, std::size_t dim, Dim start, Link const* chain);
  int triangle(Node const& node, Link const* chain);
  int count_up(Node const& node, Link const* chain);
  int constant(Node const& node, Link const* chain);
  int padded(Node const& node, Link const* chain);
  int gathered(Node const& node, Link const* chain);
  void output(int value);
  bool store(int value, Roles roles);
  // The steps that stores need, over axes in the order of their roles, without those of size 1, side by side ones as one.
  void finish();
  void keep_needed();
  void order_axes();
  void merge_axes();

  Analysis const& analysis_;
  ir::Graph const& graph_;
  std::span<int const> nodes_;
  std::vector<char> const& member_;
  Kernel kernel_;
  Refusal refusal_ = Refusal::none, last_ = Refusal::none;
  std::vector<char> after_;  // per step: it reads a sum over rows, which is known behind the last row
  std::vector<int> roots_;
  std::unordered_map<int, int> buffer_of_;
  Dims sizes_, plain_;
  std::vector<Role> roles_;
  std::deque<Link> links_;
  std::map<std::tuple<int, int, Link const*>, Link const*> interned_;
  std::map<std::pair<int, Link const*>, int> memo_;
};

}  // namespace tenon::fusion
