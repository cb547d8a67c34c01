// Pattern rewriting: what matches, what does not, and that the rewritten graph means the same.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;
using ir::Rewrite;

namespace {
Graph parsed(std::string_view text) { return ir::parse_graph(text); }
// x * w + b as one call; patterns say nothing of types, so any may stand there.
Rewrite const fused{.pattern = parsed("graph p(%0 x: f32[], %1 w: f32[], %2 b: f32[]) { %3 = matmul(%0, %1): f32[] %4 = add(%3, %2): f32[] return %4 }"),
                    .replacement = parsed("graph r(%0 x: f32[], %1 w: f32[], %2 b: f32[]) { %3 = addmm(%2, %0, %1): f32[] return %3 }")};
Rewrite const twice{.pattern = parsed("graph p(%0 x: f32[]) { %1 = relu(%0): f32[] %2 = relu(%1): f32[] return %2 }"),
                    .replacement = parsed("graph r(%0 x: f32[]) { %1 = relu(%0): f32[] return %1 }")};

std::string calls(Graph const& graph) {  // "relu(%0) add(%1, %2) -> %3"
  std::string text;
  for (auto const& node : graph.nodes) {
    text += std::string(node.op->name) + "(";
    for (std::size_t k = 0; k < node.inputs.size(); ++k)
      text += (k ? ", " : "") + (node.inputs[k].value >= 0 ? std::format("%{}", node.inputs[k].value) : graph.symbols.to_string(node.inputs[k].scalar));
    auto const attributes = ir::to_string(*node.op, node.attrs, &graph.symbols);
    text += (attributes.empty() ? "" : ", ") + attributes + ") ";
  }
  text += "->";
  for (int output : graph.outputs) text += std::format(" %{}", output);
  return text;
}
ir::Rewritten checked(Graph const& graph, Rewrite const& rule, double tolerance = 1e-12) {
  ir::verify(graph);
  auto done = ir::rewrite(graph, rule);
  ir::verify(done.graph);
  CHECK(ir::largest_difference(graph, done.graph) <= tolerance);
  return done;
}
}  // namespace

TEST_CASE("a match names its nodes, its bindings and what was made instead") {
  auto const graph = parsed(R"(graph g(%0 a: f64[2, 3], %1 b: f64[3, 4], %2 c: f64[4]) {
  %3 = neg(%0): f64[2, 3]
  %4 = matmul(%3, %1): f64[2, 4]
  %5 = add(%4, %2): f64[2, 4]
  %6 = exp(%5): f64[2, 4]
  return %6
})");
  auto const done = checked(graph, fused);
  CHECK(calls(done.graph) == "neg(%0) addmm(%2, %3, %1) exp(%4) -> %5");
  REQUIRE(done.matches.size() == 1);
  auto const& match = done.matches[0];
  CHECK(match.nodes == std::vector{1, 2});
  CHECK(match.replaced == std::vector{1});
  CHECK(match.bindings.at("x").value == 3);
  CHECK(match.bindings.at("w").value == 1);
  CHECK(match.bindings.at("b").value == 2);
}

TEST_CASE("operands of commutative calls match in both orders, others do not") {
  auto const swapped = parsed("graph g(%0: f64[2, 3], %1: f64[3, 4], %2: f64[4]) { %3 = matmul(%0, %1): f64[2, 4] %4 = add(%2, %3): f64[2, 4] return %4 }");
  CHECK(calls(checked(swapped, fused).graph) == "addmm(%2, %0, %1) -> %3");
  auto const scaled =
      parsed("graph g(%0: f64[2, 3], %1: f64[3, 4], %2: f64[4]) { %3 = matmul(%0, %1): f64[2, 4] %4 = add(%2, %3, alpha=2.0): f64[2, 4] return %4 }");
  CHECK(checked(scaled, fused).matches.empty());
  Rewrite const minus{.pattern = parsed("graph p(%0 x: f32[], %1 y: f32[]) { %2 = neg(%0): f32[] %3 = sub(%2, %1): f32[] return %3 }"),
                      .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[]) { %2 = add(%0, %1): f32[] %3 = neg(%2): f32[] return %3 }")};
  auto const other = parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = neg(%0): f64[3] %3 = sub(%1, %2): f64[3] return %3 }");
  CHECK(checked(other, minus).matches.empty());
  // Both orders inside one another: (a*b) + (c*d) with x*y + y*z must try four ways.
  Rewrite const share{
      .pattern = parsed("graph p(%0 x: f32[], %1 y: f32[], %2 z: f32[]) { %3 = mul(%0, %1): f32[] %4 = mul(%1, %2): f32[] %5 = add(%3, %4): f32[] return %5 }"),
      .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[], %2 z: f32[]) { %3 = add(%0, %2): f32[] %4 = mul(%3, %1): f32[] return %4 }")};
  for (auto const& [first, second] : {std::pair{"%0, %1", "%1, %2"}, {"%1, %0", "%1, %2"}, {"%0, %1", "%2, %1"}, {"%1, %0", "%2, %1"}}) {
    auto const text = std::format(
        "graph g(%0: f64[3], %1: f64[3], %2: f64[3]) {{ %3 = mul({}): f64[3] %4 = mul({}): f64[3] %5 = add(%4, %3): f64[3] return %5 }}", first, second);
    auto const done = checked(parsed(text), share);
    CHECK_MESSAGE(done.matches.size() == 1, text);
    CHECK(done.matches[0].bindings.at("y").value == 1);
  }
}

