/// What StableHLO's and HLO's texts say, before it means anything: both readers fill it, both printers read it.
module tenon.ir:hlo;
import std;
import tenon.base;
import :sym;
import :op;
import :graph;

namespace tenon::ir::hlo {

/// A ranked tensor of static sizes, or a tuple's end ("token" and "tuple" never come here).
struct Type {
  base::DType dtype = base::DType::f32;
  std::vector<std::int64_t> sizes;
};

/// Elements of a constant in row-major order: one for all (a splat), or each.
struct Literal {
  Type type;
  std::vector<double> reals;         ///< of floating types
  std::vector<std::int64_t> wholes;  ///< of integers and booleans
};

/// An attribute: a number, words, a list, a matrix (padding), or elements.
using Attribute = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<std::vector<std::int64_t>>, Literal>;

struct Function;

/// One operation, in StableHLO's words ("dot_general", not HLO's "dot"; "call" and "return" too) and with StableHLO's names of attributes.
struct Op {
  std::string name;  ///< without "stablehlo."; "chlo.erf" keeps its dialect
  std::vector<int> operands;
  std::vector<int> results;  ///< values of the function, numbered from 0, regions included
  std::vector<Type> types;   ///< of the results
  std::vector<std::pair<std::string, Attribute>> attributes;
  std::vector<Function> regions;
  int line = 0, column = 0;  ///< of the text; 0: made here
  Attribute const* find(std::string_view key) const;
};

/// A function or a region: parameters, operations in order, and what it returns. A region's values are those of its function.
struct Function {
  std::string name;
  std::vector<int> parameters;
  std::vector<Type> types;         ///< of the parameters
  std::vector<std::string> names;  ///< of the parameters; may be empty
  std::vector<Op> ops;
  std::vector<int> returns;
};

struct Module {
  std::string name;
  std::vector<Function> functions;  ///< "main" is the entry
};

/// The texts' grammar alone; Error with line and column.
Module read_stablehlo(std::string_view text);
Module read_hlo(std::string_view text);
/// What a module means: calls inlined, regions recognised, counted loops unrolled.
Graph lower(Module const& module);
/// A graph in StableHLO's operations, and both texts of a module.
Module raise(Graph const& graph, bool chlo = true);  // chlo: erf and erfc are words
std::string print_stablehlo(Module const& module);
std::string print_hlo(Module const& module);

// -- writing ----------------------------------------------------------------------------------------------------------------------------------

using Sizes = std::vector<std::int64_t>;
using Attributes = std::vector<std::pair<std::string, Attribute>>;
struct Writer;

/// A value being written, or a number that takes the type of what stands beside it; reads like mathematics.
struct Term {
  Writer* to = nullptr;
  int value = -1;
  Scalar number{};
  Term() = default;
  Term(Writer& writer, int written) : to(&writer), value(written) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Term(T literal) : number(literal) {}
  Type const& type() const;
  base::DType dtype() const { return type().dtype; }
  Sizes const& sizes() const { return type().sizes; }
  std::size_t rank() const { return sizes().size(); }
};

/// Appends operations to a function and knows the type of each of its values.
struct Writer {
  Function* function;
  bool chlo = true;
  std::deque<Type> types{};
  std::map<std::tuple<base::DType, std::uint64_t, Sizes>, int> constants{};
  std::map<int, int> reshapes{};  ///< what a reshape reads
  Term parameter(Type type, std::string name);
  std::vector<Term> write(std::string_view name, std::span<Term const> operands, std::vector<Type> results, Attributes attributes, std::vector<Function> regions);
  Term write(std::string_view name, std::initializer_list<Term> operands, Type result, Attributes attributes = {}, std::vector<Function> regions = {});
  /// A number in every element; the elements of `literal`; 0, 1, 2 … along a dim.
  Term number(Scalar const& number, Type const& type), literal(Literal literal), counting(Type type, std::size_t dim);
  /// A region of scalar parameters whose body gives what it returns.
  Function region(std::vector<base::DType> const& parameters, std::function<Term(std::span<Term const>)> const& body);
};

Term unary(std::string_view name, Term x), binary(std::string_view name, Term a, Term b), compare(std::string_view direction, Term a, Term b);
Term operator+(Term a, Term b), operator-(Term a, Term b), operator*(Term a, Term b), operator/(Term a, Term b), operator-(Term a);
/// On booleans and, for the first three, on bits.
Term operator&(Term a, Term b), operator|(Term a, Term b), operator^(Term a, Term b), operator!(Term a);
Term choose(Term condition, Term yes, Term no);
/// convert: as Tenon's `to`, to bool by != 0, from a float to a narrow integer through i64.
Term convert(Term x, base::DType dtype), reshaped(Term x, Sizes const& sizes), permuted(Term x, Sizes const& order), broadcast(Term x, Sizes const& sizes);
/// Broadcast whose operand's dims become `dims` of the result.
Term spread(Term x, Sizes const& sizes, Sizes const& dims), reversed(Term x, Sizes const& dims);
Term cut(Term x, std::size_t dim, std::int64_t start, std::int64_t limit, std::int64_t step = 1);
/// With `low` and `high` elements at the ends and `interior` ones between; negative ends are cut off.
Term padded(Term x, Scalar fill, Sizes const& low, Sizes const& high, Sizes const& interior);
Term padded(Term x, Scalar fill, std::size_t dim, std::int64_t low, std::int64_t high, std::int64_t interior = 0);
Term joined(std::span<Term const> parts, std::size_t dim), folded(std::string_view name, Term x, Sizes const& dims, Scalar init);
/// x at `index` along `axis`, the dims of the index in place of it; and the same places of x overwritten (or combined by an operation) with `updates`.
Term taken(Term x, std::size_t axis, Term index), put(Term x, std::size_t axis, Term index, Term updates, std::string_view combine);
/// The same where the index has all dims of x and gives the place along `axis` only.
Term taken_each(Term x, std::size_t axis, Term index), put_each(Term x, std::size_t axis, Term index, Term updates, std::string_view combine);

struct Rule;
/// A node on its way into a function.
struct Raising {
  Writer& to;
  Graph const& graph;
  Node const& node;
  Rule const& rule;
  std::span<Term const> values;  ///< of the graph
  std::span<char const> read;    ///< whether a value of the graph is read by anything
  std::vector<Term> out{};
  bool has(std::size_t k) const { return node.inputs[k].value >= 0; }
  Meta const& meta(std::size_t k) const { return *graph.values[static_cast<std::size_t>(node.inputs[k].value)].meta; }
  Term x(std::size_t k = 0) const { return values[static_cast<std::size_t>(node.inputs[k].value)]; }
  Type result(std::size_t k = 0) const;
  bool used(std::size_t k) const { return read[static_cast<std::size_t>(node.first) + k] != 0; }
  AttrReader attrs() const { return {node.attrs}; }
};
/// How an op is written: by itself, or as a formula over its elements, broadcast and converted to what arithmetic runs in (`plain`: as they are).
struct Rule {
  std::string_view op, word{};
  void (*write)(Raising&) = nullptr;
  Term (*element)(std::span<Term const> x, std::span<double const> a, std::string_view word) = nullptr;
  bool plain = false;
  int condition = -1;  ///< an operand that is converted to booleans
};
std::span<Rule const> pointwise_rules(), shape_rules(), index_rules(), fold_rules(), window_rules();
/// What arithmetic on the dtype runs in: small floats f32, booleans i64.
base::DType working(base::DType dtype);
/// What a maximum (or minimum) starts from, and its operation.
Scalar least(base::DType dtype, bool largest);
std::string_view most_word(base::DType dtype, bool largest);
/// The dim that an attribute names, for a tensor of that rank; 0, 1, … n - 1.
std::size_t place(Dim dim, std::size_t rank);
Sizes counted(std::size_t n);
bool contains(Sizes const& list, std::int64_t number);

}  // namespace tenon::ir::hlo
