// Shared by the .cpp files of this folder alone: what a call of a compiled function holds, and small pieces of the tensor layer.
module tenon.tracer:session;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;
import :ops;
import :segment;
import :tape;

namespace tenon::tracer {

std::uint64_t fresh_id();
/// A new tensor with uninitialised memory.
Tensor allocate(ir::Meta meta);
/// The elements of a tensor whose memory is there; Error if a capture still owes them.
ir::Strided memory_of(Impl const& impl);
/// A view of `parent` by a geometry op, or nothing if the op must copy.
std::optional<Tensor> view_of(Impl& parent, ir::OpDef const& op, ir::Attrs const& attrs);
/// Copies with conversion and broadcasting.
void copy_elements(ir::Strided const& from, ir::Strided const& to);
/// The one op that writes: copy_(input, src).
extern ir::OpDef const copy_row;

/// Runs a composite op's body from rank `from`.
std::vector<Tensor> run_body(Call const& call, int from);
/// The tensors and numbers of one run of a segment, and proxies of an earlier run that nobody held: they are handed out again.
struct Frame {
  std::vector<Ref<Impl>> slots, proxies;
  struct ViewOf {  ///< the Meta that a view had of a parent with that Meta, and its offset there
    ir::MetaRef parent, meta;
    std::int64_t offset = 0;
  };
  std::vector<ViewOf> views;
  ir::Bindings bindings;
  std::size_t event = 0;  ///< events matched so far
};
/// A matched event as it was called this time; whoever matches or records it anew adopts its results.
struct Replayed {
  ir::OpDef const* op;
  std::vector<Operand> operands;
  ir::Attrs attrs;
  std::vector<Ref<Impl>> results;
  At at;
  std::string_view module;
};

/// The setting that would have let an earlier segment of its site serve the call that made this one, or "none: " and why (counterfactual.cpp).
std::string counterfactual(Segment const& made, Options const& options);

using ir::Parameter;
enum class Phase : std::uint8_t { replay, record, eager };

struct Session::Data {
  Session& self;
  State& state;
  Arguments arguments;
  Phase phase = Phase::eager;
  guards::Settings began_with{};  ///< of the thread, where the segment began
  Site* site = nullptr;
  Segment* segment = nullptr;  ///< the candidate being replayed
  Frame frame{};
  guards::Mismatch reason{};  ///< why the last candidate did not fit
  Break cause{};              ///< of the break that led here
  struct Owner {
    std::uint64_t id;
    bool shared = false;  ///< another bound input lies in the same memory
  };
  std::unordered_map<Storage*, Owner> input_of{};  ///< bound inputs by memory, where writes matter
  std::unordered_set<Storage*> written{};
  std::optional<Active> active{};
  std::int64_t replayed_ops = 0, recorded_ops = 0;  ///< of this call, added to the State at its end
  bool missed = false;                              ///< whether this call recorded anything
  // while recording
  std::unique_ptr<Segment> draft{};
  std::optional<ir::Symbols::Scope> scope{};
  std::unordered_map<std::uint64_t, std::int32_t> slot_of{};
  struct Origin {  ///< how a view slot is derived from its parent
    std::int32_t parent = -1;
    ir::OpDef const* op = nullptr;
    ir::Attrs attrs{};
    std::int32_t version = 0;  ///< of the root, when `value` was derived
  };
  std::vector<Origin> origins{};
  std::vector<std::int32_t> current{}, versions{};  ///< per slot: its value now; of roots: writes so far
  Segment const* shadow = nullptr;                  ///< an earlier segment that is compared with this recording
  Segment* newest = nullptr;                        ///< the site's first segment when recording began
  std::chrono::steady_clock::time_point began{};
  bool over_limit = false;                                        ///< the site has as many segments as it may: this recording is run, not kept
  std::unordered_map<std::uint64_t, std::int32_t> argument_of{};  ///< tensors of the arguments by identity
  std::vector<std::string> names_of_tensors{}, names_of_values{};
  std::unordered_map<std::uint64_t, std::string> own_names{};  ///< fields of the function itself
  std::map<std::string, int, std::less<>> module_calls{};      ///< how often each layer was called in this recording

  // session.cpp
  void begin();
  bool enter(Segment& candidate, Frame& fresh);
  void end(Break reason);
  bool diverge(std::function<bool()> const& fits);
  std::optional<Break> hazard(Call const& call);
  bool bound(Impl const& impl) const, started() const;
  void note_input(Impl& impl);
  // match.cpp
  bool match(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted);
  bool match_touch(Impl& impl), bind_slot(std::int32_t slot, Impl& impl), constraints_hold(std::int32_t until);
  std::vector<Replayed> replayed() const;
  // record.cpp
  void start_recording();
  void record(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted, std::string_view module);
  std::string_view module_path();              ///< of the innermost layer that is running
  std::int32_t slot_for(Impl& impl, At at);    ///< a tensor that the host looks at
  std::int32_t input_slot(Impl& impl, At at);  ///< a tensor that is met for the first time
  bool at_limit(Call const& call);
  Ref<Impl> new_result(Event& event, Call const& call, std::int32_t value, Ref<Impl> result);
  bool is_view_slot(Impl const& impl) const;
  std::int32_t value_of(std::int32_t slot);
  ir::Attrs generalised(ir::Attrs const* earlier, Call const& call);
  Scalar generalised(Scalar const* earlier, Scalar const& now);
  Dim generalised(Parameter::Type type, Dim const* earlier, Dim now);
  // launch.cpp
  void publish(Break reason);
  void launch(Segment& from);
  void leave(Segment& from);  ///< the frame is done with
};

}  // namespace tenon::tracer
