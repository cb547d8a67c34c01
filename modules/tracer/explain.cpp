module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

Explanation describe(State& state) {
  std::scoped_lock const lock(state.mutex);
  Explanation report;
  report.name = state.options.name;
  report.breaks = state.breaks;
  report.recompiles = state.recompiles;
  report.calls = state.calls, report.launches = state.launches, report.eager_calls = state.eager_calls;
  report.recorded_ops = state.recorded_ops, report.replayed_ops = state.replayed_ops;
  report.record_seconds = state.record_seconds, report.compile_seconds = state.compile_seconds, report.launch_seconds = state.launch_seconds;
  for (Segment const* segment : state.segments) {
    auto const ops = static_cast<int>(std::ranges::count_if(segment->events, [](Event const& e) { return e.op != nullptr; }));
    if (ops == 0) continue;
    ++report.graphs;
    report.ops += ops;
    report.ops_per_graph.push_back(ops);
    report.guards.push_back(guards::to_string(segment->guards, segment->graph.symbols));
    report.graph_texts.push_back(to_string(segment->graph));
    for (auto& recompile : report.recompiles)
      if (recompile.segment == segment->number) recompile.graph = report.graphs;
  }
  return report;
}

std::string to_string(Explanation const& report) {
  auto text = std::format("{}: {} graph{}, {} break{}, {} ops, {} recompile{} in {} call{}\n", report.name, report.graphs, report.graphs == 1 ? "" : "s",
                          report.breaks.size(), report.breaks.size() == 1 ? "" : "s", report.ops, report.recompiles.size(),
                          report.recompiles.size() == 1 ? "" : "s", report.calls, report.calls == 1 ? "" : "s");
  for (std::size_t k = 0; k < report.breaks.size(); ++k) {
    auto const& cause = report.breaks[k];
    text += std::format("  break {}: {}\n    at {}\n{}    hint: {}\n", k + 1, cause.reason, base::short_place(cause.at), base::caret(cause.at, 6), cause.hint);
  }
  for (auto const& recompile : report.recompiles)
    text += std::format("  recompile: {} ({})\n", recompile.reason.text, recompile.graph > 0 ? std::format("gave graph {}", recompile.graph) : "no op follows");
  for (std::size_t k = 0; k < report.guards.size(); ++k) {
    text += std::format("  graph {}: {} ops; guards:\n", k + 1, report.ops_per_graph[k]);
    for (auto const line : std::views::split(report.guards[k], '\n'))
      if (!line.empty()) text += std::format("    {}\n", std::string_view(line.begin(), line.end()));
  }
  text += std::format("  time: recording {:.3f} ms, compiling {:.3f} ms, running {:.3f} ms; {} ops recorded, {} replayed, {} launches\n",
                      report.record_seconds * 1e3, report.compile_seconds * 1e3, report.launch_seconds * 1e3, report.recorded_ops, report.replayed_ops,
                      report.launches);
  if (report.eager_calls > 0)
    text += std::format("  {} call{} ran eagerly beyond the recompile limit\n", report.eager_calls, report.eager_calls == 1 ? "" : "s");
  return text;
}

std::ostream& operator<<(std::ostream& out, Explanation const& explanation) { return out << to_string(explanation); }

}  // namespace tenon::tracer
