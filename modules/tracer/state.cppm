export module tenon.tracer:state;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;
import :segment;

export namespace tenon::tracer {

enum class Dynamic : std::uint8_t { automatic, always, never };
/// Node by node as recorded, dead code too, composites by their bodies: if this differs from a plain call, it is the capture's doing.
Runner eager_backend(ir::Graph const& graph);
enum class Mode : std::uint8_t { normal, reduce_overhead, max_autotune };
/// What functions run on that are compiled without a backend of their own: `reference_backend` until somebody sets another, as module tenon does.
Backend default_backend(Mode mode);
void set_default_backend(Backend (*choose)(Mode mode));
/// How a function is compiled.
struct Options {
  Mode mode = Mode::normal;
  bool fullgraph = false;  ///< a break is an Error
  Dynamic dynamic = Dynamic::automatic;
  Backend backend{};        ///< null: what `default_backend` says
  bool pure = false;        ///< the result depends on the arguments alone: where guards hold the graph runs and the body does not
  int recompile_limit = 8;  ///< segments a site and first op; beyond, new states run eagerly
  std::string name = "fn";
  /// Its own backend, or the default one.
  Backend chosen_backend() const { return backend ? backend : default_backend(mode); }
};

/// A recompile and what caused it.
struct Recompile {
  guards::Mismatch reason;  ///< what did not hold, with both values
  int segment = 0;          ///< the one that was compiled then
  int graph = 0;            ///< in an Explanation: its graph, counted from 1; 0 if no op stands in it
  At at;
  std::string counterfactual{};  ///< in an Explanation: the setting that would have made this call a hit, or "none: " and why
};

/// A break and how often it was met.
struct BreakCount : Break {
  std::int64_t times = 0;
};

/// A place that holds as many segments as it may: new states run eagerly from there on.
struct Limit {
  At at{};                    ///< of the first call that was not compiled
  guards::Mismatch reason{};  ///< why the last state was new
  std::int64_t calls = 0;     ///< how often that happened
};

/// Everything a compiled function has learned; shared by copies of it.
struct State : base::RefCounted {
  Options options;
  std::mutex mutex;
  Site root;
  std::map<std::tuple<std::string, std::uint32_t, std::uint32_t, BreakKind>, std::unique_ptr<Site>> sites;
  std::vector<Segment*> segments;  ///< in order of compilation, owned by their sites
  std::vector<Recompile> recompiles;
  std::vector<BreakCount> breaks;  ///< each place once
  std::vector<Limit> limits;       ///< each place once
  std::atomic<std::int64_t> calls{0}, misses{0}, pure_hits{0}, launches{0}, replayed_ops{0}, recorded_ops{0}, relowered{0}, eager_calls{0};
  std::atomic<double> record_seconds{0}, launch_seconds{0}, compile_seconds{0};
};

}  // namespace tenon::tracer
