// What a compiled function takes and gives: each kind of argument keeps its value, its guards see what changes and nothing else, and each kind of
// result arrives as the body made it.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
#include "caught.hpp"
#include "compared.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::exactly;
using support::graphs;
using support::last_reason;
using support::Twin;

namespace {
std::vector<double> numbers(Tensor const& x) { return x.to_vector<double>(); }
Tensor counted(DimList const& sizes, double from = 1) {
  std::int64_t const items = base::numel(ir::values(sizes));
  return reshape(to(arange(0, items), DType::f32) + from, sizes);
}

enum class Side { left, right };
enum Plain : unsigned char { first, second = 200 };

struct Layer {
  Tensor weight, bias;
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("bias", self.bias); }
};
struct Config {
  std::string mode = "plain";
  Side side = Side::left;
  double scale = 1;
  static void fields(auto& self, auto&& field) { field("mode", self.mode), field("side", self.side), field("scale", self.scale); }
};
struct Net {
  std::vector<Layer> layers;
  Config config;
  std::optional<Tensor> shift;
  Tensor forward(Tensor const& x) const {
    Tensor y = x;
    for (auto const& layer : layers) y = matmul(y, layer.weight) + layer.bias;
    if (config.mode == "relu") y = relu(y);
    if (config.side == Side::right) y = -y;
    return shift ? y * config.scale + *shift : y * config.scale;
  }
  void grow(Tensor const& by) { layers[0].bias.add_(by); }
  static void fields(auto& self, auto&& field) { field("layers", self.layers), field("config", self.config), field("shift", self.shift); }
};
Net small_net() { return {{{counted({3, 3}), counted({3})}, {counted({3, 2}, -2), counted({2})}}, {}, {}}; }
struct Pair {
  Tensor value, index;
  std::string note;
  static void fields(auto& self, auto&& field) { field("value", self.value), field("index", self.index), field("note", self.note); }
};
Tensor doubled(Tensor const& x) { return x + x; }

// Why a second call with another argument is no hit.
template <class F, class T>
std::string reason_for(F const& body, T const& first, T const& second) {
  Twin<F> f(body);
  CHECK(f(first) == 1);
  CHECK(f(second) == 2);
  CHECK(f(first) == 2);
  return f.reason();
}
}  // namespace

TEST_CASE("tensors are taken by value, by const and by plain reference, and as temporaries") {
  auto const by_value = compile([](Tensor x) { return x * 2; });
  auto const by_reference = compile([](Tensor& x) { return x * 2; });
  auto const by_const = compile([](Tensor const& x) { return x * 2; });
  Tensor x = counted({3});
  Tensor const fixed = counted({3});
  for (int k = 0; k < 3; ++k) {
    CHECK(numbers(by_value(x)) == std::vector<double>{2, 4, 6});
    CHECK(numbers(by_reference(x)) == std::vector<double>{2, 4, 6});
    CHECK(numbers(by_const(fixed)) == std::vector<double>{2, 4, 6});
    CHECK(numbers(by_const(counted({3}))) == std::vector<double>{2, 4, 6});
    CHECK(numbers(by_value(counted({3}))) == std::vector<double>{2, 4, 6});
  }
  CHECK(graphs(by_value) == 1);
  CHECK(graphs(by_reference) == 1);
  CHECK(graphs(by_const) == 1);
}

TEST_CASE("a parameter that is reassigned in the body reaches the caller only by reference") {
  auto const by_value = compile([](Tensor x) { return x = x * 2; });
  auto const by_reference = compile([](Tensor& x) { return x = x * 2; });
  Tensor x = counted({2}), y = counted({2});
  for (double factor : {2.0, 4.0, 8.0}) {
    CHECK(numbers(by_value(x)) == std::vector<double>{2, 4});
    CHECK(numbers(by_reference(y)) == std::vector<double>{factor, 2 * factor});
  }
  CHECK(numbers(x) == std::vector<double>{1, 2});
  CHECK(numbers(y) == std::vector<double>{8, 16});
}

TEST_CASE("an undefined tensor among the arguments is another way through the body, no error") {
  Twin f([](Tensor const& x, Tensor const& bias) { return bias.defined() ? x + bias : x * 2; });
  Tensor const x = counted({3}), none;
  CHECK(f(x, counted({3}, 4)) == 1);
  CHECK(f(x, none) == 2);
  CHECK(f(x, counted({3}, 5)) == 2);
  CHECK(f(x, none) == 2);
}

