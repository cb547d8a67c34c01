/// What StableHLO's and HLO's texts say, before it means anything: both readers fill it, both printers read it.
module tenon.ir:hlo;
import std;
import tenon.base;
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
Module raise(Graph const& graph, bool chlo = true);  // chlo: erf and erfc are words, not arithmetic
std::string print_stablehlo(Module const& module);
std::string print_hlo(Module const& module);

}  // namespace tenon::ir::hlo