TEST_CASE("the table of commutative ops is what their elements say") {
  std::mt19937 random(71);
  for (auto const* op : ir::all_ops()) {
    if (op->kind != ir::Kind::pointwise || !op->element.real || ir::signature(*op).operands != 2 || ir::signature(*op).variadic) continue;
    bool equal = true;
    int asked = 0;
    for (auto const& call : support::samples(*op, random)) {
      if (!call.operands[0].tensor || !call.operands[1].tensor || call.operands[0].tensor->at.dtype != call.operands[1].tensor->at.dtype) continue;
      bool const unscaled = std::ranges::all_of(call.attrs.nums, [](auto const& s) { return s.real == 1; });
      if (!unscaled || base::numel(call.operands[0].tensor->at.sizes) == 0) continue;
      auto const attributes = ir::element_attributes(*op, call.attrs);
      for (double const p : support::reals(call.operands[0].tensor->at))
        for (double const q : support::reals(call.operands[1].tensor->at)) {
          std::array const there{p, q};
          std::array const back{q, p};
          equal = equal && op->element.real(there.data(), attributes.data()) == op->element.real(back.data(), attributes.data());
          ++asked;
        }
    }
    if (asked) CHECK_MESSAGE(ir::commutative(*op, ir::default_attrs(*op)) == equal, std::string(op->name));
  }
}

TEST_CASE("of overlapping matches the first wins, adjacent ones are all replaced") {
  auto const chain = [](int length) {
    Graph graph;
    int x = graph.input(ir::contiguous_meta(DType::f64, {}, {3}));
    for (int k = 0; k < length; ++k) x = graph.add(ir::ops::relu, {{x, {}}}, {}, {});
    graph.outputs = {x};
    return graph;
  };
  for (int length = 1; length < 8; ++length) {
    auto const done = checked(chain(length), twice);
    CHECK(std::cmp_equal(done.matches.size(), length / 2));
    CHECK(std::cmp_equal(done.graph.nodes.size(), length - length / 2));
    for (int k = 0; k < length / 2; ++k) CHECK(done.matches[static_cast<std::size_t>(k)].nodes == std::vector{2 * k, 2 * k + 1});
  }
}

TEST_CASE("what is read outside of a match stays, unless the pattern returns it") {
  auto const graph = parsed("graph g(%0: f64[3]) { %1 = relu(%0): f64[3] %2 = relu(%1): f64[3] %3 = neg(%1): f64[3] return %2, %3 }");
  CHECK(checked(graph, twice).matches.empty());
  auto const returned = parsed("graph g(%0: f64[3]) { %1 = relu(%0): f64[3] %2 = relu(%1): f64[3] return %2, %1 }");
  CHECK(checked(returned, twice).matches.empty());
  auto both = twice;
  both.pattern.outputs = {1, 2};
  both.replacement.outputs = {1, 1};
  CHECK(calls(checked(graph, both).graph) == "relu(%0) neg(%1) -> %1 %2");
  CHECK(calls(checked(returned, both).graph) == "relu(%0) -> %1 %1");
}

