// The capture sequences of compile.json: a function by name, its arguments by the label of each call, and after each call the number of graphs.
#include "golden.hpp"

import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

using namespace tenon;
using namespace tenon::tracer;

namespace {
// What a call passes: tensors and host values; each function takes what it needs.
struct Given {
  std::vector<Tensor> tensors;
  double real = 0;
  std::int64_t whole = 0;
  bool flag = false;
  std::string text;
  bool grad = true;
};
using Label = std::string const&;
using Arrange = std::function<Given(Label)>;
using Fresh = std::function<std::function<int(Given&)>(Options)>;  // a compiled function: runs it and says how many graphs there are

// How a call's arguments are passed on.
constexpr auto one = [](auto const& f, Given& given) { (void)f(given.tensors[0]); };
constexpr auto two = [](auto const& f, Given& given) { (void)f(given.tensors[0], given.tensors[1]); };
constexpr auto all = [](auto const& f, Given& given) { (void)f(given.tensors); };
constexpr auto with_real = [](auto const& f, Given& given) { (void)f(given.tensors[0], given.real); };
constexpr auto with_whole = [](auto const& f, Given& given) { (void)f(given.tensors[0], given.whole); };
constexpr auto with_text = [](auto const& f, Given& given) { (void)f(given.tensors[0], given.text); };
constexpr auto with_flag = [](auto const& f, Given& given) { (void)f(given.tensors[0], given.flag); };

template <class F, class Pass = decltype(one)>
Fresh body(F fn, Pass pass = one) {
  return [fn, pass](Options options) {
    auto compiled = std::make_shared<Compiled<F>>(compile(fn, std::move(options)));
    return [compiled, pass](Given& given) {
      GradMode const mode(given.grad);
      try {
        pass(*compiled, given);
      } catch (base::Error const&) {
        return -1 - describe(compiled->state()).graphs;
      }
      return describe(compiled->state()).graphs;
    };
  };
}

std::vector<std::int64_t> numbers_in(Label label) {
  std::vector<std::int64_t> list;
  for (std::size_t i = 0; i < label.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(label[i]))) {
      std::int64_t n = 0;
      auto const end = std::from_chars(label.data() + i, label.data() + label.size(), n).ptr;
      list.push_back(n);
      i = static_cast<std::size_t>(end - label.data());
    }
  return list;
}
Given of_shape(Label label) { return {.tensors = {ones(DimList(base::Shape(numbers_in(label))))}}; }
Given named(Label label) {
  if (label == "neg") return {.tensors = {full({3}, -1.0)}};
  if (label == "shape") return {.tensors = {ones({5})}};
  return {.tensors = {ones({3})}};
}
Given item_call(Label label) { return {.tensors = {full({3}, label == "b" ? 2.0 : 1.0)}}; }
Given text_call(Label label) { return {.tensors = {ones({3})}, .text = label}; }

Tensor relu_plus(Tensor const& x) { return relu(x + 1); }
Tensor plus_one(Tensor const& x) { return x + 1; }
Tensor branch(Tensor const& x) {
  if (sum(x) > 0) return x * 2;
  return x - 1;
}
Tensor item_body(Tensor const& x) { return x * sum(x).item(); }
Tensor print_body(Tensor const& x) {
  Tensor const y = x + 1;
  host_effect([] {});
  return y * 2;
}
Tensor three_breaks(Tensor const& x) {
  Tensor y = x + 1;
  graph_break();
  y = y * 2;
  graph_break();
  y = y - 3;
  graph_break();
  return relu(y);
}
Tensor random_body(Tensor const& x) { return x + randn({1}); }
Tensor resize_body(Tensor const& x) {
  Tensor y = clone(x);
  y.resize_({2, 2});
  return y + 1;
}
Tensor shape_branch(Tensor const& x) { return x.size(0) > 5 ? x * 2 : x + 1; }
Tensor by_text(Tensor const& x, std::string const& s) { return s == "a" ? x * 2 : x + 1; }

