export module tenon.tracer:interpreter;
import std;
import tenon.base;
import tenon.ir;
import :tensor;

export namespace tenon::tracer {

/// An operand of an operator: a tensor or a number, with the place where it was written. It lives no longer than the tensor that it names.
struct Arg {
  Impl* impl = nullptr;
  Scalar scalar{};
  At at;
  inline Arg(Tensor const& tensor, At place = At::current()) : impl(tensor.impl()), at(place) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Arg(T number, At place = At::current()) : scalar(number), at(place) {}
  inline Arg(Dim number, At place = At::current()) : scalar(number), at(place) {}
  inline Arg(Scalar number, At place = At::current()) : scalar(number), at(place) {}
  inline Arg(Number const& number, At place = At::current()) : impl(number.lazy.get()), scalar(number.value), at(place) {}
};

/// One call on its way through the interpreters; an operand with a null impl is its scalar.
struct Operand {
  Impl* impl = nullptr;
  Scalar scalar{};
};
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

enum class BreakKind : std::uint8_t { returned, explicit_break, item, host_read, condition, resize, measured, aliasing, view_write, host_effect, limit };
/// Why a segment ended: a value, not an exception.
struct Break {
  BreakKind kind = BreakKind::returned;
  std::string reason;  ///< what happened, in one line
  std::string hint;    ///< what would avoid it
  At at;
};

/// A struct that lists its fields: `static void fields(auto& self, auto&& field) { field("weight", self.weight); field("bias", self.bias); }`.
/// The one customisation point of parameter containers and compiled arguments.
template <class T>
concept HasFields = requires(T& value) { std::remove_const_t<T>::fields(value, [](std::string_view, auto&) {}); };

template <class T>
concept OptionalLike = requires(T& value) { value.has_value(), *value; };
template <class T>
concept SequenceLike = requires(T& value) { value.begin(), value.end(), value.size(); };

/// Where a leaf lies: "args[0].layers[2].weight".
struct Path {
  Path const* outer = nullptr;
  std::string_view name{};
  std::int64_t index = -1;
  std::string text() const;
};

/// How many items a container has: a leaf of its own.
struct Length {
  std::int64_t items;
};

/// Calls visit(path, leaf) for every tensor, number, flag, enum and text in a value: fields, vectors, arrays, optionals, pairs, tuples, maps.
/// A container's Length, a map's keys and whether an optional is set are visited too, the latter as texts. Other types are passed over.
template <class T, class F>
void each_leaf(T& value, Path const& path, F& visit) {
  using V = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<V, Tensor> || std::is_arithmetic_v<V> || std::is_enum_v<V> || std::is_convertible_v<V const&, std::string_view>) {
    visit(path, value);
  } else if constexpr (HasFields<V>) {
    V::fields(value, [&](std::string_view name, auto& member) { each_leaf(member, {&path, name}, visit); });
  } else if constexpr (OptionalLike<V>) {
    std::string_view const state = value.has_value() ? "set" : "unset";
    visit(path, state);
    if (value.has_value()) each_leaf(*value, path, visit);
  } else if constexpr (requires { typename V::mapped_type; }) {
    for (auto& [key, item] : value) {
      std::string const name = std::format("{}", key);
      visit(path, name);
      each_leaf(item, {&path, name}, visit);
    }
  } else if constexpr (SequenceLike<V>) {
    Length const length{static_cast<std::int64_t>(value.size())};
    visit(path, length);
    std::int64_t index = 0;
    for (auto& item : value) each_leaf(item, {&path, {}, index++}, visit);
  } else if constexpr (requires { std::tuple_size<V>::value; }) {
    std::int64_t index = 0;
    std::apply([&](auto&... items) { (each_leaf(items, Path{&path, {}, index++}, visit), ...); }, value);
  }
}

/// Every tensor of a value, with its path and (tensors_of) without.
template <class T>
std::vector<std::pair<std::string, Tensor>> named_tensors(T& value) {
  std::vector<std::pair<std::string, Tensor>> list;
  auto visit = [&](Path const& path, auto& leaf) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(leaf)>, Tensor>) list.emplace_back(path.text(), leaf);
  };
  each_leaf(value, {}, visit);
  return list;
}
std::vector<Tensor> tensors_of(auto& value) {
  std::vector<Tensor> list;
  for (auto& [name, tensor] : named_tensors(value)) list.push_back(tensor);
  return list;
}

}  // namespace tenon::tracer
