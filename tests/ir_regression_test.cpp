// Faults that other compilers had, as small tests; the numbers are issues of pytorch/pytorch, the line below each says what was wrong there.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;

namespace {
/// Every pass that keeps values, one after the other.
Graph through_all(Graph graph) {
  for (auto const& pass : std::vector<std::function<Graph(Graph const&)>>{
           [](Graph const& g) { return ir::functionalize(g).graph; }, [](Graph const& g) { return ir::fold_constants(g); },
           [](Graph const& g) { return ir::simplify(g); }, ir::merge_common, [](Graph const& g) { return ir::decompose(g); }, ir::merge_common,
           [](Graph const& g) { return ir::simplify(g); }, ir::eliminate_dead_code}) {
    graph = pass(graph);
    ir::verify(graph);
  }
  return graph;
}
std::vector<double> first(Graph const& graph, std::vector<ir::Strided> const& inputs, ir::Bindings const& bindings = {}) {
  return support::reals(ir::evaluate(ir::decompose(graph), inputs, bindings).outputs[0]);
}
ir::Rewrite rule(std::string_view pattern, std::string_view replacement) { return {ir::parse_graph(pattern), ir::parse_graph(replacement)}; }
}  // namespace

TEST_CASE("179561: a cast to bf16 and back rounds") {
  // The pair of casts was dropped, so the result had more digits than eager's.
  auto const graph = ir::parse_graph("graph g(%0: f32[2]) { %1 = to(%0, dtype=bf16): bf16[2] %2 = to(%1, dtype=f32): f32[2] return %2 }");
  std::array const values{1.00390625 + 0.0009765625, 3.14159274101257324};
  auto const x = support::array(DType::f32, {2}, values);
  CHECK(first(through_all(graph), {x.at}) == std::vector{1.0078125, 3.140625});
  auto const constant = ir::parse_graph(
      "graph g() { %0 = full(size=[], fill_value=3.14159274101257324): f32[] %1 = to(%0, dtype=bf16): bf16[] %2 = to(%1, dtype=f32): f32[] return %2 }");
  CHECK(first(through_all(constant), {}) == std::vector{3.140625});
}

TEST_CASE("183607: the square of a large f16 is infinite") {
  // The square was kept in f32, where it is finite.
  auto const graph = ir::parse_graph("graph g(%0: f16[2]) { %1 = square(%0): f16[2] %2 = to(%1, dtype=f32): f32[2] %3 = sqrt(%2): f32[2] return %3 }");
  std::array const values{300.0, 100.0};
  auto const x = support::array(DType::f16, {2}, values);
  auto const y = first(through_all(graph), {x.at});
  CHECK(std::isinf(y[0]));
  CHECK(y[1] == 100);
  auto const power = ir::parse_graph("graph g(%0: f16[2]) { %1 = pow(%0, 2): f16[2] %2 = mul(%0, %0): f16[2] %3 = sub(%1, %2): f16[2] return %1, %2 }");
  CHECK(std::isinf(first(ir::simplify(power, {.exact = false}), {x.at})[0]));
}

TEST_CASE("130039: of two ways to save, the smaller one") {
  // The cut kept more than it had to. By hand: relu's gradient needs which elements are above 0, a byte each, not the elements, four bytes each.
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, {32, 32}));
  int const y = graph.add(ir::ops::relu, {{x, {}}}, {}, {});
  graph.outputs = {graph.add(ir::ops::sum, {{y, {}}}, ir::default_attrs(ir::ops::sum), {})};
  auto const parts = ir::partition(ir::joint_graph(graph, std::array{0}));
  CHECK(parts.bytes == 32 * 32);
  CHECK(parts.forward.values[static_cast<std::size_t>(parts.forward.outputs[1])].meta->dtype == DType::boolean);
}

