/// Words for writing StableHLO's operations, and the tables of rules that do it.
module tenon.ir:hlo_raise;
import std;
import tenon.base;
import :sym;
import :op;
import :graph;
import :hlo;

namespace tenon::ir::hlo {

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
  std::vector<Term> write(std::string_view name, std::span<Term const> operands, std::vector<Type> results, Attributes attributes,
                          std::vector<Function> regions);
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
/// x at places along `dims`, one a dim in the last dim of `places`; the other dims of `places` stand at `at` among those of x that are not named.
Term taken_at(Term x, Sizes const& dims, std::size_t at, Term places);
Term put_at(Term x, Sizes const& dims, std::size_t at, Term places, Term updates, std::string_view combine);
/// Coordinates, a tensor a dim, as places.
Term places_of(std::span<Term const> coordinates);
/// The same where the index has all dims of x and gives the place along `axis` only.
Term taken_each(Term x, std::size_t axis, Term index), put_each(Term x, std::size_t axis, Term index, Term updates, std::string_view combine);

struct RaiseRule;
/// A node on its way into a function.
struct Raising {
  Writer& to;
  Graph const& graph;
  Node const& node;
  RaiseRule const& rule;
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
struct RaiseRule {
  std::string_view op, word{};
  void (*write)(Raising&) = nullptr;
  Term (*element)(std::span<Term const> x, std::span<double const> a, std::string_view word) = nullptr;
  bool plain = false;
  int condition = -1;  ///< an operand that is converted to booleans
};
std::span<RaiseRule const> raised_pointwise(), raised_shape(), raised_index(), raised_fold(), raised_window();
/// The element whose C text is `source`, over operands and attributes; Error with the column of what has no operation.
Term element_of_source(std::span<Term const> x, std::span<double const> a, std::string_view source);
/// What arithmetic on the dtype runs in: small floats f32, booleans i64.
base::DType working(base::DType dtype);
/// What a maximum (or minimum) starts from, and its operation.
Scalar least(base::DType dtype, bool largest);
std::string_view most_word(base::DType dtype, bool largest);
/// Sums of an element and those before it along a dim.
Term running_sum(Term x, std::size_t dim);
/// The dim that an attribute names, for a tensor of that rank; 0, 1, … n - 1.
std::size_t place(Dim dim, std::size_t rank);
Sizes counted(std::size_t n);
bool contains(Sizes const& list, std::int64_t number);

}  // namespace tenon::ir::hlo
