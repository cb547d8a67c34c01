export module tenon.tracer:capture;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;
import :segment;
import :state;

export namespace tenon::tracer {

/// The tensors and values of a call, in the order of its arguments' fields.
struct Arguments {
  struct Given {
    Impl* impl = nullptr;  ///< alive while the body has not begun; null: undefined
    std::uint64_t id = 0;
    bool needs_grad = false;
  };
  std::vector<Given> tensors;
  std::vector<guards::Plain> values;                            ///< what is guarded by value
  std::function<std::vector<std::string>(bool tensors)> names;  ///< of the tensors, or of the values; asked for when something is recorded
  std::pair<void const*, std::vector<std::pair<std::string, Tensor>> (*)(void const*)> own{};  ///< the function and its fields, if it has any
};

/// One call of a compiled function on this thread: the interpreter of rank capture.
class Session final : public Interpreter {
 public:
  explicit Session(State& state);
  ~Session() override;
  /// To be filled before begin(), which chooses the first segment.
  Arguments& arguments();
  void begin();
  void bind(Call const& call, int below, std::span<Tensor> results) override;
  /// Ends the last segment; the body has returned.
  void finish();
  /// As finish, where the function is pure: a later call may give a copy of `result` with tensors of its own for `leaves`.
  void finish_pure(std::vector<Ref<Impl>> leaves, std::shared_ptr<void const> result);
  /// The kept result of a pure function whose guards hold, and this call's tensors for its leaves; null: the body must run.
  std::shared_ptr<void const> pure_result(std::vector<Tensor>& leaves);
  /// What a pure function may not repeat: an effect beside its result, and sizes that the host read.
  void unrepeatable(), sizes_read();
  /// Runs what was matched or recorded so far, publishes nothing; the body has thrown.
  void abandon() noexcept;
  /// Ends the segment here and starts the next one; Error with fullgraph.
  void split(Break reason);
  /// Makes `impl` readable on the host: a break if this session still owes it elements or a write.
  void make_readable(Impl& impl, Break reason);
  /// What rules may know of a tensor: symbolic while recording.
  ir::MetaRef meta_of(Impl& impl, At at);
  /// Whether that is each tensor's own Meta now, and asking is no event: so it is at most places of a replay.
  bool meta_is_own() const;
  bool fullgraph() const;
  /// The place of the event that made a tensor, if it was made in this segment.
  std::optional<At> made_at(Impl const& impl) const;
  /// The session of this thread, or null.
  static Session* current();

 private:
  struct Data;
  std::unique_ptr<Data> data_;  ///< taken from the thread's last call, and left to its next one
};

}  // namespace tenon::tracer
