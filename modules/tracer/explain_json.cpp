module;
#include <nlohmann/json.hpp>
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;

namespace tenon::tracer {

namespace {
using Json = nlohmann::ordered_json;

Json of(At at) { return {{"file", at.file}, {"line", at.line}, {"column", at.column}, {"source", base::caret(at, 0)}}; }
Json of(Break const& cause) {
  if (cause.kind == BreakKind::returned) return nullptr;
  return {{"kind", name_of(cause.kind)}, {"reason", cause.reason}, {"hint", cause.hint}, {"at", of(cause.at)}};
}
Json of(BreakCount const& cause) {
  Json json = of(static_cast<Break const&>(cause));
  json["times"] = cause.times;
  return json;
}
Json of(guards::Mismatch const& reason) {
  using guards::What;
  bool const numbers = reason.what == What::count || reason.what == What::rank || reason.what == What::size || reason.what == What::stride;
  return {{"what", name_of(reason.what)},
          {"source", reason.source},
          {"dim", reason.dim < 0 ? Json() : Json(reason.dim)},
          {"expected", numbers ? Json(reason.expected) : Json()},
          {"actual", numbers ? Json(reason.actual) : Json()},
          {"text", reason.text}};
}
Json of(Part const& part) {
  Json guards = Json::array();
  for (auto const& guard : part.guards) guards.push_back({{"text", guard.text}, {"place", guard.place}});
  return {{"from", of(part.from)},
          {"to", of(part.to)},
          {"ops", part.ops},
          {"guards", guards},
          {"graph", ir::to_string(part.graph)},
          {"record_seconds", part.record_seconds},
          {"lower_seconds", part.lower_seconds}};
}
Json of(Recompile const& recompile) {
  return {{"reason", of(recompile.reason)}, {"counterfactual", recompile.counterfactual}, {"graph", recompile.graph}, {"at", of(recompile.at)}};
}
Json of(Limit const& limit) { return {{"reason", of(limit.reason)}, {"times", limit.calls}, {"at", of(limit.at)}}; }

template <class T>
Json list_of(std::vector<T> const& items) {
  Json list = Json::array();
  for (auto const& item : items) list.push_back(of(item));
  return list;
}
}  // namespace

std::string to_json(Explanation const& report) {
  Json const json{{"name", report.name},
                  {"error", report.error.empty() ? Json() : Json(report.error)},
                  {"graphs", report.graphs},
                  {"ops", report.ops},
                  {"calls", report.calls},
                  {"hits", report.hits},
                  {"launches", report.launches},
                  {"recorded_ops", report.recorded_ops},
                  {"replayed_ops", report.replayed_ops},
                  {"eager_calls", report.eager_calls},
                  {"seconds", {{"recording", report.record_seconds}, {"lowering", report.compile_seconds}, {"running", report.launch_seconds}}},
                  {"parts", list_of(report.parts)},
                  {"breaks", list_of(report.breaks)},
                  {"recompiles", list_of(report.recompiles)},
                  {"limits", list_of(report.limits)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tenon::tracer