TEST_CASE("wildcards bind consistently, to numbers too; numbers match by kind and value") {
  Rewrite const square{.pattern = parsed("graph p(%0 x: f32[]) { %1 = mul(%0, %0): f32[] return %1 }"),
                       .replacement = parsed("graph r(%0 x: f32[]) { %1 = square(%0): f32[] return %1 }")};
  CHECK(checked(parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = mul(%0, %1): f64[3] return %2 }"), square).matches.empty());
  CHECK(checked(parsed("graph g(%0: f64[3]) { %1 = mul(%0, %0): f64[3] return %1 }"), square).matches.size() == 1);
  Rewrite const factor{
      .pattern = parsed("graph p(%0 x: f32[], %1 y: f32[], %2 k: f32[]) { %3 = mul(%0, %2): f32[] %4 = mul(%1, %2): f32[] %5 = add(%3, %4): f32[] return %5 }"),
      .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[], %2 k: f32[]) { %3 = add(%0, %1): f32[] %4 = mul(%3, %2): f32[] return %4 }")};
  auto const number =
      checked(parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = mul(%0, 0.5): f64[3] %3 = mul(%1, 0.5): f64[3] %4 = add(%2, %3): f64[3] return %4 }"), factor);
  CHECK(calls(number.graph) == "add(%0, %1) mul(%2, 0.5) -> %3");
  CHECK(number.matches[0].bindings.at("k").value == -1);
  CHECK(number.matches[0].bindings.at("k").scalar.real == 0.5);
  CHECK(checked(parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = mul(%0, 0.5): f64[3] %3 = mul(%1, 0.25): f64[3] %4 = add(%2, %3): f64[3] return %4 }"), factor)
            .matches.empty());
  Rewrite const half{.pattern = parsed("graph p(%0 x: f32[]) { %1 = mul(%0, 2): f32[] return %1 }"),
                     .replacement = parsed("graph r(%0 x: f32[]) { %1 = add(%0, %0): f32[] return %1 }")};
  CHECK(checked(parsed("graph g(%0: f64[3]) { %1 = mul(%0, 2): f64[3] return %1 }"), half).matches.size() == 1);
  CHECK(checked(parsed("graph g(%0: i64[3]) { %1 = mul(%0, 2.0): f32[3] return %1 }"), half).matches.empty());  // the product is a fraction
}

TEST_CASE("attributes are equal, or any and carried over") {
  auto const text = "graph g(%0: f64[2, 3, 4]) { %1 = softmax(%0, dim=1): f64[2, 3, 4] %2 = log(%1): f64[2, 3, 4] return %2 }";
  Rewrite rule{.pattern = parsed("graph p(%0 x: f32[]) { %1 = softmax(%0, dim=0): f32[] %2 = log(%1): f32[] return %2 }"),
               .replacement = parsed("graph r(%0 x: f32[]) { %1 = log_softmax(%0, dim=0): f32[] return %1 }")};
  CHECK(checked(parsed(text), rule).matches.empty());
  rule.carried = {{1, "dim", 1}};
  CHECK(calls(checked(parsed(text), rule).graph) == "log_softmax(%0, dim=1) -> %1");
  Rewrite const mean{.pattern = parsed("graph p(%0 x: f32[]) { %1 = sum(%0, dim=[0]): f32[] %2 = neg(%1): f32[] return %2 }"),
                     .replacement = parsed("graph r(%0 x: f32[]) { %1 = neg(%0): f32[] %2 = sum(%1): f32[] return %2 }"),
                     .carried = {{1, "dim", 2}, {1, "keepdim", 2}}};
  auto const sums = parsed("graph g(%0: f64[2, 3]) { %1 = sum(%0, dim=[1], keepdim=true): f64[2, 1] %2 = neg(%1): f64[2, 1] return %2 }");
  CHECK(calls(checked(sums, mean).graph) == "neg(%0) sum(%1, dim=[1], keepdim=true) -> %2");
}

TEST_CASE("a pattern with several outputs, wherever they stand") {
  Rewrite const pair{
      .pattern = parsed("graph p(%0 x: f32[], %1 y: f32[]) { %2 = sin(%0): f32[] %3 = cos(%0): f32[] %4 = mul(%3, %1): f32[] return %2, %4 }"),
      .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[]) { %2 = cos(%0): f32[] %3 = mul(%1, %2): f32[] %4 = sin(%0): f32[] return %4, %3 }")};
  auto const before =
      parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = sin(%0): f64[3] %3 = exp(%2): f64[3] %4 = cos(%0): f64[3] %5 = mul(%4, %1): f64[3] return %3, %5 }");
  CHECK(calls(checked(before, pair).graph) == "cos(%0) mul(%1, %2) sin(%0) exp(%4) -> %5 %3");
  auto const after =
      parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = cos(%0): f64[3] %3 = mul(%2, %1): f64[3] %4 = exp(%3): f64[3] %5 = sin(%0): f64[3] return %4, %5 }");
  CHECK(checked(after, pair).matches.size() == 1);
  // y depends on what the match returns: replacing both at one place would tie a loop.
  auto const loop = parsed("graph g(%0: f64[3]) { %1 = sin(%0): f64[3] %2 = exp(%1): f64[3] %3 = cos(%0): f64[3] %4 = mul(%3, %2): f64[3] return %4, %1 }");
  CHECK(checked(loop, pair).matches.empty());
  // Two of the same operand: each sine goes with another cosine.
  auto const many = parsed(R"(graph g(%0: f64[3], %1: f64[3]) {
  %2 = sin(%0): f64[3]
  %3 = sin(%0): f64[3]
  %4 = cos(%0): f64[3]
  %5 = cos(%0): f64[3]
  %6 = mul(%4, %1): f64[3]
  %7 = mul(%5, %1): f64[3]
  return %2, %3, %6, %7
})");
  CHECK(checked(many, pair).matches.size() == 2);
}

