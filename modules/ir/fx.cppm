/// How our ops are spelt in FX: the table that both directions read.
module tenon.ir:fx;
import std;
import tenon.base;
import :sym;
import :op;
import :graph;
import :text;

namespace tenon::ir::fx {

/// One argument of a spelling.
struct Item {
  enum class Kind : std::uint8_t { parameter, first, wrapped, fixed, literal, rest };
  Kind kind = Kind::parameter;  ///< a parameter; a list's only item; an operand inside a list; an attribute that must have `value` and is not
                                ///< printed; a constant; all other attributes as keywords
  int parameter = -1;           ///< of the op's signature
  bool keyword = false;         ///< printed with its name
  std::string name{};
  FxArg value{};
};

/// A row of the table, read: how one op may be written.
struct Spelling {
  OpDef const* op;
  FxNode::Code code;
  std::string target;
  std::string operands{};  ///< a character an operand: 't' tensor, 's' number, a digit a tensor of that rank, '.' any; empty: any
  bool aten = false;
  bool reads_only = false;
  std::vector<Item> items{};
};

/// The spellings of an op in the order of preference; the last one fits every call.
std::span<Spelling const> spellings(OpDef const& op);
/// The spellings that have that target, in the same order, then the one by the op's own signature; empty if it names no op.
std::vector<Spelling const*> spellings(FxNode::Code code, std::string_view target);

/// What a module of torch.nn does: Linear(in, out, bias) → torch.nn.functional.linear(input, weight=weight, bias=bias).
struct ModuleRow {
  std::string_view kind, target;
  std::string_view parameters;  ///< "weight, bias?": a mark means that it may be absent
  std::string_view arguments;   ///< of the constructor by place, passed on by name; "-": one that is not
  std::string_view ignored;     ///< keywords of the constructor that the parameters tell already
};
/// The row of a kind ("Linear", "torch.nn.Linear"); null if it has none.
ModuleRow const* module_row(std::string_view kind);
/// Splits at commas outside of square brackets.
std::vector<std::string_view> parts(std::string_view text);
/// Whether two arguments are the same to the bit.
bool same(FxArg const& a, FxArg const& b);

/// "f32[3, 4]", then strides unless row-major, then the device unless it is the CPU; and back.
std::string type_text(Meta const& meta, Symbols const& symbols);
Meta type_of(std::string_view text);
/// Python's text of a float or of a string.
std::string python(double number), python(std::string_view text);
/// The sign that code writes for operator.NAME with one operand or two ("+", "+=", "-"), empty if there is none; and the target of a sign.
std::string_view operator_sign(std::string_view target, int operands);
std::string operator_target(std::string_view sign, int operands);
/// An argument as generated code writes it; nodes by their names.
std::string code_text(FxGraph const& graph, FxArg const& arg);
/// Calls f on every node that an argument reads, in order.
void each_node(FxArg const& arg, std::function<void(std::size_t)> const& f);
/// What both readers of FX texts read with: places, names and values of one buffer.
class Reader {
 public:
  explicit Reader(std::string_view text);
  /// "Linear(in_features=3, bias=True)", or the name alone: the name and the arguments, by place ("0") or name.
  std::pair<std::string, std::vector<std::pair<std::string, FxArg>>> call();

 protected:
  [[noreturn]] void refuse(std::string_view what) const;
  [[noreturn]] void refuse_at(std::size_t place, std::string_view what);
  void skip_spaces(), skip_lines(), skip_line();
  char peek();
  bool accept(std::string_view token), starts_word(std::string_view word);
  void expect(std::string_view token);
  std::string name(), dotted(), line_until(std::string_view end), string();
  FxArg reference(std::string const& name, std::size_t start);
  std::optional<FxArg> atom(std::string_view text) const;
  FxArg value(int depth = 0), bare(), word(), device_call(), device_word(std::string const& text) const;
  std::vector<FxArg> items(std::string_view close, int depth);
  void arguments(FxNode& node), keyword(FxNode& node, std::string key, std::size_t start);

  std::string_view text_;
  std::size_t at_ = 0;
  int brackets_ = 0;                                      ///< inside them a line may end anywhere
  bool printed_ = false;                                  ///< the printed graph: "%x" is a node, strings have no quotes
  bool single_ = false;                                   ///< the last items were one, without a comma
  std::unordered_map<std::string, std::size_t> known_{};  ///< nodes that may be read
  std::unordered_set<std::string> names_{};               ///< of all nodes so far
};
bool is_letter(char c);

/// Names of nodes as torch.fx gives them: unique, without shadowing Python's words.
class Names {
 public:
  std::string unique(std::string_view wish);

 private:
  std::unordered_set<std::string> used_{};
  std::unordered_map<std::string, std::int64_t> count_{};
};

}  // namespace tenon::ir::fx