TEST_CASE_TEMPLATE("a number is a constant first and a parameter from its second value on", T, std::int8_t, std::uint8_t, short, unsigned short, int, unsigned,
                   long, unsigned long, long long, float, double, long double) {
  Twin f([](Tensor const& x, T n) { return x * n + n; });
  Tensor const x = counted({2, 3}), whole = arange(0, 4);
  CHECK(f(x, T(3)) == 1);
  CHECK(f(x, T(3)) == 1);
  CHECK(f(x, T(5)) == 2);
  for (int n : {7, 3, 1, 0, 100}) CHECK(f(x, T(n)) == 2);
  CHECK(support::says(f.reason(), "number mismatch in mul"));
  CHECK(support::says(f.reason(), std::is_integral_v<T> ? "expected 3, actual 5" : "expected 3.0, actual 5.0"));
  if constexpr (std::is_signed_v<T>) CHECK(f(x, T(-4)) == 2);
  CHECK(f(whole, T(2)) == 3);  // another dtype is another graph, whose result promotes as eager's does
}

TEST_CASE("floats that look alike are told apart: signed zeros, infinities, NaN") {
  Twin f([](Tensor const& x, double n) { return x * n; }, {.dynamic = Dynamic::never});
  Tensor const x = tensor({1, -1});
  double const inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  int expected = 0;
  for (double const n : {0.0, -0.0, inf, -inf, nan, 0.1, std::nextafter(0.1, 1.0)}) {
    CHECK(f(x, n) == ++expected);
    CHECK(f(x, n) == expected);
  }
}

TEST_CASE("a number keeps its kind: an int and a float of the same value give different dtypes") {
  Twin f([](Tensor const& x, bool real) { return real ? x * 2.0 : x * 2; });
  Tensor const whole = arange(0, 4);
  CHECK(f(whole, false) == 1);
  CHECK(f(whole, true) == 2);
  CHECK(f.fast(whole, false).dtype() == DType::i64);
  CHECK(f.fast(whole, true).dtype() == DType::f32);
}

TEST_CASE("a number that the body does not read, and one that it only uses on the host, is not guarded") {
  int seen = 0;
  auto const f = compile([&seen](Tensor const& x, double, int host) {
    seen += host;
    return x + 1;
  });
  for (int k = 0; k < 5; ++k) CHECK(numbers(f(counted({2}), k * 0.5, k)) == std::vector<double>{2, 3});
  CHECK(seen == 10);
  CHECK(graphs(f) == 1);
}

TEST_CASE("flags are guarded by value") {
  Twin f([](Tensor const& x, bool flag) { return flag ? x + 1 : x - 1; });
  Tensor const x = counted({3});
  CHECK(f(x, true) == 1);
  CHECK(f(x, false) == 2);
  CHECK(f.reason() == "value 'args[1]' mismatch: expected true, actual false");
  CHECK(f(x, true) == 2);
}

TEST_CASE("texts of every type are guarded by value, not by place") {
  auto const body = [](Tensor const& x, std::string_view mode) { return mode == "double" ? x * 2 : x * 3; };
  Twin view(body);
  Twin string([body](Tensor const& x, std::string const& mode) { return body(x, mode); });
  Twin chars([body](Tensor const& x, char const* mode) { return body(x, mode); });
  Tensor const x = counted({2});
  std::string const one = "double", two = std::string("dou") + "ble", other = "triple";
  for (auto* const text : {&one, &two}) {
    CHECK(view(x, std::string_view(*text)) == 1);
    CHECK(string(x, *text) == 1);
    CHECK(chars(x, text->c_str()) == 1);
  }
  CHECK(view(x, std::string_view(other)) == 2);
  CHECK(string(x, other) == 2);
  CHECK(string(x, std::string("triple")) == 2);
  CHECK(chars(x, "triple") == 2);
  CHECK(string.reason() == "value 'args[1]' mismatch: expected double, actual triple");
}