TEST_CASE("149258: one wide value is not kept where two narrow ones do") {
  // By hand: softmax over rows from its maximum and its sum (a number a row each) needs x as well, and x alone gives both again.
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, {16, 64})), w = graph.input(ir::contiguous_meta(DType::f32, {}, {16, 1}));
  int const e = graph.add(ir::ops::exp, {{x, {}}}, {}, {});
  int const total = graph.add(ir::ops::sum, {{e, {}}}, ir::Attrs{}.with(ir::Dims{1}).with(1).with(ir::absent), {});
  int const scaled = graph.add(ir::ops::mul, {{total, {}}, {w, {}}}, {}, {});
  graph.outputs = {graph.add(ir::ops::tanh, {{scaled, {}}}, {}, {})};
  // With respect to w alone: the sum (16 numbers) and w or tanh's value (16) are enough, e (1024) is not needed.
  CHECK(ir::partition(ir::joint_graph(graph, std::array{1})).bytes == 2 * 16 * 4);
  // With respect to x too: x, from which e and its sum come again, and w.
  CHECK(ir::partition(ir::joint_graph(graph, std::array{0, 1})).bytes == 16 * 64 * 4 + 16 * 4);
}

TEST_CASE("104775: a pattern does not match what only looks like it") {
  // A matcher took calls whose attributes or repeated operands differed.
  auto const attention = rule(
      "graph p(%0 q: f32[], %1 k: f32[]) { %2 = transpose(%1, dim0=1, dim1=2): f32[] %3 = matmul(%0, %2): f32[] %4 = softmax(%3, dim=2): f32[] return %4 }",
      "graph r(%0 q: f32[], %1 k: f32[]) { %2 = transpose(%1, dim0=1, dim1=2): f32[] %3 = matmul(%0, %2): f32[] %4 = log_softmax(%3, dim=2): f32[] %5 = "
      "exp(%4): f32[] return %5 }");
  auto const graph = [](int dim0, int dim) {
    return ir::parse_graph(std::format(
        "graph g(%0: f64[2, 3, 3], %1: f64[2, 3, 3]) {{ %2 = transpose(%1, dim0={}, dim1=2): f64[2, 3, 3] strides [{}] %3 = matmul(%0, %2): f64[2, 3, 3] "
        "%4 = softmax(%3, dim={}): f64[2, 3, 3] return %4 }}",
        dim0, dim0 == 1 ? "9, 1, 3" : "9, 3, 1", dim));
  };
  auto const right = graph(1, 2);
  ir::verify(right);
  auto const done = ir::rewrite(right, attention);
  CHECK(done.matches.size() == 1);
  CHECK(ir::largest_difference(right, done.graph) < 1e-12);
  CHECK(ir::rewrite(graph(2, 2), attention).matches.empty());
  CHECK(ir::rewrite(graph(1, 1), attention).matches.empty());
}

TEST_CASE("97817: a replacement that is an input replaces by nothing") {
  // The list of what was made instead held the whole graph.
  auto const graph = ir::parse_graph("graph g(%0: f64[3]) { %1 = exp(%0): f64[3] %2 = clone(%1): f64[3] %3 = neg(%2): f64[3] return %3 }");
  auto const done = ir::rewrite(graph, rule("graph p(%0 x: f32[]) { %1 = clone(%0): f32[] return %1 }", "graph r(%0 x: f32[]) { return %0 }"));
  REQUIRE(done.matches.size() == 1);
  CHECK(done.matches[0].nodes == std::vector{1});
  CHECK(done.matches[0].replaced.empty());
  CHECK(done.graph.nodes.size() == 2);
}