TEST_CASE("a check may refuse, and what is left out of a replacement goes") {
  auto rule = twice;
  int asked = 0;
  rule.check = [&](Graph const& graph, ir::Match const& match) {
    ++asked;
    return graph.values[static_cast<std::size_t>(match.bindings.at("x").value)].node >= 0;
  };
  auto const graph = parsed("graph g(%0: f64[3]) { %1 = relu(%0): f64[3] %2 = relu(%1): f64[3] %3 = relu(%2): f64[3] return %3 }");
  CHECK(checked(graph, rule).matches[0].nodes == std::vector{1, 2});
  CHECK(asked == 2);
}

TEST_CASE("rules that are none, and replacements that do not fit, are Errors") {
  struct Row {
    std::string_view pattern, replacement, text;
    std::vector<ir::Carried> carried{};
  };
  std::vector<Row> const rows{
      {"graph p(%0 x: f32[]) { return %0 }", "graph r(%0 x: f32[]) { return %0 }", "rewrite: the pattern p has no calls"},
      {"graph p(%0 x: f32[], %1 y: f32[]) { %2 = neg(%0): f32[] return %2 }", "graph r(%0 x: f32[]) { return %0 }",
       "rewrite: input y of the pattern is not used"},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] %2 = exp(%0): f32[] return %2 }", "graph r(%0 x: f32[]) { return %0 }",
       "rewrite: %1 = neg of the pattern leads to no output"},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] return %0 }", "graph r(%0 x: f32[]) { return %0 }", "rewrite: output %0 of the pattern is a wildcard"},
      {"graph p(%0 x: f32[], %1 x: f32[]) { %2 = add(%0, %1): f32[] return %2 }", "graph r(%0 x: f32[]) { return %0 }",
       "rewrite: two inputs of the pattern are named x"},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] return %1 }", "graph r(%0 y: f32[]) { return %0 }",
       "rewrite: the pattern has no input y for the replacement"},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] return %1 }", "graph r(%0 x: f32[]) { return %0, %0 }",
       "rewrite: the pattern has 1 outputs, the replacement 2"},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] return %1 }", "graph r(%0 x: f32[]) { return %0 }", "rewrite: neg has no attribute dim", {{1, "dim"}}},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] return %1 }", "graph r(%0 x: f32[]) { return %0 }", "rewrite: %0 of p is no call", {{0, "dim"}}},
      {"graph p(%0 x: f32[]) { %1 = copy_(%0, %0): f32[] return %1 }", "graph r(%0 x: f32[]) { return %0 }",
       "rewrite: node 0 (copy_) writes into %0: functionalize first"},
      {"graph p(%0 x: f32[]) { %1 = neg(%0): f32[] return %1 }", "graph r(%0 x: f32[]) { %1 = sum(%0): f32[] return %1 }",
       "rewrite: output 0 was f64[3] and would be f64[]"},
  };
  auto const graph = parsed("graph g(%0: f64[3]) { %1 = neg(%0): f64[3] return %1 }");
  for (auto const& row : rows) CHECK(support::caught([&] { ir::rewrite(graph, {parsed(row.pattern), parsed(row.replacement), row.carried}); }) == row.text);
}