struct Sequence {
  Fresh make;
  Arrange arrange;
};
std::map<std::string, Sequence> const sequences{
    {"same shape reuses", {body(relu_plus), of_shape}},
    {"shape change, dynamic None", {body(relu_plus), of_shape}},
    {"shape change, dynamic False", {body(relu_plus), of_shape}},
    {"shape change, dynamic True", {body(relu_plus), of_shape}},
    {"0/1 specialization, dynamic True", {body([](Tensor const& x) { return x * 2; }), of_shape}},
    {"dtype change", {body(plus_one), [](Label label) { return Given{.tensors = {ones({3}, base::dtype_of(label))}}; }}},
    {"stride change",
     {body(plus_one),
      [](Label label) {
        if (label.starts_with("trans")) return Given{.tensors = {transpose(ones({3, 3}), 0, 1)}};
        return label == "sliced" ? Given{.tensors = {slice(ones({3, 6}), 1, 0, 6, 2)}} : Given{.tensors = {ones({3, 3})}};
      }}},
    {"requires_grad change", {body(plus_one), [](Label label) { return Given{.tensors = {ones({3}).set_requires_grad(label == "yes")}}; }}},
    {"grad mode change", {body(plus_one), [](Label label) { return Given{.tensors = {ones({3})}, .grad = label == "grad on"}; }}},
    {"python float argument changes",
     {body([](Tensor const& x, double s) { return x * s; }, with_real), [](Label label) { return Given{.tensors = {ones({3})}, .real = std::stod(label)}; }}},
    {"python int argument changes",
     {body([](Tensor const& x, std::int64_t n) { return x * n; }, with_whole),
      [](Label label) { return Given{.tensors = {ones({3})}, .whole = std::stoll(label)}; }}},
    {"python str argument changes", {body(by_text, with_text), text_call}},
    {"data-dependent branch", {body(branch), named}},
    {"data-dependent branch, fullgraph", {body(branch), named}},
    {"item", {body(item_body), item_call}},
    {"item, fullgraph", {body(item_body), item_call}},
    {"print in the middle", {body(print_body), named}},
    {"print in the middle, fullgraph", {body(print_body), named}},
    {"three explicit breaks", {body(three_breaks), named}},
    {"random in function", {body(random_body), named}},
    {"random in function, fullgraph", {body(random_body), named}},
    {"in-place resize_", {body(resize_body), [](Label label) { return Given{.tensors = {ones({label == "a" ? 3 : 5})}}; }}},
    {"in-place resize_, fullgraph", {body(resize_body), named}},
    // PyTorch's graph holds a size it does not know; here an argument's elements are there, and what is picked enters the graph as another tensor.
    {"nonzero, fullgraph", {body([](Tensor const& x) { return nonzero(x) + 1; }), named}},
    {"shape branch", {body(shape_branch), of_shape}},
    {"recompile limit", {body(by_text, with_text), text_call}},
    {"recompile limit 3, fullgraph", {body(by_text, with_text), text_call}},
    {"device change",
     {body(plus_one), [](Label label) { return Given{.tensors = {to(ones({3}), label == "cpu" ? base::Device{} : base::device_of("sim:0"))}}; }}},
    {"mixed devices",
     {body([](Tensor const& x, Tensor const& y) { return x + y; }, two),
      [](Label) { return Given{.tensors = {ones({3}), to(ones({3}), base::device_of("sim:0"))}}; }}},
    {"rank change", {body(relu_plus), of_shape}},
    {"duck shaping",
     {body([](Tensor const& x, Tensor const& y) { return sum(x) + sum(y); }, two),
      [](Label label) {
        auto const n = numbers_in(label);
        return Given{.tensors = {ones({n.at(0)}), ones({n.back()})}};
      }}},
    {"python bool argument changes",
     {body([](Tensor const& x, bool flag) { return flag ? x * 2 : x + 1; }, with_flag),
      [](Label label) { return Given{.tensors = {ones({3})}, .flag = label == "True" || label == "true" || label == "yes"}; }}},
    {"list length changes",
     {body(
          [](std::vector<Tensor> const& list) {
            Tensor total = list.at(0);
            for (std::size_t k = 1; k < list.size(); ++k) total = total + list[k];
            return total;
          },
          all),
      [](Label label) { return Given{.tensors = std::vector<Tensor>(static_cast<std::size_t>(numbers_in(label).at(0)), ones({3}))}; }}},
    {"mutated input", {body([](Tensor x) { return x.add_(full({}, 1)); }), named}},
    {"loop over shape",
     {body([](Tensor const& x) {
        Tensor all = zeros({});
        for (std::int64_t i = 0; i < x.size(0); ++i) all = all + select(x, 0, i);
        return all;
      }),
      of_shape}},
    {"inner dim change",
     {body([](Tensor const& x, Tensor const& w) { return matmul(x, w); }, two),
      [](Label label) {
        auto const k = numbers_in(label).back();
        return Given{.tensors = {ones({3, k}), ones({k, 2})}};
      }}},
    {"shape constant used in matmul",
     {body([](Tensor const& x, Tensor const& w) { return matmul(x, w); }, two),
      [](Label label) { return Given{.tensors = {ones({std::stoll(label), 4}), ones({4, 2})}}; }}},
};
}  // namespace

TEST_CASE("golden capture sequences: graphs after each call, and errors") {
  auto const cases = golden::load("compile.json", "capture");
  if (!cases) return;
  golden::Tally tally{"capture"};
  for (auto const& entry : *cases) {
    std::string const name = entry["name"];
    auto const found = sequences.find(name);
    if (found == sequences.end()) {
      std::cout << "  skipped: " << name << '\n';
      ++tally.skipped;
      continue;
    }
    Options options;
    options.fullgraph = entry.value("fullgraph", false);
    if (entry.contains("dynamic") && !entry["dynamic"].is_null()) options.dynamic = entry["dynamic"].get<bool>() ? Dynamic::always : Dynamic::never;
    if (entry.contains("config") && entry["config"].contains("recompile_limit"))
      options.recompile_limit = std::stoi(entry["config"]["recompile_limit"].get<std::string>());
    auto const run = found->second.make(std::move(options));
    for (auto const& row : entry["rows"]) {
      std::string const label = row["call"];
      auto given = found->second.arrange(label);
      int const graphs = run(given);
      CHECK_MESSAGE((graphs < 0) == row.contains("error"), name << " / " << label);
      if (graphs >= 0) CHECK_MESSAGE(graphs == row["graphs"].get<int>(), name << " / " << label);
    }
    ++tally.checked;
  }
}