TEST_CASE("a text that only resembles another kind of value is none") {
  Twin f([](Tensor const& x, std::string const& text) { return x * static_cast<double>(text.size()); }, {.dynamic = Dynamic::never});
  Tensor const x = counted({2});
  CHECK(f(x, std::string("true")) == 1);
  CHECK(f(x, std::string()) == 2);
  CHECK(f(x, std::string("a\0b", 3)) == 3);
  CHECK(f(x, std::string("a\0c", 3)) == 4);
  CHECK(f(x, std::string("true")) == 4);
}

TEST_CASE("enums, scoped and plain, are guarded by their number") {
  Twin f([](Tensor const& x, Side side, Plain plain) { return (side == Side::left ? x : -x) * (plain == second ? 2.0 : 1.0); });
  Tensor const x = counted({2});
  CHECK(f(x, Side::left, first) == 1);
  CHECK(f(x, Side::right, first) == 2);
  CHECK(f.reason() == "value 'args[1]' mismatch: expected 0, actual 1");
  CHECK(f(x, Side::right, second) == 3);
  CHECK(f(x, Side::left, first) == 3);
}

TEST_CASE("optionals: whether one is set is guarded, what it holds like any argument") {
  Twin f([](Tensor const& x, std::optional<Tensor> const& bias, std::optional<std::string> const& mode, std::optional<double> scale) {
    Tensor y = bias ? x + *bias : x;
    if (mode && *mode == "relu") y = relu(y);
    return scale ? y * *scale : y;
  });
  Tensor const x = counted({3}, -1);
  using Mode = std::optional<std::string>;
  CHECK(f(x, std::optional<Tensor>(), Mode(), std::optional<double>()) == 0);
  CHECK(f(x, std::optional(x), Mode(), std::optional<double>()) == 1);
  CHECK(f.reason() == "value 'args[1]' mismatch: expected unset, actual set");
  CHECK(f(x, std::optional(x), Mode("relu"), std::optional<double>()) == 2);
  CHECK(f(x, std::optional(x), Mode("none"), std::optional<double>()) == 3);
  CHECK(f(x, std::optional(x), Mode("none"), std::optional(2.0)) == 4);
  CHECK(f(x, std::optional(x), Mode("none"), std::optional(3.0)) == 5);
  CHECK(f(x, std::optional(x), Mode("none"), std::optional(4.0)) == 5);
  CHECK(f(x, std::optional(to(x, DType::f64)), Mode(), std::optional<double>()) == 6);
  CHECK(f(x, std::optional(x), Mode(), std::optional<double>()) == 6);
}

TEST_CASE("vectors: the length is guarded, every tensor by its own path") {
  Twin f([](std::vector<Tensor> const& list) {
    Tensor sum = list[0];
    for (std::size_t k = 1; k < list.size(); ++k) sum = sum + list[k];
    return sum;
  });
  std::vector<Tensor> list{counted({3}), counted({3}, 4)};
  CHECK(f(list) == 1);
  list.push_back(counted({3}, 9));
  CHECK(f(list) == 2);
  CHECK(f.reason() == "value 'args[0]' mismatch: expected length 2, actual length 3");
  list.pop_back();
  CHECK(f(list) == 2);
  CHECK(reason_for(f.body, list, std::vector{list[0], to(list[1], DType::f64)}) == "tensor 'args[0][1]' dtype mismatch: expected f32, actual f64");
}

