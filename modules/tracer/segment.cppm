export module tenon.tracer:segment;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;

export namespace tenon::tracer {

/// What the user did, in order: an op on numbered tensors, a write (`copy_`), or the first look at a tensor (op null).
struct Event {
  ir::OpDef const* op = nullptr;
  base::InlineVector<std::int32_t, 4> slots;  ///< per operand; -1: the number of the same place in `scalars`
  base::InlineVector<Scalar, 2> scalars;
  ir::Attrs attrs;
  std::int32_t result = -1;      ///< slot of the first result
  std::int32_t results = 0;      ///< how many there are, in slots side by side; a write and a look have none
  std::int32_t constraints = 0;  ///< how many constraints are due once this event has matched
  bool view = false;             ///< the result shares its operand's memory
  At at;
  std::string_view module{};  ///< as in ir::Node
};

/// A tensor object of a segment, in order of first appearance.
struct Slot {
  bool input = false;
  std::int32_t argument = -1;     ///< which compiled argument it was, if any,
  bool needed_grad = false;       ///< and whether it needed a gradient when the call began
  std::int32_t guard = -1;        ///< its guard, if it is an input
  std::int32_t root = -1;         ///< the slot whose memory it shares (itself unless a view)
  std::int32_t value = -1;        ///< the graph value that held it when it was made
  std::int32_t final_value = -1;  ///< of a root: the value that holds it at the end
  bool written = false;           ///< of an input: copied back at launch
  ir::MetaRef meta;               ///< with symbols
};

/// Runs a lowered graph: inputs as the graph's, outputs row-major or views into `storage`.
using Runner = std::function<ir::Evaluated(std::span<ir::Strided const> inputs, ir::Bindings const& bindings)>;
/// Turns a graph into something that runs it.
using Backend = std::function<Runner(ir::Graph const& graph)>;
/// The reference: dead code and composites removed, then ir's evaluator node by node.
Runner reference_backend(ir::Graph const& graph);

struct Frame;

/// How a call of a pure function gets its result without the body.
struct Recipe {
  struct Leaf {
    std::int32_t slot = -1, argument = -1;  ///< neither: undefined
  };
  std::shared_ptr<void const> result;  ///< as the body returned it, without its tensors
  std::vector<Leaf> leaves;
  std::vector<Ref<Impl>> captured;  ///< per input slot: the tensor, unless it is an argument
  std::vector<std::int32_t> maker;  ///< per slot: the event of a view
  struct Then {
    std::uint64_t id;
    ir::MetaRef meta;  ///< of one that the graph does not read: the body may have asked for its sizes
    bool needs_grad;
  };
  std::vector<Then> recorded;                     ///< the tensors of the arguments then,
  std::unique_ptr<std::atomic<bool>[]> verified;  ///< and whether a later call has shown that another one takes its place
};
/// A straight piece of a function between two sites: the recorded stream and the graph that computes it. Immutable once published.
struct Segment {
  std::vector<Event> events;
  std::vector<Slot> slots;
  guards::GuardSet guards;
  ir::Graph graph;  ///< outputs: none; each launch adds those that are still needed
  Break cause;      ///< the break that it begins behind; kind returned: it begins with the function
  Break end;
  std::shared_ptr<Recipe const> recipe{};      ///< of a pure function
  bool writes = false;                         ///< whether any input is written
  bool symbolic = false;                       ///< whether any size is an expression
  std::vector<std::int32_t> input_slots;       ///< per input of the graph
  int number = 0;                              ///< place in the order of compilation
  std::vector<std::int32_t> guessed{};         ///< events in which a plain number was taken for a size or a parameter
  std::vector<std::int32_t> argument_slots{};  ///< per tensor of the arguments: its slot, -1 if nothing reads it; two have one if they are one tensor
  struct Bound {
    std::size_t constraint;
    std::int32_t guard;
    int dim;
  };
  std::vector<Bound> bounds{};  ///< constraints that are the range of a mark
  std::atomic<double> record_seconds{0}, lower_seconds{0};
  std::atomic<Segment*> next{nullptr};
  struct Lowered {
    std::vector<std::int32_t> outputs;  ///< slots
    Runner run;
  };
  struct Ahead {  ///< computes what a slot holds at an event, for an op whose results' sizes depend on it
    std::int32_t event, slot;
    Runner run;
  };
  std::mutex mutex;  ///< of the two lists, from which nothing is removed
  std::vector<std::unique_ptr<Lowered>> lowered;
  std::vector<std::unique_ptr<Ahead>> ahead;
  std::atomic<Lowered*> hot{nullptr};  ///< the one that ran last
  std::atomic<Frame*> spare{nullptr};  ///< what the last call left to the next one
  ~Segment();
};

/// Where segments start: the function's entry or a break.
struct Site {
  std::atomic<Segment*> first{nullptr}, hot{nullptr};
  std::map<std::int32_t, std::vector<base::Shape>> seen;  ///< sizes of each argument at recordings, under the State's mutex
  std::size_t number = 0;                                 ///< of a break: its place in State::breaks
  ~Site();
};

}  // namespace tenon::tracer
