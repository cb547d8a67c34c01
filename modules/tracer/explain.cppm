export module tenon.tracer:explain;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :interpreter;
import :segment;
import :state;
import :compile;

export namespace tenon::tracer {

/// One condition under which a graph may run, and "file.cpp:12:9" of the line that made it; empty where it is one of the whole call.
struct Guard {
  std::string text, place;
};

/// One captured graph: where it begins and ends, its ops in order, what it relies on, and what it cost.
struct Part {
  Break from;  ///< the break behind which it begins; kind returned: it begins with the function
  Break to;    ///< the break that ends it; kind returned: it ends with the function
  std::vector<std::string> ops;
  std::vector<Guard> guards;
  ir::Graph graph;
  double record_seconds = 0, lower_seconds = 0;
};

/// What a function was captured as: graphs, breaks, guards, recompiles and times, as data; see to_string, to_json and to_html.
struct Explanation {
  std::string name;
  int graphs = 0, ops = 0;            ///< segments that hold ops, and ops of all of them
  std::vector<Part> parts;            ///< the graphs, in order of compilation
  std::vector<BreakCount> breaks;     ///< each place once, in order of appearance
  std::vector<Recompile> recompiles;  ///< each with its counterfactual
  std::vector<Limit> limits;          ///< places where new states run eagerly
  std::int64_t calls = 0, hits = 0;   ///< a hit records nothing and runs nothing eagerly
  std::int64_t launches = 0, replayed_ops = 0, recorded_ops = 0, eager_calls = 0;
  double record_seconds = 0, compile_seconds = 0, launch_seconds = 0;
  std::string error;  ///< what the explained call threw; empty if it returned
};
/// "item", "condition"; "size", "stream".
std::string_view name_of(BreakKind kind), name_of(guards::What what);
/// All calls of a compiled function so far, without another one.
Explanation describe(State& state);
/// The report as text for a terminal.
std::string to_string(Explanation const& explanation);
std::ostream& operator<<(std::ostream& out, Explanation const& explanation);
/// The report as JSON; docs/tracer.md has its schema.
std::string to_json(Explanation const& explanation);
/// The report as one HTML page that needs no other file: the flow of graphs and breaks, each graph drawn (listed where the program dot is missing).
std::string to_html(Explanation const& explanation);
/// Writes that page; Error naming the file that can't be written.
void save_html(Explanation const& explanation, std::filesystem::path const& file);

/// What a compiled function does now.
enum class Standing : std::uint8_t {
  uncalled,  ///< nothing was captured yet
  compiled,  ///< every call so far was recorded or replayed
  limited,   ///< a place holds as many graphs as it may: old states are replayed, new ones run eagerly
  eager      ///< no graph holds an op: its calls run as if they were not compiled
};
/// The standing of a compiled function, why it is so, and counters.
struct Status {
  std::string name;
  Standing standing = Standing::uncalled;
  std::vector<std::string> reasons;  ///< empty if compiled
  std::int64_t calls = 0, hits = 0, recompiles = 0, launches = 0, eager_calls = 0;
  std::int64_t graphs = 0, breaks = 0;  ///< places where the function broke, each counted once
};
/// Takes one lock and prints nothing: cheap enough for every step of a training.
Status status(State& state);
template <class F>
Status status(Compiled<F> const& compiled) {
  return status(compiled.state());
}
/// "layer: compiled; 4 calls, 2 hits, …", and a line for each reason.
std::string to_string(Status const& status);
std::ostream& operator<<(std::ostream& out, Status const& status);

/// Calls a compiled function and reports all its calls so far; what the call throws becomes the report's `error`.
template <class F, class... Args>
Explanation explain_call(Compiled<F> const& compiled, Args&&... args) {
  std::string error;
  try {
    (void)compiled(args...);
  } catch (std::exception const& thrown) {
    error = thrown.what();
  } catch (...) {
    error = "an exception that is no std::exception";
  }
  auto report = describe(compiled.state());
  report.error = std::move(error);
  return report;
}
/// explain(f)(args…) runs f once under a fresh capture and says what became of it; explain(compiled)(args…) reports all its calls so far.
template <class F>
auto explain(F&& fn, Options options = {}) {
  return [compiled = compile(std::forward<F>(fn), std::move(options))](auto&&... args) { return explain_call(compiled, args...); };
}
template <class F>
auto explain(Compiled<F> compiled) {
  return [compiled](auto&&... args) { return explain_call(compiled, args...); };
}

}  // namespace tenon::tracer