TEST_CASE("containers of numbers and texts, nested ones, spans, lists and deques") {
  Twin f([](Tensor const& x, std::vector<int> const& factors, std::vector<std::vector<std::string>> const& names) {
    Tensor y = x;
    for (int const factor : factors) y = y * factor;
    for (auto const& row : names)
      for (auto const& name : row) y = name == "neg" ? -y : y + 1;
    return y;
  });
  Tensor const x = counted({2});
  using Names = std::vector<std::vector<std::string>>;
  CHECK(f(x, std::vector{2, 3}, Names{{"neg"}, {"inc", "neg"}}) == 1);
  CHECK(f(x, std::vector{2, 3}, Names{{"neg", "inc"}, {"neg"}}) == 2);  // the same texts, cut elsewhere
  CHECK(f(x, std::vector{2, 3}, Names{{"neg"}, {"inc", "inc"}}) == 3);
  CHECK(f.reason().starts_with("value 'args[2]"));
  CHECK(f(x, std::vector{2, 4}, Names{{"neg"}, {"inc", "inc"}}) == 4);
  CHECK(f(x, std::vector{2, 9}, Names{{"neg"}, {"inc", "inc"}}) == 4);
  CHECK(f(x, std::vector<int>{}, Names{}) == 4);
  auto const total = [](auto const& list) {
    Tensor sum = zeros({2});
    for (auto const& item : list) sum = sum + item;
    return sum;
  };
  Twin span([total](std::span<Tensor const> items) { return total(items); });
  Twin list([total](std::list<Tensor> const& items) { return total(items); });
  Twin deque([total](std::deque<Tensor> const& items) { return total(items); });
  std::vector<Tensor> const two{x, x * 2}, three{x, x * 2, x * 3};
  for (int k = 0; k < 2; ++k) {
    CHECK(span(std::span<Tensor const>(two)) == (k ? 2 : 1));
    CHECK(span(std::span<Tensor const>(three)) == 2);
    CHECK(list(std::list<Tensor>(two.begin(), two.end())) == (k ? 2 : 1));
    CHECK(list(std::list<Tensor>(three.begin(), three.end())) == 2);
    CHECK(deque(std::deque<Tensor>(two.begin(), two.end())) == (k ? 2 : 1));
    CHECK(deque(std::deque<Tensor>(three.begin(), three.end())) == 2);
  }
}

TEST_CASE("arrays, pairs and tuples are named by place") {
  using Mixed = std::tuple<std::array<Tensor, 2>, std::pair<Tensor, std::string>, std::tuple<int, Tensor, bool>>;
  auto const body = [](Mixed const& all) {
    auto const& [both, named, mixed] = all;
    Tensor y = both[0] * both[1] + named.first;
    if (named.second == "shift") y = y + std::get<1>(mixed);
    return std::get<2>(mixed) ? y * std::get<0>(mixed) : y;
  };
  Tensor const a = counted({2}), b = counted({2}, 3), wide = to(b, DType::f64), c = counted({2}, 9), d = counted({2}, 5);
  Mixed const first{{a, b}, {c, "shift"}, {2, d, true}};
  std::string const dtype = " dtype mismatch: expected f32, actual f64";
  CHECK(reason_for(body, first, Mixed{{a, wide}, {c, "shift"}, {2, d, true}}) == "tensor 'args[0][0][1]'" + dtype);
  CHECK(reason_for(body, first, Mixed{{a, b}, {wide, "shift"}, {2, d, true}}) == "tensor 'args[0][1][0]'" + dtype);
  CHECK(reason_for(body, first, Mixed{{a, b}, {c, "shift"}, {2, wide, true}}) == "tensor 'args[0][2][1]'" + dtype);
  CHECK(reason_for(body, first, Mixed{{a, b}, {c, "stay"}, {2, d, true}}) == "value 'args[0][1][1]' mismatch: expected shift, actual stay");
  CHECK(reason_for(body, first, Mixed{{a, b}, {c, "shift"}, {2, d, false}}) == "value 'args[0][2][2]' mismatch: expected true, actual false");
  Twin f(body);
  CHECK(f(Mixed{{a, b}, {c, "stay"}, {2, d, true}}) == 1);
  CHECK(f(Mixed{{a, b}, {c, "stay"}, {2, wide, true}}) == 1);  // nobody reads the tuple's tensor there
}

