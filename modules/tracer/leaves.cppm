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

/// How many items a container has: a leaf of its own; -1: a text that is a null pointer.
struct Length {
  std::int64_t items;
};

/// A key of a map as a name: its text, or an enum's number.
template <class K>
std::string name_of(K const& key) {
  if constexpr (std::is_enum_v<K>)
    return std::to_string(static_cast<std::int64_t>(key));
  else
    return std::format("{}", key);
}
template <class T>
concept MapLike = requires { typename T::mapped_type; };

/// Calls visit(path, leaf) for every tensor, number, flag, enum and text in a value: fields, vectors, arrays, optionals, pairs, tuples, maps.
/// A container's Length, a map's keys and whether an optional is set are visited too, the latter as texts; maps without an order go by their keys' names.
/// Other types are passed over.
template <class T, class F>
void each_leaf(T& value, Path const& path, F& visit) {
  using V = std::remove_cv_t<T>;
  if constexpr (std::is_pointer_v<V> && std::is_convertible_v<V const&, std::string_view>) {
    if (value) {
      std::string_view const text = value;
      visit(path, text);
    } else {
      Length const none{-1};
      visit(path, none);
    }
  } else if constexpr (std::is_same_v<V, Tensor> || std::is_arithmetic_v<V> || std::is_enum_v<V> || std::is_convertible_v<V const&, std::string_view>) {
    visit(path, value);
  } else if constexpr (HasFields<V>) {
    V::fields(value, [&](std::string_view name, auto& member) { each_leaf(member, {&path, name}, visit); });
  } else if constexpr (OptionalLike<V>) {
    std::string_view const state = value.has_value() ? "set" : "unset";
    visit(path, state);
    if (value.has_value()) each_leaf(*value, path, visit);
  } else if constexpr (MapLike<V>) {
    Length const length{static_cast<std::int64_t>(value.size())};
    visit(path, length);
    std::vector<std::pair<std::string, decltype(&value.begin()->second)>> items;
    for (auto& [key, item] : value) items.emplace_back(name_of(key), &item);
    if constexpr (!requires { value.key_comp(); }) std::ranges::sort(items, {}, [](auto const& item) -> std::string const& { return item.first; });
    for (auto& [name, item] : items) {
      visit(path, name);
      each_leaf(*item, {&path, name}, visit);
    }
  } else if constexpr (SequenceLike<V>) {
    Length const length{static_cast<std::int64_t>(value.size())};
    visit(path, length);
    std::int64_t index = 0;
    for (auto&& item : value) {
      if constexpr (std::is_same_v<typename V::value_type, bool>) {  // a std::vector's items are no references
        bool const flag = item;
        visit(Path{&path, {}, index++}, flag);
      } else {
        each_leaf(item, {&path, {}, index++}, visit);
      }
    }
  } else if constexpr (requires { std::tuple_size<V>::value; }) {
    std::int64_t index = 0;
    std::apply([&](auto&... items) { (each_leaf(items, Path{&path, {}, index++}, visit), ...); }, value);
  }
}

/// Whether each_leaf meets every tensor that a value of this type may hold.
template <class T>
constexpr bool knows_tensors() {
  using V = std::remove_cvref_t<T>;
  if constexpr (std::is_same_v<V, Tensor> || std::is_arithmetic_v<V> || std::is_enum_v<V> || std::is_same_v<V, std::string> || HasFields<V>)
    return true;
  else if constexpr (MapLike<V>)
    return knows_tensors<typename V::mapped_type>();
  else if constexpr (OptionalLike<V> || SequenceLike<V>)
    return knows_tensors<typename V::value_type>();
  else if constexpr (requires { std::tuple_size<V>::value; })
    return []<std::size_t... k>(std::index_sequence<k...>) {
      return (knows_tensors<std::tuple_element_t<k, V>>() && ...);
    }(std::make_index_sequence<std::tuple_size_v<V>>());
  else
    return false;
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

/// Calls visit(tensor) for each, undefined ones too.
template <class T, class F>
void each_tensor(T& value, F visit) {
  auto pick = [&](Path const&, auto& leaf) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(leaf)>, Tensor>) visit(leaf);
  };
  each_leaf(value, {}, pick);
}

}  // namespace tenon::tracer