TEST_CASE("a rewrite that is wrong is found by evaluating both graphs") {
  Rewrite const wrong{.pattern = parsed("graph p(%0 x: f32[], %1 y: f32[]) { %2 = sub(%0, %1): f32[] return %2 }"),
                      .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[]) { %2 = sub(%1, %0): f32[] return %2 }")};
  auto const graph = parsed("graph g(%0: f64[3], %1: f64[3]) { %2 = sub(%0, %1): f64[3] return %2 }");
  CHECK(ir::largest_difference(graph, ir::rewrite(graph, wrong).graph) > 0.1);
  CHECK(ir::largest_difference(graph, graph) == 0);
}

TEST_CASE("random graphs mean the same after a rewrite, and no node is in two matches") {
  std::mt19937 random(72);
  std::vector<Rewrite> const rules{
      twice,
      {.pattern = parsed("graph p(%0 x: f32[], %1 y: f32[]) { %2 = neg(%0): f32[] %3 = neg(%1): f32[] %4 = mul(%2, %3): f32[] return %4 }"),
       .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[]) { %2 = mul(%0, %1): f32[] return %2 }")},
      {.pattern =
           parsed("graph p(%0 x: f32[], %1 y: f32[], %2 k: f32[]) { %3 = mul(%0, %2): f32[] %4 = mul(%1, %2): f32[] %5 = add(%3, %4): f32[] return %5 }"),
       .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[], %2 k: f32[]) { %3 = add(%0, %1): f32[] %4 = mul(%3, %2): f32[] return %4 }")},
      {.pattern = parsed("graph p(%0 x: f32[], %1 y: f32[]) { %2 = neg(%0): f32[] %3 = add(%0, %1): f32[] return %2, %3 }"),
       .replacement = parsed("graph r(%0 x: f32[], %1 y: f32[]) { %2 = add(%1, %0): f32[] %3 = neg(%0): f32[] return %3, %2 }")}};
  std::size_t found = 0;
  int const turns = support::tier(200, 1500, 20'000);
  for (int turn = 0; turn < turns; ++turn) {
    Graph graph;
    for (int k = 0; k < 3; ++k) graph.input(ir::contiguous_meta(DType::f64, {}, {3}));
    for (auto k = 1 + random() % 20; k > 0; --k) {
      auto const any = [&] { return ir::Input{static_cast<int>(graph.values.size() - 1 - random() % std::min<std::size_t>(graph.values.size(), 5)), {}}; };
      switch (random() % 4) {
        case 0:
          graph.add(ir::ops::relu, {any()}, {}, {});
          break;
        case 1:
          graph.add(ir::ops::neg, {any()}, {}, {});
          break;
        case 2:
          graph.add(ir::ops::mul, {any(), random() % 4 ? any() : ir::Input{-1, ir::Scalar(0.5)}}, {}, {});
          break;
        default:
          graph.add(ir::ops::add, {any(), any()}, ir::default_attrs(ir::ops::add), {});
      }
    }
    graph.outputs = {static_cast<int>(graph.values.size()) - 1, static_cast<int>(random() % graph.values.size())};
    auto const text = ir::to_string(graph);
    std::vector<double> size(graph.values.size(), 2);  // no element is larger
    for (auto const& node : graph.nodes) {
      auto const at = [&](std::size_t k) { return node.inputs[k].value < 0 ? 0.5 : size[static_cast<std::size_t>(node.inputs[k].value)]; };
      size[static_cast<std::size_t>(node.first)] = node.op == &ir::ops::mul ? at(0) * at(1) : node.op == &ir::ops::add ? at(0) + at(1) : at(0);
    }
    double const bound = std::ranges::max(size);
    auto const why = support::caught([&] {
      for (auto const& rule : rules) {
        auto const done = ir::rewrite(graph, rule);
        ir::verify(done.graph);
        found += done.matches.size();
        std::set<int> nodes;
        for (auto const& match : done.matches)
          for (int n : match.nodes) CHECK_MESSAGE(nodes.insert(n).second, text);
        double const gap = ir::largest_difference(graph, done.graph, static_cast<std::uint64_t>(turn));
        CHECK_MESSAGE(gap <= 1e-12 * bound, gap << "\n" << text);
      }
    });
    CHECK_MESSAGE(why == "nothing", why << "\n" << text);
  }
  CHECK(std::cmp_greater(found, turns / 2));
}