TEST_CASE("maps of tensors are guarded by key, each tensor by its path") {
  auto const by_key = [](auto const& map) { return map.at("a") * 2 + map.at("b"); };
  Twin sorted([by_key](std::map<std::string, Tensor> const& map) { return by_key(map); });
  Twin hashed([by_key](std::unordered_map<std::string, Tensor> const& map) { return by_key(map); });
  Twin numbered([](std::map<int, Tensor> const& map) { return map.begin()->second + map.rbegin()->second * map.begin()->first; });
  Tensor const x = counted({2}), y = counted({2}, 7), wide = to(y, DType::f64);
  CHECK(sorted(std::map<std::string, Tensor>{{"a", x}, {"b", y}}) == 1);
  CHECK(sorted(std::map<std::string, Tensor>{{"a", y}, {"b", x}}) == 1);
  CHECK(sorted(std::map<std::string, Tensor>{{"a", x}, {"b", wide}}) == 2);
  CHECK(sorted.reason() == "tensor 'args[0].b' dtype mismatch: expected f32, actual f64");
  CHECK(hashed(std::unordered_map<std::string, Tensor>{{"a", x}, {"b", y}}) == 1);
  CHECK(hashed(std::unordered_map<std::string, Tensor>{{"a", y}, {"b", x}}) == 1);
  Twin total([](std::map<std::string, Tensor> const& map) {
    Tensor sum = zeros({2});
    for (auto const& [key, item] : map) sum = sum * 2 + item;
    return sum;
  });
  CHECK(total(std::map<std::string, Tensor>{{"a", x}, {"b", y}, {"c", counted({2}, 9)}}) == 1);
  CHECK(total(std::map<std::string, Tensor>{{"a", x}}) == 2);
  CHECK(total(std::map<std::string, Tensor>{}) == 3);
  CHECK(total(std::map<std::string, Tensor>{{"a", y}, {"b", x}, {"c", counted({2}, 9)}}) == 3);
  CHECK(numbered(std::map<int, Tensor>{{3, x}, {5, y}}) == 1);
  CHECK(numbered(std::map<int, Tensor>{{4, x}, {5, y}}) == 2);
  CHECK(numbered.reason() == "value 'args[0]' mismatch: expected 3, actual 4");
}

TEST_CASE("structs with fields, nested: what differs is named by its path") {
  using Given = std::pair<Net, Tensor>;
  auto const body = [](Given const& given) { return given.first.forward(given.second); };
  auto const differs = [&](auto const& change) {
    Given changed{small_net(), counted({4, 3})};
    change(changed.first);
    return reason_for(body, Given{small_net(), counted({4, 3})}, changed);
  };
  CHECK(differs([](Net& net) { net.config.mode = "relu"; }) == "value 'args[0][0].config.mode' mismatch: expected plain, actual relu");
  CHECK(differs([](Net& net) { net.config.side = Side::right; }) == "value 'args[0][0].config.side' mismatch: expected 0, actual 1");
  CHECK(differs([](Net& net) { net.config.scale = 2; }).starts_with("number mismatch in mul at tracer_arguments_test.cpp:"));
  CHECK(differs([](Net& net) { net.shift = counted({2}); }) == "value 'args[0][0].shift' mismatch: expected unset, actual set");
  CHECK(differs([](Net& net) { net.layers.pop_back(); }) == "value 'args[0][0].layers' mismatch: expected length 2, actual length 1");
  CHECK(differs([](Net& net) { net.layers[1].bias = to(net.layers[1].bias, DType::f64); }) ==
        "tensor 'args[0][0].layers[1].bias' dtype mismatch: expected f32, actual f64");
  CHECK(differs([](Net& net) { net.layers[1].weight = counted({3, 5}), net.layers[1].bias = counted({5}); }) ==
        "tensor 'args[0][0].layers[1].weight' size mismatch at dim 1: expected 2, actual 5");
  Twin same(body);
  CHECK(same(Given{small_net(), counted({4, 3})}) == 1);
  CHECK(same(Given{small_net(), counted({4, 3}, 7)}) == 1);  // other tensors of the same kind
}

TEST_CASE("free functions, function pointers and std::function are compiled like lambdas") {
  auto const named = compile(doubled);
  auto const pointer = compile(&doubled);
  auto const wrapped = compile(std::function<Tensor(Tensor const&)>(doubled));
  for (int k = 0; k < 2; ++k)
    for (auto const& result : {named(counted({2})), pointer(counted({2})), wrapped(counted({2}))}) CHECK(numbers(result) == std::vector<double>{2, 4});
  CHECK(graphs(named) == 1);
  CHECK(graphs(pointer) == 1);
  CHECK(graphs(wrapped) == 1);
  CHECK((named.function() == &doubled));
}

