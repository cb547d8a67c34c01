export module tenon.fusion:program;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :loop;
import :contraction;
import :memory;
import :plan;
import :key;

export namespace tenon::fusion {

/// Runs a lowered graph: inputs as the graph's, outputs row-major or views of what `storage` holds (null: of an input). What tracer calls a Runner.
using Runner = std::function<ir::Evaluated(std::span<ir::Strided const> inputs, ir::Bindings const& bindings)>;

/// What a lowered graph is to be good at: any run, the time between launches of small graphs, or the time of each launch, whatever finding it out costs.
enum class Mode : std::uint8_t { normal, reduce_overhead, max_autotune };
/// What tuning found, by names such as "group" and "kernel 3": text that a cache can hold.
using Choices = std::map<std::string, std::string>;

/// How a graph is lowered.
struct LowerOptions {
  GroupOptions group{};
  bool interpret = false;          ///< kernels by the interpreter, as where there is no compiler
  bool in_place = true;            ///< outputs that are written back to inputs may be computed there
  std::int64_t memory_budget = 0;  ///< bytes that a plan may need before its nodes are reordered and values made again; 0: a share of eager's peak
  double memory_share = 0.75;      ///< that share; it counts from a peak of 1 MiB on. 0: no budget
  std::int64_t grain = 1 << 13;    ///< elements that are worth a thread, or a partial result, of their own
  Mode mode = Mode::normal;
  double tune_seconds = 2;  ///< max_autotune: about how long candidates are timed
  Choices choices{};        ///< made by `tune`: applied in any mode, and then nothing is timed
};

/// One launch: a kernel on buffers, or a library's call of one node; the kernel behind a matmul may run on its rows as they are done.
struct Launch {
  int group = -1;
  int kernel = -1;                 ///< in Program::kernels; -1: a call
  int node = -1;                   ///< of a call
  std::vector<int> roots{};        ///< of a kernel: the value behind each buffer
  bool with_next = false;          ///< a matmul whose rows the next launch's kernel takes as they are done
  std::optional<Engine> engine{};  ///< of a matmul, where one was chosen
};

/// Where the memory of a root value comes from.
struct Home {
  enum class Kind : std::uint8_t { none, input, constant, output, in_place, arena };
  Kind kind = Kind::none;
  int number = -1;  ///< the place among inputs, constants, or outputs' buffers; of arena: its block
};

/// A lowered graph: groups as launches, kernels without repetition, a place in memory for every value.
struct Program {
  Grouping grouping;
  LowerOptions options;
  std::vector<Kernel> kernels;  ///< each form once: equal layers share one
  std::vector<Launch> launches;
  std::vector<Home> homes;                 ///< per value; those of roots matter
  std::vector<int> output_roots;           ///< roots that get fresh memory in every run
  std::vector<std::pair<int, int>> reuse;  ///< roots whose memory the second may take over from the first
  std::vector<int> first, last;            ///< per root value: the launch that writes it and the last that reads it
  std::string source;                      ///< the generated C
  double group_seconds = 0, compile_seconds = 0;
  Key key{};                                   ///< of graph, options, machine and build; the entry of its object adds the source
  std::map<std::string, std::string> facts{};  ///< stored with that entry
};

/// Times candidates on this machine, with the sizes that symbols have as hints: how far nodes are fused, which of them stay by themselves, how each kernel
/// is walked, who computes each product, and whether the kernel behind it runs on its rows. Equal choices give equal programs and equal bits.
Choices tune(ir::Graph const& graph, LowerOptions const& options = {});
/// What tells the lowering of a graph from others, before it is planned: a caller may keep facts of its own under it (find_entry, store_entry).
Key key_of(ir::Graph const& graph, LowerOptions const& options);
/// Lowers a graph, its nodes in canonical order; nothing is compiled yet. Error naming a choice that means nothing for it.
Program plan(ir::Graph const& graph, LowerOptions const& options = {});
/// Something that runs a program: compiles its kernels, or interprets them where there is no compiler. Safe from several threads at once.
Runner runner(Program program);
/// plan and runner in one; max_autotune without choices tunes first.
Runner lower(ir::Graph const& graph, LowerOptions const& options = {});

/// What a run of these bindings needs beside its inputs: values in the arena, and outputs, which are allocated when it begins; step n is launch n.
struct Footprint {
  std::vector<Block> blocks;
  std::vector<int> values;  ///< of each block
  Layout layout;
  std::int64_t outputs = 0;
  std::int64_t peak() const { return layout.peak() + outputs; }
  std::int64_t lower_bound() const { return layout.lower_bound() + outputs; }
};
Footprint footprint(Program const& program, ir::Bindings const& bindings = {});
/// Its peak, lower bound, and who holds what at the peak, at most `rows` of them.
std::string report(Program const& program, ir::Bindings const& bindings = {}, std::size_t rows = 20);
/// Launches, kernels, homes: the plan as text.
std::string to_string(Program const& program);

}  // namespace tenon::fusion
