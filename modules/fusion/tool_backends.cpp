// The backends of tenon-run: the evaluator, and compiled kernels.
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
#include "../ir/tool.hpp"
using namespace tenon;

namespace {
RunBackend::Runner reference(ir::Graph const& graph) {
  auto const lowered = std::make_shared<ir::Graph const>(ir::decompose(ir::eliminate_dead_code(graph)));
  return [lowered](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) { return ir::evaluate(*lowered, inputs, bindings); };
}
constexpr RunBackend table[] = {
    {"reference", reference},
    {"fusion", [](ir::Graph const& graph) { return fusion::lower(graph); }},
};
}  // namespace

std::span<RunBackend const> run_backends() { return table; }