TEST_CASE("captures by value are the function's own, captures by reference are read anew") {
  double factor = 2;
  Tensor shift = counted({2});
  auto const by_value = compile([factor, shift](Tensor const& x) { return x * factor + shift; });
  auto const by_reference = compile([&](Tensor const& x) { return x * factor + shift; });
  Tensor const x = counted({2});
  CHECK(numbers(by_value(x)) == std::vector<double>{3, 6});
  CHECK(numbers(by_reference(x)) == std::vector<double>{3, 6});
  factor = 10, shift = counted({2}, 100);
  CHECK(numbers(by_value(x)) == std::vector<double>{3, 6});
  CHECK(numbers(by_reference(x)) == std::vector<double>{110, 121});
  factor = 20;
  CHECK(numbers(by_reference(x)) == std::vector<double>{120, 141});
  CHECK(graphs(by_value) == 1);
  CHECK(graphs(by_reference) == 2);
}

TEST_CASE("a mutable lambda keeps its state from call to call, shared by no copy") {
  auto const f = compile([calls = 0](Tensor const& x) mutable { return x * static_cast<double>(++calls); });
  for (double k : {1.0, 2.0, 3.0, 4.0}) CHECK(numbers(f(ones({1}))) == std::vector<double>{k});
  auto const copy = f;
  CHECK(numbers(copy(ones({1}))) == std::vector<double>{5});
  CHECK(numbers(f(ones({1}))) == std::vector<double>{5});
  CHECK(graphs(f) == 2);
  CHECK(graphs(copy) == 2);  // what was captured is shared
}

namespace {
struct Scaled {  // a callable with parameters
  Layer layer;
  double scale = 1;
  Tensor operator()(Tensor const& x) const { return (matmul(x, layer.weight) + layer.bias) * scale; }
  static void fields(auto& self, auto&& field) { field("layer", self.layer), field("scale", self.scale); }
};
}  // namespace

TEST_CASE("a callable with parameters: they are named by their path, and follow their model only through a reference") {
  Scaled model{{counted({3, 2}), counted({2})}};
  auto const own = compile(model);
  auto const shared = compile(std::ref(model));
  Tensor const x = counted({1, 3});
  CHECK(numbers(own(x)) == std::vector<double>{23, 30});
  CHECK(numbers(shared(x)) == std::vector<double>{23, 30});
  CHECK(support::says(support::guards_of(describe(own.state())), "layer.weight is f32[3, 2]"));
  model.layer.bias.add_(full({2}, 100));  // the memory is one: both see it
  CHECK(numbers(own(x)) == std::vector<double>{123, 130});
  CHECK(numbers(shared(x)) == std::vector<double>{123, 130});
  model.layer.bias = zeros({2}), model.scale = 2;  // the handles are not
  CHECK(numbers(own(x)) == std::vector<double>{123, 130});
  CHECK(numbers(shared(x)) == std::vector<double>{44, 56});
  CHECK(graphs(own) == 1);
}

TEST_CASE("methods: as a member pointer, and through a lambda") {
  Net net = small_net();
  Tensor const x = counted({2, 3});
  auto const forward = compile(&Net::forward);
  auto const lambda = compile([&net](Tensor const& input) { return net.forward(input); });
  for (int k = 0; k < 2; ++k) {
    CHECK(exactly(forward(net, x)) == exactly(net.forward(x)));
    CHECK(exactly(lambda(x)) == exactly(net.forward(x)));
  }
  CHECK(graphs(forward) == 1);
  net.config.mode = "relu";
  CHECK(exactly(forward(net, x)) == exactly(net.forward(x)));
  CHECK(last_reason(forward) == "value 'args[0].config.mode' mismatch: expected plain, actual relu");
  auto const grow = compile(&Net::grow);
  for (int k = 0; k < 3; ++k) grow(net, ones({3}));
  CHECK(numbers(net.layers[0].bias) == std::vector<double>{4, 5, 6});
  CHECK(graphs(grow) == 1);
}

TEST_CASE("arguments that can't be copied are passed by reference and left alone") {
  auto const f = compile([](Tensor const& x, std::unique_ptr<double>& factor, std::unique_ptr<double> const& shift) {
    *factor += 1;
    return x * *factor + *shift;
  });
  auto factor = std::make_unique<double>(0);
  for (double k : {1.0, 2.0, 3.0}) CHECK(numbers(f(ones({1}), factor, std::make_unique<double>(10))) == std::vector<double>{10 + k});
  CHECK(graphs(f) == 2);
}

