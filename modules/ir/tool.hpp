#pragma once
// What tenon-run evaluates with. Behind `import std; import tenon.base; import tenon.ir;`.

/// An engine by the name that --backend takes: it prepares a graph once and then runs it any number of times.
struct RunBackend {
  using Runner = std::function<tenon::ir::Evaluated(std::span<tenon::ir::Strided const> inputs, tenon::ir::Bindings const& bindings)>;
  std::string_view name;
  Runner (*prepare)(tenon::ir::Graph const& graph);
};
/// The table that the program is linked with: modules/fusion/tool_backends.cpp.
std::span<RunBackend const> run_backends();
