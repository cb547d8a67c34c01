module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

void graph_break(std::string_view why, At at) {
  if (auto* session = Session::current()) session->split({BreakKind::explicit_break, std::string(why), "remove the call of graph_break()", at});
}
void host_effect(std::function<void()> const& effect, At at) {
  if (auto* session = Session::current())
    session->split({BreakKind::host_effect, "an effect on the host has its place among the ops", "move it out of the compiled function", at});
  effect();
}

}  // namespace tenon::tracer
