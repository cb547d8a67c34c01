export module tenon.tracer:explain;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;
import :segment;
import :compile;

export namespace tenon::tracer {

/// What a function was captured as: graphs, breaks, guards, recompiles and times, as data and as text.
struct Explanation {
  int graphs = 0, ops = 0;
  std::vector<int> ops_per_graph;
  std::vector<Break> breaks;
  std::vector<std::string> guards, graph_texts;
  std::vector<Recompile> recompiles;
  std::int64_t calls = 0, launches = 0, replayed_ops = 0, recorded_ops = 0, eager_calls = 0;
  double record_seconds = 0, compile_seconds = 0, launch_seconds = 0;
  std::string name;
};
Explanation describe(State& state);
std::string to_string(Explanation const& explanation);
std::ostream& operator<<(std::ostream& out, Explanation const& explanation);

/// explain(f)(args…) runs f once under a fresh capture and says what became of it; explain(compiled)(args…) reports all its calls so far.
template <class F>
auto explain(F&& fn, Options options = {}) {
  return [compiled = compile(std::forward<F>(fn), std::move(options))](auto&&... args) {
    (void)compiled(args...);
    return describe(compiled.state());
  };
}
template <class F>
auto explain(Compiled<F> compiled) {
  return [compiled](auto&&... args) {
    (void)compiled(args...);
    return describe(compiled.state());
  };
}

}  // namespace tenon::tracer