TEST_CASE("a function that can't be copied is compiled as well") {
  auto const f = compile([factor = std::make_unique<double>(2)](Tensor const& x) { return x * *factor; });
  for (int k = 0; k < 2; ++k) CHECK(numbers(f(counted({2}))) == std::vector<double>{2, 4});
  CHECK(graphs(f) == 1);
}

TEST_CASE("tensors behind a reference wrapper, in a variant or a plain array: found at their first use or as arguments, never stale") {
  using Either = std::variant<Tensor, double>;
  Twin f([](std::reference_wrapper<Tensor const> x, Either const& other) {
    if (auto const* number = std::get_if<double>(&other)) return x.get() * *number;
    return x.get() + std::get<Tensor>(other);
  });
  Tensor const x = counted({2}), y = counted({2}, 9);
  CHECK(f(std::cref(x), Either(2.0)) == 1);
  CHECK(f(std::cref(y), Either(2.0)) == 1);
  CHECK(f(std::cref(y), Either(x)) == 2);
  CHECK(f(std::cref(x), Either(y)) == 2);
  auto const array = compile([](Tensor const(&items)[2]) { return items[0] - items[1]; });
  Tensor const both[2] = {y, x}, turned[2] = {x, y};
  CHECK(numbers(array(both)) == std::vector<double>{8, 8});
  CHECK(numbers(array(turned)) == std::vector<double>{-8, -8});
  CHECK(graphs(array) == 1);
}

TEST_CASE("any number of arguments, of any types") {
  Twin f([](Tensor x, auto const&... rest) { return (x * ... * rest); });
  Tensor const x = counted({2});
  CHECK(f(x) == 0);
  CHECK(f(x, 2, x) == 1);
  CHECK(f(x, x, 2.0, x) == 2);
  CHECK(f(x, 2, x) == 2);
}

TEST_CASE("arguments are not moved from: a text handed in as a temporary is whole in the body and in its guard") {
  std::string seen;
  auto const f = compile([&seen](Tensor const& x, std::string text) {
    seen = std::move(text);
    return x + 1;
  });
  std::string const text(100, 'x');
  CHECK(numbers(f(ones({1}), std::string(text))) == std::vector<double>{2});
  CHECK(seen == text);
  (void)f(ones({1}), std::string(100, 'y'));
  CHECK(last_reason(f) == "value 'args[1]' mismatch: expected " + text + ", actual " + std::string(100, 'y'));
}

TEST_CASE("no arguments at all, and a body that makes its tensors itself") {
  Twin f([] { return ones({2}) + 1; });
  for (int k = 0; k < 3; ++k) CHECK(f() == 1);
}

TEST_CASE("a body without a single op is run, not captured") {
  int runs = 0;
  auto const f = compile([&runs](int n) { return runs += n; });
  CHECK(f(2) == 2);
  CHECK(f(3) == 5);
  CHECK(graphs(f) == 0);
}

TEST_CASE("unread tensors are not guarded, whatever becomes of them") {
  Twin f([](Tensor const& x, Tensor const&) { return x * 2; });
  Tensor const x = counted({3});
  for (Tensor const& unread : {counted({3}), counted({4}), counted({1}), counted({0}), counted({2, 3}), to(counted({3}), DType::f64),
                               transpose(counted({2, 3}), 0, 1), counted({3}).set_requires_grad(), Tensor(), x})
    CHECK(f(x, unread) == 1);
}

TEST_CASE("contents, storage offsets and the strides of dims of size 1 are not guarded") {
  Twin f([](Tensor const& x) { return x * 2; });
  Tensor const wide = counted({6, 4});
  CHECK(f(slice(wide, 0, 0, 2)) == 1);
  CHECK(f(slice(wide, 0, 3, 5)) == 1);
  CHECK(f(slice(wide, 1, 0, 2)) > 1);  // strides 4, 1 over sizes 6, 2
  Twin row([](Tensor const& x) { return x * 2; });
  CHECK(row(counted({1, 4})) == 1);
  CHECK(row(slice(wide, 0, 2, 3)) == 1);
  CHECK(row(transpose(counted({4, 1}), 0, 1)) == 1);  // strides 1, 1
  CHECK(row(expand(select(wide, 0, 1), {1, 4})) == 1);
}