TEST_CASE("172693, 174963: views of channels-last memory") {
  // Strides of a row-major tensor were assumed, so a view read other elements.
  Graph graph;
  auto meta = ir::contiguous_meta(DType::f64, {}, {2, 3, 4, 5});
  meta.strides = ir::Dims{60, 1, 15, 3};
  int const x = graph.input(meta);
  int const flat = graph.add(ir::ops::reshape, {{x, {}}}, ir::Attrs{}.with(ir::Dims{2, 60}), {});
  int const rows = graph.add(ir::ops::permute, {{x, {}}}, ir::Attrs{}.with(ir::Dims{0, 2, 3, 1}), {});
  int const wide = graph.add(ir::ops::reshape, {{rows, {}}}, ir::Attrs{}.with(ir::Dims{40, 3}), {});
  int const cut = graph.add(ir::ops::slice, {{wide, {}}}, ir::Attrs{}.with(1).with(1).with(3).with(1), {});
  graph.outputs = {flat, cut, graph.add(ir::ops::neg, {{cut, {}}}, {}, {})};
  ir::verify(graph);
  CHECK(graph.values[static_cast<std::size_t>(flat)].meta->strides == ir::Dims{60, 1});  // a copy
  CHECK(graph.values[static_cast<std::size_t>(wide)].meta->strides == ir::Dims{3, 1});   // no copy
  auto memory = support::array(DType::f64, {120});
  for (std::int64_t i = 0; i < 120; ++i) memory.at.set(i, static_cast<double>(i));
  ir::Strided const in{memory.at.data, DType::f64, {2, 3, 4, 5}, {60, 1, 15, 3}};
  auto const done = ir::evaluate(ir::decompose(through_all(graph)), std::array{in});
  for (std::int64_t n = 0; n < 2; ++n)
    for (std::int64_t c = 0; c < 3; ++c)
      for (std::int64_t p = 0; p < 20; ++p) {
        CHECK(support::reals(done.outputs[0])[static_cast<std::size_t>(n * 60 + c * 20 + p)] == static_cast<double>(n * 60 + p * 3 + c));
        if (c > 0) CHECK(support::reals(done.outputs[1])[static_cast<std::size_t>((n * 20 + p) * 2 + c - 1)] == static_cast<double>(n * 60 + p * 3 + c));
      }
}

TEST_CASE("160271: the stride of a dim of size 1 decides nothing") {
  // A view of batch 1 failed where its unused stride was another one.
  for (std::int64_t stride : {1, 3, 17, -4}) {
    Graph graph;
    auto meta = ir::contiguous_meta(DType::f64, {}, {1, 3});
    meta.strides = ir::Dims{stride, 1};
    int const x = graph.input(meta);
    int const flat = graph.add(ir::ops::reshape, {{x, {}}}, ir::Attrs{}.with(ir::Dims{3}), {});
    graph.outputs = {graph.add(ir::ops::neg, {{flat, {}}}, {}, {})};
    CHECK(graph.values[static_cast<std::size_t>(flat)].meta->strides == ir::Dims{1});
    std::array const values{1.0, 2.0, 3.0};
    auto const memory = support::array(DType::f64, {3}, values);
    CHECK(first(through_all(graph), {ir::Strided{memory.at.data, DType::f64, {1, 3}, {stride, 1}}}) == std::vector{-1.0, -2.0, -3.0});
  }
}

TEST_CASE("144068: a * b and b * a are one expression") {
  // The two orders were compared as texts, so that a graph was compiled again.
  Graph graph;
  auto const a = graph.symbols.symbol(4), b = graph.symbols.symbol(6);
  ir::Symbols::Scope const scope(&graph.symbols);
  CHECK(ir::same(a * b, b * a));
  CHECK(ir::same((a + b) * 2, b * 2 + a * 2));
  CHECK(graph.symbols.constraints.empty());
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, {a * b})), y = graph.input(ir::contiguous_meta(DType::f32, {}, {b * a}));
  graph.outputs = {graph.add(ir::ops::add, {{x, {}}, {y, {}}}, ir::default_attrs(ir::ops::add), {})};
  CHECK(graph.symbols.constraints.empty());
}

TEST_CASE("129798: strides of views are symbolic as sizes are") {
  // A stride was fixed at its first value, so that every new size was compiled again.
  Graph graph;
  auto const rows = graph.symbols.symbol(4), columns = graph.symbols.symbol(6);
  int const x = graph.input([&] {
    ir::Symbols::Scope const scope(&graph.symbols);
    return ir::contiguous_meta(DType::f64, {}, {rows, columns});
  }());
  int const turned = graph.add(ir::ops::permute, {{x, {}}}, ir::Attrs{}.with(ir::Dims{1, 0}), {});
  graph.outputs = {graph.add(ir::ops::sum, {{turned, {}}}, ir::Attrs{}.with(ir::Dims{1}).with(0).with(ir::absent), {})};
  auto const less = through_all(graph);
  CHECK(less.symbols.constraints.empty());
  CHECK(ir::to_string(*graph.values[static_cast<std::size_t>(turned)].meta, &graph.symbols) == "f64[s1, s0] strides [1, s1]");
  std::array const values{1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
  auto const in = support::array(DType::f64, {2, 3}, values);
  CHECK(first(less, {in.at}, {{2, 3}, {}}) == std::vector{5.0, 7.0, 9.0});
}
