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

}  // namespace tenon::ir
