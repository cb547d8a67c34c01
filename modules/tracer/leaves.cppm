export module tenon.tracer:leaves;
import std;
import tenon.base;
import tenon.ir;
import :tensor;

export namespace tenon::tracer {

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

/// Says, while a layer's call runs, that the ops of this thread are the layer's: a recording then names it by the path of its tensors.
struct ModuleScope {
  using First = std::pair<Impl*, std::string>;  ///< the layer's first tensor and that tensor's path inside it
  template <HasFields Layer>
  explicit ModuleScope(Layer const& from) : ModuleScope(&from, first_of<Layer>) {}
  ModuleScope(void const* from, First (*first)(void const*));
  ModuleScope(ModuleScope const&) = delete;
  ~ModuleScope();
  /// The layer that runs on this thread, the inner one first; null if none does.
  static ModuleScope const* innermost();
  template <class Layer>
  static First first_of(void const* from) {
    for (auto const& [name, tensor] : named_tensors(*static_cast<Layer const*>(from)))
      if (tensor.defined()) return {tensor.impl(), name};
    return {};
  }
  void const* layer;
  First (*first_tensor)(void const* layer);
  ModuleScope const* outer;
  mutable std::string_view path{};  ///< as the recording `reader` found it
  mutable void const* reader = nullptr;
};

}  // namespace tenon::tracer
