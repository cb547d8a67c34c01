export module tenon.ir:text;
import std;
import tenon.base;
import :sym;
import :op;
import :rule;
import :graph;

export namespace tenon::ir {

// -- StableHLO and HLO ----------------------------------------------------------------------------------------------------------------------

/// Reads a StableHLO module as MLIR text (as JAX lowers): `main` with its calls inlined and counted loops unrolled; Error with line and column.
Graph parse_stablehlo(std::string_view text);
/// Reads an HLO module's text: the entry computation; Error with line and column.
Graph parse_hlo(std::string_view text);
/// The graph as StableHLO text, composite ops decomposed; Error naming the op that has no such form, or a symbolic size.
std::string to_stablehlo(Graph const& graph);
/// The graph as HLO text, likewise.
std::string to_hlo(Graph const& graph);

// -- FX -------------------------------------------------------------------------------------------------------------------------------------

/// An argument of an FX call.
struct FxArg {
  enum class Kind : std::uint8_t { none, node, boolean, whole, real, text, word, list, tuple, slice };
  Kind kind = Kind::none;
  std::int64_t whole = 0;      ///< a number, a flag, or the place of a node
  double real = 0;             ///< a float
  std::string text{};          ///< a string; or a word of Python: "torch.float32", "device(type='cpu')", "Ellipsis"
  std::vector<FxArg> items{};  ///< of a list or tuple; start, stop and step of a slice
  static FxArg of_node(std::size_t place) { return {.kind = Kind::node, .whole = static_cast<std::int64_t>(place)}; }
  static FxArg of(bool flag) { return {.kind = Kind::boolean, .whole = flag}; }
  static FxArg of(std::int64_t number) { return {.kind = Kind::whole, .whole = number}; }
  static FxArg of(double number) { return {.kind = Kind::real, .real = number}; }
  static FxArg of_text(std::string_view words) { return {.kind = Kind::text, .text = std::string(words)}; }
  static FxArg of_word(std::string_view word) { return {.kind = Kind::word, .text = std::string(word)}; }
  static FxArg of_items(Kind kind, std::vector<FxArg> items) { return {.kind = kind, .items = std::move(items)}; }
};

/// A node of an FX graph: "placeholder" … "output" are its opcodes, the target is written as PyTorch prints it ("torch.relu", "fc1", "softmax").
struct FxNode {
  enum class Code : std::uint8_t { placeholder, get_attr, call_function, call_method, call_module, output };
  Code code = Code::call_function;
  std::string name, target;
  std::vector<FxArg> args{};  ///< of a placeholder: its default, if any; of the output: what is returned
  std::vector<std::pair<std::string, FxArg>> kwargs{};
  std::string type{};  ///< an annotation: "f32[3, 4]", or a Python type
};

/// What torch.fx prints and reads: nodes in order of execution, the output last.
struct FxGraph {
  std::vector<FxNode> nodes;
};

/// Reads FX text: the printed graph ("graph():"), generated code ("def forward(self, x):") or that of print_readable; Error with line and column.
FxGraph parse_fx(std::string_view text);
/// The printed graph, and the generated code, as PyTorch writes them.
std::string to_string(FxGraph const& graph), to_code(FxGraph const& graph);
/// Where two graphs first differ but for names of nodes and inputs: both texts; empty if they are the same.
std::string difference(FxGraph const& a, FxGraph const& b);
/// Whether two graphs have the same nodes, targets and arguments, whatever nodes and inputs are called.
inline bool same_structure(FxGraph const& a, FxGraph const& b) { return difference(a, b).empty(); }

/// Targets of a printed graph: torch's functions, operators and methods, or ATen's overloads (composites that ATen's core lacks are lowered).
enum class FxStyle : std::uint8_t { functional, aten };
struct FxOptions {
  FxStyle style = FxStyle::functional;
  bool fold = true;    ///< functional: a call of a layer is one call_module, a parameter a get_attr
  bool types = false;  ///< each node has its dtype and sizes
};
/// A graph in FX's form; an op that PyTorch lacks becomes torch.ops.tenon.NAME.default.
FxGraph to_fx(Graph const& graph, FxOptions const& options = {});

/// What an FX text leaves open.
struct FxSurroundings {
  std::map<std::string, Meta> tensors{};         ///< of placeholders by name or by place ("0"), of attributes by path ("fc1.weight")
  std::map<std::string, std::string> modules{};  ///< of call_module targets, as PyTorch prints them: "Linear(bias=True)", "Softmax(dim=-1)"
};
/// An FX graph in our ops; attributes and parameters become inputs named by their path. Error naming the node that has no such form.
Graph from_fx(FxGraph const& fx, FxSurroundings const& surroundings = {});

// -- any of them ----------------------------------------------------------------------------------------------------------------------------

/// The text forms that are read: our own, FX's two, MLIR's and XLA's.
enum class TextForm : std::uint8_t { own, fx, stablehlo, hlo };
/// The form that a text begins like; Error naming the forms if it begins like none.
TextForm form_of(std::string_view text);
/// Reads a graph of any form; `surroundings` say what an FX text leaves open.
Graph read_graph(std::string_view text, FxSurroundings const& surroundings = {});
/// A DOT text drawn as SVG by the program dot of Graphviz; Error if that is not installed.
std::string to_svg(std::string_view dot);

}  // namespace tenon::ir
