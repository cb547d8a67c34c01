export module tenon.ir:graph;
import std;
import tenon.base;
import :sym;
import :op;
import :rule;

export namespace tenon::ir {

// -- asking about one op ------------------------------------------------------------------------------------------------------------------

/// One parameter of a signature.
struct Parameter {
  enum class Type : std::uint8_t { tensor, tensors, whole, size, wholes, sizes, flag, real, dtype, choice, text, counter, device, reals };
  Type type;
  std::string_view name;
  std::string_view fallback;  ///< the default's text; empty: required
  bool optional = false;
  bool fixed = false;  ///< a float that decides more than elements: never a parameter of a capture
  std::vector<std::string_view> choices{};
};
/// A signature read once: operands first, attributes in storage order.
struct Signature {
  std::vector<Parameter> parameters;
  int operands = 0;       ///< tensor parameters that take one operand
  bool variadic = false;  ///< the last operand parameter is a list
};
/// The signature of an op, cached; Bug if its text is malformed.
Signature const& signature(OpDef const& op);
/// The attributes with every default; required ones are zero, one or empty.
Attrs default_attrs(OpDef const& op);
/// "dims=[1], keepdim=true", attributes equal to their default left out.
std::string to_string(OpDef const& op, Attrs const& attrs, Symbols const* symbols = nullptr);

/// A factor of an equation: its letters (several: a compound dim, major first), or none for size 1.
struct Factor {
  std::string letters;
  bool whole = false, selected = false, positional = false;  ///< marks ! ? +
};
/// Operands and results as lists of factors.
struct Equation {
  std::vector<std::vector<Factor>> operands, results;
};
/// Reads "mk,kn->mn", "n?d,bs->bsd", "(ab)j->abj", "1" for a new or broadcast dim; Error with the column for anything else.
Equation parse_equation(std::string_view text);
/// The equation of one call ("..." for pointwise ops with broadcasting).
std::string equation_of(OpDef const& op, Attrs const& attrs, std::span<Meta const* const> in);

/// Metas of the results; Error naming op, operands and both numbers when the call is not legal.
std::vector<Meta> infer(OpDef const& op, std::span<Meta const* const> in, std::span<Scalar const> scalars, Attrs const& attrs);
/// The dtype that operands promote to (rank -1: the number scalars[k] stands there), in PyTorch's order: tensors with dims, 0-d tensors, numbers.
base::DType common_type(std::span<base::DType const> dtypes, std::span<int const> ranks, std::span<Scalar const> scalars);
/// The result's dtype by the row's Types.
base::DType result_type(Inference const& call);
/// Runs one op on memory with the reference kernels; sizes and dtypes of `out` are as inferred.
void evaluate(OpDef const& op, std::span<Strided const> in, std::span<Scalar const> scalars, Attrs const& attrs, std::span<Strided> out);
/// Metas of the results of a call whose sizes depend on elements (op.measured).
std::vector<Meta> measure(OpDef const& op, std::span<Strided const> in, std::span<Scalar const> scalars, Attrs const& attrs, base::Device device);
/// The attributes that an element function receives: every one but lists and texts, in signature order; an absent float is NaN.
std::vector<double> element_attributes(OpDef const& op, Attrs const& attrs);
/// Whether evaluate has a kernel for the op; otherwise it must be decomposed first.
bool has_kernel(OpDef const& op);
/// FLOPs of a call, and bytes read and written; views cost nothing.
struct Cost {
  double flops = 0, bytes = 0;
};
Cost cost(OpDef const& op, std::span<Meta const* const> in, std::span<Meta const> out, Attrs const& attrs);
/// Fills vjp.grads by the row, or through the decomposition; gradients of broadcast operands are summed back.
void differentiate(OpDef const& op, Vjp& vjp);
/// Sums `x` to the sizes of `like`.
Var sum_to(Var x, Dims const& sizes);

// -- graphs -------------------------------------------------------------------------------------------------------------------------------

struct Node {
  OpDef const* op;
  std::vector<Input> inputs;
  Attrs attrs;
  int first = 0, results = 1;  ///< its values are first … first + results - 1
  base::At at;
  std::string_view module{};  ///< path of the layer that called it ("blocks.0.mlp"), interned; empty: none
};
struct Value {
  MetaRef meta;
  int node = -1;  ///< -1: a graph input
  int index = 0;
  std::string name;
};

/// A pure computation in single-assignment form: nodes in order of execution, each reading values made before it.
struct Graph {
  std::string name = "graph";
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<int> inputs, outputs;
  std::vector<int> mutated{};  ///< places among the inputs that the last outputs are written back to, in that order: memory may be reused for them
  Symbols symbols;

  /// A new input value.
  int input(Meta meta, std::string name = {});
  /// Appends a call, inferring its results; returns the first result's value.
  int add(OpDef const& op, std::vector<Input> in, Attrs attrs = {}, base::At at = base::At::current());
};

/// Structure, order, arity, and metas equal to inference anew; Bug naming the node otherwise.
void verify(Graph const& graph);
/// The graph without nodes that no output needs; random and host nodes stay.
Graph eliminate_dead_code(Graph const& graph);
/// The graph with equal calls merged into the first of them (random and host ops never).
Graph merge_common(Graph const& graph);
/// The graph with every composite op replaced by its body, until `keep` holds for all ops; default: what evaluate can run.
Graph decompose(Graph const& graph, std::function<bool(OpDef const&)> keep = has_kernel);
/// The joint graph: outputs are those of `graph`, then gradients of inputs `wrt` of the (scalar) output 0, zeros where it does not depend on one.
Graph with_gradients(Graph const& graph, std::span<int const> wrt);
/// Whether two graphs have the same nodes, attributes, metas, inputs and outputs.
bool equal(Graph const& a, Graph const& b);

/// Evaluates the graph on row-major or strided inputs with the reference kernels, freeing values after their last use.
struct Evaluated {
  std::vector<Strided> outputs;
  std::vector<base::Ref<base::Buffer>> storage;  ///< what the outputs point into
};
Evaluated evaluate(Graph const& graph, std::span<Strided const> inputs, Bindings const& bindings = {});

/// Our own text form; parse(print(graph)) is the same graph.
std::string to_string(Graph const& graph);
/// Reads it; Error with line and column.
Graph parse_graph(std::string_view text);
/// Graphviz DOT: a box a node, its line of source beside it.
std::string to_dot(Graph const& graph);

}  // namespace tenon::ir

namespace tenon::ir {  // for inference and the text forms
/// Appends the next attribute of `from`, which is of this parameter.
void copy_attribute(Parameter const& parameter, AttrReader& from, Attrs& to);
/// Which attribute is missing, too many or none of its type's values; empty if the attributes fit the signature.
std::string attribute_fault(OpDef const& op, Attrs const& attrs);
/// Reads a size at `at` and moves behind it; Error without a place when `at` stands at the fault. Unknown symbols are made if `makes`.
Dim read_size(Symbols& symbols, std::string_view text, std::size_t& at, bool makes);
/// In double quotes, with quotes and backslashes escaped.
std::string quoted(std::string_view text);
/// The text itself if it is letters, digits, '_' and '.', else quoted.
std::string name_text(std::string_view text);
}  // namespace tenon::ir
