export module tenon.guards;
import std;
import tenon.base;
import tenon.ir;

export namespace tenon::guards {

/// A tensor that a segment reads must look as `expected`: dtype, device, rank, sizes, strides (not of size-1 dims), requires_grad.
///
/// Sizes of `expected` may be expressions: a bare symbol is bound by the first guard that meets it and must be at least 2.
struct TensorGuard {
  std::string source;  ///< "args[0]", "args[1].weight", or "captured by file.cpp:12:9"
  ir::MetaRef expected;
  bool requires_grad = false;
  bool symbolic = false;  ///< whether any size of `expected` is an expression
  base::At at{};          ///< the line that first read it
};

/// An argument that is no tensor: a text, a flag, an enum's number, a length.
struct Plain {
  std::string text{};
  std::int64_t number = ir::absent;
  bool operator==(Plain const&) const = default;
};
/// "true", "3", "length 3".
std::string to_string(Plain const& value);

/// Such an argument, compared by value.
struct ValueGuard {
  std::string source;
  Plain expected;
};

/// The thread's settings that decide what is recorded; compared as a whole, an autocast dtype only where it is enabled.
struct Settings {
  struct Autocast {
    bool enabled = false;
    base::DType dtype = base::DType::bf16;
    bool operator==(Autocast const& other) const { return enabled == other.enabled && (!enabled || dtype == other.dtype); }
  };
  bool grad_enabled = true;
  bool deterministic = false;  ///< only algorithms that give the same bits every time may be chosen
  base::DType default_dtype = base::DType::f32;
  std::array<Autocast, 3> autocast{Autocast{}, {false, base::DType::f16}, {false, base::DType::f16}};  ///< by Device::Kind
  bool operator==(Settings const&) const = default;
};

/// What did not hold.
enum class What : std::uint8_t {
  nothing,
  settings,  ///< a setting of the thread
  value,     ///< an argument that is no tensor
  count,     ///< how many tensors the arguments hold
  dtype,
  device,
  rank,
  requires_grad,
  size,
  stride,
  marks,     ///< a dim was marked dynamic that the graph holds fixed
  aliasing,  ///< one tensor stands for two
  number,    ///< a number of the host
  relation,  ///< a fact on sizes
  stream     ///< the body took another way
};
/// Why a graph may not run: what, of whom ("args[0]", a setting, a place), at which dim, and the whole sentence with both values.
struct Mismatch {
  What what = What::nothing;
  std::string source;
  int dim = -1;
  std::int64_t expected = 0, actual = 0;  ///< where they are numbers
  std::string text;
  explicit operator bool() const { return what != What::nothing; }
};

/// Everything that must hold before a segment may run.
struct GuardSet {
  Settings settings;
  std::vector<ValueGuard> values;
  std::vector<TensorGuard> tensors;
};

/// Bindings in which nothing is bound yet, for the symbols of a segment.
ir::Bindings unbound(ir::Symbols const& symbols);

/// Whether a tensor passes, binding the symbols it is the first to meet; the compare of one pointer when its Meta is the expected one.
bool holds(TensorGuard const& guard, ir::MetaRef const& actual, bool requires_grad, ir::Symbols const& symbols, ir::Bindings& bindings);

/// Why it does not: "tensor 'args[0]' size mismatch at dim 0: expected 64, actual 29"; What::nothing if it does.
Mismatch mismatch(TensorGuard const& guard, ir::Meta const& actual, bool requires_grad, ir::Symbols const& symbols, ir::Bindings bindings);
Mismatch mismatch(ValueGuard const& guard, Plain const& actual);
Mismatch mismatch(Settings const& expected, Settings const& actual);

/// Whether a size or number of this call agrees with a recorded expression, binding a bare symbol that is still free.
bool agrees(ir::Dim expected, std::int64_t actual, ir::Symbols const& symbols, ir::Bindings& bindings);
bool agrees(ir::Scalar const& expected, ir::Scalar const& actual, ir::Symbols const& symbols, ir::Bindings& bindings);
/// Whether a constraint on sizes holds in this call.
bool holds(ir::Constraint const& constraint, ir::Symbols const& symbols, ir::Bindings const& bindings);

/// One guard a line, each with the line of source that made it.
std::string to_string(GuardSet const& guards, ir::Symbols const& symbols);

}  // namespace tenon::guards
