export module tenon.tracer:interpreter;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;

export namespace tenon::tracer {

/// An operand: a tensor or, with a null impl, a number; with the place where it was written. It lives no longer than the tensor that it names.
struct Arg {
  Impl* impl = nullptr;
  Scalar scalar{};
  At at{};
  Arg() = default;
  inline Arg(Impl* tensor, Scalar number) : impl(tensor), scalar(number) {}
  inline Arg(Tensor const& tensor, At place = At::current()) : impl(tensor.impl()), at(place) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Arg(T number, At place = At::current()) : scalar(number), at(place) {}
  inline Arg(Dim number, At place = At::current()) : scalar(number), at(place) {}
  inline Arg(Scalar number, At place = At::current()) : scalar(number), at(place) {}
  inline Arg(Number const& number, At place = At::current()) : impl(number.lazy.get()), scalar(number.exact), at(place) {}
};

using Operand = Arg;
/// One call on its way through the interpreters.
struct Call {
  ir::OpDef const& op;
  std::span<Operand const> operands;
  ir::Attrs const& attrs;
  At at;
};

enum class Rank : std::uint8_t { eager, capture, autograd, dtensor, autocast };
/// Code that meets ops one by one. Each thread has at most one active interpreter a rank; a call goes through them from the highest down.
struct Interpreter {
  virtual ~Interpreter() = default;
  /// Gives the call's results, usually by handing it (changed or not) to `dispatch(call, below, results)`.
  virtual void bind(Call const& call, int below, std::span<Tensor> results) = 0;
};
/// Makes an interpreter the active one of its rank for a scope; null makes the rank empty.
class Active {
 public:
  Active(Rank rank, Interpreter* interpreter);
  ~Active();
  Active(Active const&) = delete;
  Active& operator=(Active const&) = delete;

 private:
  Rank rank_;
  Interpreter* outer_;
};
/// Hands a call to the highest active interpreter at or below rank `from`.
void dispatch(Call const& call, int from, std::span<Tensor> results);
/// Calls an op from the top: what every function on tensors is made of. Error when the call is not legal.
Tensor apply(ir::OpDef const& op, std::span<Arg const> operands, ir::Attrs const& attrs, At at);
/// As apply, for an op with several results.
std::vector<Tensor> apply_all(ir::OpDef const& op, std::span<Arg const> operands, ir::Attrs const& attrs, At at);
inline Tensor apply(ir::OpDef const& op, std::initializer_list<Arg> operands, ir::Attrs const& attrs = {}, At at = At::current()) {
  return apply(op, std::span(operands.begin(), operands.size()), attrs, at);
}

using guards::Settings;
/// This thread's settings: gradients, autocast, determinism, the dtype of what is made without one. Compiled functions guard them.
inline Settings const& settings();
/// Other settings for a scope.
class SettingsScope {
 public:
  explicit SettingsScope(Settings const& wanted);
  ~SettingsScope();
  SettingsScope(SettingsScope const&) = delete;
  SettingsScope& operator=(SettingsScope const&) = delete;

 private:
  Settings outer_;
};
/// Whether calls of this thread are recorded for gradients.
inline bool grad_enabled();
/// Switches that off (or on) for a scope.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(GradMode const&) = delete;
  GradMode& operator=(GradMode const&) = delete;

 private:
  bool outer_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

enum class BreakKind : std::uint8_t { returned, explicit_break, item, host_read, condition, resize, measured, aliasing, host_op, host_effect, limit };
/// Why a segment ended: a value, not an exception.
struct Break {
  BreakKind kind = BreakKind::returned;
  std::string reason;  ///< what happened, in one line
  std::string hint;    ///< what would avoid it
  At at;
};

}  // namespace tenon::tracer

namespace tenon::tracer {
extern thread_local constinit Settings thread_settings;
inline Settings const& settings() { return thread_settings; }
inline bool grad_enabled() { return thread_settings.grad_enabled; }
}  // namespace tenon::tracer