namespace {
template <class F>
void check_result(F body) {
  Twin f(body);
  for (double from : {1.0, 5.0, 9.0}) CHECK(f(counted({2, 3}, from)) == 1);
}
}  // namespace

TEST_CASE("results of every kind arrive as the body made them") {
  check_result([](Tensor const& x) { return x + 1; });
  check_result([](Tensor const& x) { return std::pair(x + 1, sum(x)); });
  check_result([](Tensor const& x) { return std::tuple(x + 1, 7, std::string("seven"), transpose(x * 2, 0, 1)); });
  check_result([](Tensor const& x) { return std::vector{x + 1, x * 2, x}; });
  check_result([](Tensor const& x) { return std::array{x + 1, x + 2}; });
  check_result([](Tensor const& x) { return std::map<std::string, Tensor>{{"next", x + 1}, {"same", x}}; });
  check_result([](Tensor const& x) { return std::optional(x + 1); });
  check_result([](Tensor const& x) { return Pair{amax(x, {1}), argmax(x, 1), "of the rows"}; });
  check_result([](Tensor const& x) { return std::vector<std::optional<std::pair<Tensor, bool>>>{std::pair(x - 1, true), std::nullopt}; });
}

TEST_CASE("a result that can only be moved is moved") {
  auto const f = compile([](Tensor const& x) { return std::make_unique<Tensor>(x + 1); });
  for (double k : {1.0, 2.0}) CHECK(numbers(*f(full({1}, k))) == std::vector<double>{k + 1});
  CHECK(graphs(f) == 1);
}

TEST_CASE("a result by reference is the very object: an argument, a field, a captured tensor") {
  Tensor captured = counted({2});
  auto const argument = compile([](Tensor& x) -> Tensor& { return x.mul_(2.0); });
  auto const field = compile([](Layer const& layer) -> Tensor const& { return layer.bias; });
  auto const outside = compile([&captured](Tensor const& by) -> Tensor& { return captured.add_(by); });
  Tensor x = counted({2});
  Layer const layer{counted({2}), counted({2})};
  for (double k : {2.0, 4.0}) {
    CHECK(&argument(x) == &x);
    CHECK(numbers(x) == std::vector<double>{k, 2 * k});
    CHECK(&field(layer) == &layer.bias);
    CHECK(&outside(ones({2})) == &captured);
  }
  CHECK(numbers(captured) == std::vector<double>{3, 4});
}

TEST_CASE("nothing as a result: the effects are what counts") {
  Tensor x = counted({2}), kept;
  auto const f = compile([&kept](Tensor& into, Tensor const& by) {
    into.add_(by);
    kept = into * 2;
  });
  static_assert(std::is_void_v<decltype(f(x, x))>);
  for (double k : {1.0, 2.0, 3.0}) {
    f(x, ones({2}));
    CHECK(numbers(x) == std::vector<double>{1 + k, 2 + k});
    CHECK(numbers(kept) == std::vector<double>{2 + 2 * k, 4 + 2 * k});
  }
  CHECK(graphs(f) == 1);
}

TEST_CASE("explain takes a function or a compiled function, with arguments of any kind") {
  Net net = small_net();
  Tensor const x = counted({2, 3});
  auto const report = explain(&Net::forward)(net, x);
  CHECK(report.graphs == 1);
  CHECK(report.ops == 5);
  auto const fast = compile([](Net const& model, Tensor const& input) { return model.forward(input); });
  (void)fast(net, x);
  CHECK(explain(fast)(net, x).calls == 2);
}

TEST_CASE("value and gradients of every tensor of the first argument, compiled as eagerly") {
  auto const loss = [](Layer const& layer, Tensor const& x) { return sum(relu(matmul(x, layer.weight) + layer.bias)); };
  Layer const needs{counted({3, 2}, -3).set_requires_grad(), counted({2}).set_requires_grad()}, does_not{counted({3, 2}, -3), counted({2})};
  for (auto const* const layer : {&needs, &does_not}) {
    auto const fast = compile(value_and_grad(loss));
    for (int n : {2, 4, 3, 2}) {
      Tensor const x = counted({n, 3}, -4);
      CHECK(exactly(fast(*layer, x)) == exactly(value_and_grad(loss)(*layer, x)));
    }
    CHECK(graphs(fast) == 2);
  }
}
