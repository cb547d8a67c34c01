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
import :state;
import :capture;
import :tape;
import :frame;
import :scope;
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
/// What a call gives, by its op's rule; Error when the call is not legal.
std::vector<ir::Meta> inferred(Call const& call);
/// Runs a composite op's body from rank `from`.
std::vector<Tensor> run_body(Call const& call, int from);
/// The name of argument k, as far as it was known when the call began.
std::string name_at(std::span<std::string const> names, std::size_t k);
/// The break of a hazard: inputs in one memory, one of them written.
Break aliasing(At at);
/// Whether the call is the op that writes.
inline bool is_write(ir::OpDef const& op) { return &op == &ir::ops::copy_; }

/// The setting that would have let an earlier segment of its site serve the call that made this one, or "none: " and why (counterfactual.cpp).
std::string counterfactual(Segment const& made);

using ir::Parameter;
enum class Phase : std::uint8_t { replay, record, eager };

struct Session::Data {
  Session* self = nullptr;
  State* at_work = nullptr;
  Arguments arguments;
  Phase phase = Phase::eager;
  guards::Settings began_with{};  ///< of the thread, where the segment began
  Site* site = nullptr;
  Segment* segment = nullptr;      ///< the candidate being replayed
  std::unique_ptr<Frame> frame{};  ///< of the segment that is being recorded or replayed
  Misfit misfit{};                 ///< why the candidate that served last did not fit
  guards::Mismatch reason{};       ///< that as a sentence, once a recording began
  Break cause{};                   ///< of the break that led here
  std::optional<Break> danger{};   ///< a hazard that the last match found
  struct Owner {
    std::uint64_t id;
    bool shared = false;  ///< another bound input lies in the same memory
  };
  std::unordered_map<Storage*, Owner> input_of{};  ///< bound inputs by memory, where writes matter
  std::unordered_set<Storage*> written{};
  std::optional<Active> active{};
  std::int64_t replayed_ops = 0, recorded_ops = 0;  ///< of this call, added to the State at its end
  bool missed = false;                              ///< whether this call recorded anything
  std::unique_ptr<Segment> draft{};                 ///< this and what follows: while recording
  std::optional<ir::Symbols::Scope> scope{};
  std::unordered_map<std::uint64_t, std::int32_t> slot_of{};
  struct Origin {  ///< how a view slot is derived from its parent
    std::int32_t parent = -1;
    ir::OpDef const* op = nullptr;
    std::shared_ptr<ir::Attrs const> attrs{};
    std::int32_t version = 0;  ///< of the root, when `value` was derived
    At at{};
  };
  std::vector<Origin> origins{};
  std::vector<std::int32_t> current{}, versions{};  ///< per slot: its value now; of roots: writes so far
  Segment const* shadow = nullptr;                  ///< an earlier segment that is compared with this recording
  Segment* newest = nullptr;                        ///< the site's first segment when recording began
  std::chrono::steady_clock::time_point began{};
  struct Marked {
    int symbol;
    std::int32_t guard;
    int dim;
  };
  std::vector<Marked> marked{};  ///< dims that the user marked dynamic
  struct Pure {
    std::vector<Ref<Impl>> leaves;
    std::shared_ptr<void const> result;
  };
  std::optional<Pure> pure{};                 ///< the result of a pure function that was recorded
  std::vector<ir::MetaRef> argument_metas{};  ///< of a pure function's call, when it began
  bool unrepeatable = false, sizes_read = false;
  bool over_limit = false;                                        ///< the site has as many segments as it may: this recording is run, not kept
  std::unordered_map<std::uint64_t, std::int32_t> argument_of{};  ///< tensors of the arguments by identity
  std::vector<std::string> names_of_tensors{}, names_of_values{};
  std::unordered_map<std::uint64_t, std::string> own_names{};  ///< fields of the function itself
  std::map<std::string, int, std::less<>> module_calls{};      ///< how often each layer was called in this recording

  static thread_local std::unique_ptr<Data> idle;  ///< one a thread: a capture inside a capture is none
  State& state() const { return *at_work; }
  void clear();                   ///< ready for another call
  void begin(), forget_inputs();  // session.cpp
  bool enter(Segment& candidate, bool begun = false), refuse(Misfit why);
  void end(Break const& reason);
  bool diverge(std::function<bool()> const& fits);
  std::optional<Break> hazard(Call const& call);
  bool bound(Impl const& impl) const, started() const;
  bool through_overlap(std::int32_t slot) const;
  void note_input(Impl& impl);
  bool match(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted);
  static bool marks_hold(guards::TensorGuard const& guard, Impl const& impl);
  bool match_touch(Impl& impl), bind_slot(std::int32_t slot, Impl& impl, At at), constraints_hold(std::int32_t until);
  guards::Mismatch why(Misfit const& misfit) const;  ///< the sentence: what of whom, with both values
  Tensor replayed_result(Event const& event, Call const& call, std::size_t place);
  std::vector<Replayed> replayed() const;
  void start_recording();  // record.cpp
  void record(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted, std::string_view module);
  void record_write(Event& event, Call const& call, std::int32_t content);
  std::string_view module_path();                                            ///< of the innermost layer that is running
  std::int32_t slot_for(Impl& impl, At at);                                  ///< a tensor that the host looks at
  ir::Meta const* earlier_meta(Slot const& slot, std::int32_t index) const;  // inputs.cpp
  std::vector<bool> varying(Impl const& impl, Slot const& slot, std::int32_t index);
  Dims open_strides(Dims const& sizes, ir::Meta const& now, ir::Meta const* earlier);
  std::int32_t input_slot(Impl& impl, At at);  ///< a tensor that is met for the first time
  bool at_limit(Call const& call);
  Ref<Impl> new_result(Event& event, Call const& call, std::int32_t value, Ref<Impl> result);
  std::int32_t value_of(std::int32_t slot);
  ir::Attrs generalised(ir::Attrs const* earlier, Call const& call);
  Scalar generalised(Scalar const* earlier, Scalar const& now);
  Dim generalised(Parameter::Type type, Dim const* earlier, Dim now);
  std::shared_ptr<Recipe const> recipe_for(Break const& end) const;  // pure.cpp
  void verify() const;
  Tensor made_for(std::int32_t slot, std::vector<std::int32_t>& made);
  void run_eagerly(Call const& call, int below, std::span<Tensor> results);
  bool run_measured(Call const& call, int below, std::span<Tensor> results);  // measured.cpp
  std::optional<Tensor> computed_ahead(Impl const& impl);
  Dim marked_symbol(Marks::Mark const& mark, std::int32_t guard, int dim, std::int64_t size, At at);
  std::string broken_mark() const;
  void publish(Break const& reason);  // launch.cpp
  void launch(Segment& from), sort_results(Segment const& from), write_back(Segment const& from, ir::Evaluated const& done);
  Segment::Lowered const& lowered_for(Segment& from);
  std::span<ir::Strided const> inputs_of(Segment const& from);
  void leave(Segment& from);  ///< the frame is done with
};
}  // namespace tenon::tracer
