module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

namespace {
bool has_ops(Segment const& segment) {
  return std::ranges::any_of(segment.events, [](Event const& event) { return event.op != nullptr; });
}

std::vector<Guard> guards_of(Segment const& segment) {
  std::vector<Guard> list;
  for (auto const line : std::views::split(guards::to_string(segment.guards, segment.graph.symbols), '\n')) {
    std::string_view const text(line.begin(), line.end());
    auto const mark = text.rfind("  # ");
    if (text.empty()) continue;
    if (mark == std::string_view::npos)
      list.push_back({std::string(text), {}});
    else
      list.push_back({std::string(text.substr(0, mark)), std::string(text.substr(mark + 4))});
  }
  return list;
}

Part part_of(Segment const& segment) {
  Part part{.from = segment.cause, .to = segment.end, .graph = segment.graph, .record_seconds = segment.record_seconds, .lower_seconds = segment.lower_seconds};
  for (auto const& event : segment.events)
    if (event.op) part.ops.emplace_back(event.op->name);
  part.guards = guards_of(segment);
  return part;
}

std::string plural(std::int64_t count, std::string_view what) { return std::format("{} {}{}", count, what, count == 1 ? "" : "s"); }
std::string plural(std::size_t count, std::string_view what) { return plural(static_cast<std::int64_t>(count), what); }
}  // namespace

std::string_view name_of(BreakKind kind) {
  constexpr std::pair<BreakKind, std::string_view> names[] = {
      {BreakKind::returned, "returned"},   {BreakKind::explicit_break, "explicit"}, {BreakKind::item, "item"},
      {BreakKind::host_read, "host read"}, {BreakKind::condition, "condition"},     {BreakKind::resize, "resize"},
      {BreakKind::measured, "measured"},   {BreakKind::aliasing, "aliasing"},       {BreakKind::host_effect, "host effect"},
  };
  auto const found = std::ranges::find(names, kind, &std::pair<BreakKind, std::string_view>::first);
  return found == std::end(names) ? "other" : found->second;
}
std::string_view name_of(guards::What what) {
  using guards::What;
  constexpr std::pair<What, std::string_view> names[] = {
      {What::nothing, "nothing"}, {What::settings, "settings"}, {What::value, "value"},   {What::count, "count"},
      {What::dtype, "dtype"},     {What::device, "device"},     {What::rank, "rank"},     {What::requires_grad, "requires_grad"},
      {What::size, "size"},       {What::stride, "stride"},     {What::marks, "marks"},   {What::aliasing, "aliasing"},
      {What::number, "number"},   {What::relation, "relation"}, {What::stream, "stream"},
  };
  auto const found = std::ranges::find(names, what, &std::pair<What, std::string_view>::first);
  return found == std::end(names) ? "other" : found->second;
}

Explanation describe(State& state) {
  std::scoped_lock const lock(state.mutex);
  Explanation report;
  report.name = state.options.name;
  report.breaks = state.breaks;
  report.recompiles = state.recompiles;
  report.limits = state.limits;
  report.calls = state.calls, report.hits = report.calls - state.misses, report.launches = state.launches, report.eager_calls = state.eager_calls;
  report.recorded_ops = state.recorded_ops, report.replayed_ops = state.replayed_ops;
  report.record_seconds = state.record_seconds, report.compile_seconds = state.compile_seconds, report.launch_seconds = state.launch_seconds;
  for (auto& recompile : report.recompiles) recompile.counterfactual = counterfactual(*state.segments[static_cast<std::size_t>(recompile.segment)]);
  for (Segment const* segment : state.segments) {
    if (!has_ops(*segment)) continue;
    report.parts.push_back(part_of(*segment));
    ++report.graphs;
    report.ops += static_cast<int>(report.parts.back().ops.size());
    for (auto& recompile : report.recompiles)
      if (recompile.segment == segment->number) recompile.graph = report.graphs;
  }
  return report;
}

