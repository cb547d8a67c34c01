/// What StableHLO's operations mean in ours: a rule an operation, and the walk that inlines calls, unrolls loops and folds known numbers.
module tenon.ir:hlo_lower;
import std;
import tenon.base;
import :sym;
import :op;
import :rule;
import :graph;
import :hlo;
import :hlo_text;

namespace tenon::ir::hlo {

/// A value of a function: a tensor, or (not made yet) a number that all its elements are.
struct Item {
  Type type;
  Var made;
  std::optional<Scalar> splat;
};

class Lowering;

/// One operation being lowered: what a rule reads and fills.
struct Step {
  Lowering& to;
  Op const& op;
  std::vector<Item*> in;
  std::vector<Item> out{};
  bool spread = false;  ///< a region's scalar operation, applied to tensors
  [[noreturn]] void refuse(std::string_view what) const;
  int count() const { return static_cast<int>(in.size()); }
  Item& item(int k) const;
  Type const& type(int k) const { return item(k).type; }
  /// Operand k as a tensor; as a number if it is one.
  Var x(int k = 0) const;
  Var number_or_tensor(int k) const;
  std::optional<std::int64_t> known(int k) const;
  /// Attributes; Error if one is missing, unless there is a fallback.
  std::int64_t whole(std::string_view key, std::optional<std::int64_t> fallback = {}) const;
  std::vector<std::int64_t> list(std::string_view key, std::optional<std::vector<std::int64_t>> fallback = {}) const;
  std::vector<std::vector<std::int64_t>> matrix(std::string_view key, std::size_t rows) const;
  std::string text(std::string_view key, std::string_view fallback = {}) const;
  /// The list as distinct dims below `rank`.
  std::vector<std::int64_t> dims(std::string_view key, std::size_t rank, std::optional<std::vector<std::int64_t>> fallback = {}) const;
  Function const& region(std::size_t k, std::size_t parameters) const;
  Type const& result(std::size_t k = 0) const { return op.types[k]; }
  void give(Var made) { out.push_back({{made.meta().dtype, values(made.meta().sizes)}, made, {}}); }
  void give(Item item) { out.push_back(std::move(item)); }
};

struct Rule {
  std::string_view name;
  void (*lower)(Step&);
  std::string_view row{};                                                             ///< of our op, where one says it all
  bool pointwise = false;                                                             ///< may stand in the region of a reduction
  bool (*fold)(Step const&, std::span<std::int64_t const>, std::int64_t&) = nullptr;  ///< on whole numbers; false: not known
};
/// The rules of hlo_lower_KIND.cpp; the rule of that name.
std::span<Rule const> pointwise_rules(), special_rules(), shape_rules(), reduce_rules(), index_rules(), sort_rules(), contraction_rules(), flow_rules();
Rule const* find_rule(std::string_view name);

/// Emits into one graph; values of the function being walked are kept by number.
class Lowering final : public Emit {
 public:
  explicit Lowering(Module const& module);
  Graph run();
  int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override;
  Meta const& meta(int value) override { return *graph_.values[static_cast<std::size_t>(value)].meta; }
  /// The tensor of an item, made if it is not there yet.
  Var tensor(Item& item);
  Var filled(Type const& type, Scalar value);
  Var counting(std::int64_t n, base::DType dtype = base::DType::i64);
  /// What a region of scalar operations makes of tensors.
  std::vector<Item> apply(Function const& region, std::vector<Item> const& arguments);
  std::vector<Var> apply(Function const& region, std::span<Var const> arguments);
  /// What a region or function makes of its parameters; a function has values of its own.
  std::vector<Item> walk(Function const& body, std::vector<Item> const& arguments);
  std::vector<Item> call(Step const& step, std::string_view callee);

 private:
  void step(Op const& op);
  Item& at(int value);

  Module const& module_;
  std::unordered_map<std::string_view, Function const*> functions_;
  Graph graph_;
  std::vector<Item> values_;
  std::vector<Function const*> open_;  // functions being walked
  Op const* op_ = nullptr;
  bool spread_ = false;
  std::int64_t steps_ = 0;
  int depth_ = 0;
};

/// A number of a dtype's own kind; whether an item is the given number throughout.
Scalar scalar_of(base::DType dtype, double real, std::int64_t whole);
bool is_number(Item const& item, double number);
/// The result rounded as the dtype has it.
std::int64_t wrapped(base::DType dtype, std::int64_t whole);
/// The op's row by name; Bug if there is none.
OpDef const& row(std::string_view name);
/// x with other sizes, dims in another order, or cut by a step; x itself where nothing changes.
Var sized(Var x, std::span<std::int64_t const> sizes);
Var ordered(Var x, std::span<std::int64_t const> order);
Var strided(Var x, std::size_t dim, std::int64_t start, std::int64_t limit, std::int64_t stride);
/// x between `low` and `high` elements of a number, `interior` between its own; fewer where they are negative.
Var padded(Step& step, Var x, Item& value, std::span<std::int64_t const> low, std::span<std::int64_t const> high, std::span<std::int64_t const> interior);
/// The one operation of a region of two parameters that it returns ("add"); "second" if it returns the second, else empty.
std::string_view combiner(Function const& region);
/// a combined with b as the combiner says, by dtype.
Var combined(std::string_view combiner, Var a, Var b);
/// The number that a combiner leaves everything as it is with.
Scalar identity(std::string_view combiner, base::DType dtype);
/// `x` reduced over dims by a combiner that a row of ours does; nothing if none does.
std::optional<Var> reduced_by(std::string_view combiner, Var x, std::span<std::int64_t const> dims);

}  // namespace tenon::ir::hlo