std::string to_string(Explanation const& report) {
  auto text = std::format("{}: {}, {}, {}, {} in {}\n", report.name, plural(report.parts.size(), "graph"), plural(report.breaks.size(), "break"),
                          plural(std::int64_t{report.ops}, "op"), plural(report.recompiles.size(), "recompile"), plural(report.calls, "call"));
  if (!report.error.empty()) text += std::format("  the call threw: {}\n", report.error);
  if (report.parts.empty() && report.breaks.empty()) text += "  no op was captured\n";
  for (std::size_t k = 0; k < report.breaks.size(); ++k) {
    auto const& cause = report.breaks[k];
    text += std::format("  break {}: {}\n    at {}{}\n{}    hint: {}\n", k + 1, cause.reason, base::short_place(cause.at),
                        cause.times > 1 ? std::format(", met {} times", cause.times) : "", base::caret(cause.at, 6), cause.hint);
  }
  for (auto const& recompile : report.recompiles) {
    text += std::format("  recompile: {} ({})\n", recompile.reason.text, recompile.graph > 0 ? std::format("gave graph {}", recompile.graph) : "no op follows");
    text += std::format("    a hit with: {}\n", recompile.counterfactual);
  }
  for (auto const& limit : report.limits)
    text += std::format("  limit: at {} new states run eagerly, {} so far; the last one differed in: {}\n", base::short_place(limit.at),
                        plural(limit.calls, "time"), limit.reason.text);
  for (std::size_t k = 0; k < report.parts.size(); ++k) {
    auto const& part = report.parts[k];
    text += std::format("  graph {}: {}; recorded in {:.3f} ms, lowered in {:.3f} ms; guards:\n", k + 1, plural(part.ops.size(), "op"),
                        part.record_seconds * 1e3, part.lower_seconds * 1e3);
    for (auto const& guard : part.guards) text += std::format("    {}{}{}\n", guard.text, guard.place.empty() ? "" : "  # ", guard.place);
  }
  text += std::format("  time: recording {:.3f} ms, compiling {:.3f} ms, running {:.3f} ms; {} recorded, {} replayed, {} launches, {}\n",
                      report.record_seconds * 1e3, report.compile_seconds * 1e3, report.launch_seconds * 1e3, plural(report.recorded_ops, "op"),
                      report.replayed_ops, report.launches, plural(report.hits, "hit"));
  if (report.eager_calls > 0) text += std::format("  {} ran eagerly beyond the recompile limit\n", plural(report.eager_calls, "call"));
  return text;
}

std::ostream& operator<<(std::ostream& out, Explanation const& explanation) { return out << to_string(explanation); }

Status status(State& state) {
  std::scoped_lock const lock(state.mutex);
  Status now{.name = state.options.name,
             .calls = state.calls,
             .hits = state.calls - state.misses,
             .recompiles = std::ssize(state.recompiles),
             .launches = state.launches,
             .eager_calls = state.eager_calls,
             .graphs = std::ranges::count_if(state.segments, [](Segment const* segment) { return has_ops(*segment); }),
             .breaks = std::ssize(state.breaks)};
  for (auto const& limit : state.limits)
    now.reasons.push_back(std::format("at {} new states run eagerly since the limit of {} was reached, {} so far; the last one differed in: {}",
                                      base::short_place(limit.at), state.options.recompile_limit, plural(limit.calls, "time"), limit.reason.text));
  bool const captured = now.graphs > 0;
  now.standing = !captured && now.calls == 0 ? Standing::uncalled : !captured ? Standing::eager : now.reasons.empty() ? Standing::compiled : Standing::limited;
  if (now.standing == Standing::uncalled)
    now.reasons.emplace_back("it was not called yet, but for calls inside of other compiled functions, which capture it themselves");
  if (now.standing == Standing::eager && now.reasons.empty()) now.reasons.emplace_back("no call of it had an op that was captured");
  return now;
}

std::string to_string(Status const& status) {
  constexpr std::array names{"not called yet", "compiled", "limited", "eager"};
  auto text = std::format("{}: {}; {}, {}, {}, {}, {}, {} launches, {} eager\n", status.name, names[static_cast<std::size_t>(status.standing)],
                          plural(status.calls, "call"), plural(status.hits, "hit"), plural(status.graphs, "graph"), plural(status.breaks, "break"),
                          plural(status.recompiles, "recompile"), status.launches, status.eager_calls);
  for (auto const& reason : status.reasons) text += std::format("  {}\n", reason);
  return text;
}
std::ostream& operator<<(std::ostream& out, Status const& status) { return out << to_string(status); }

}  // namespace tenon::tracer
