// Order and recomputation: the same bits, never a higher peak, within the budget where it can be reached.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
#include "ir_random.hpp"
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;

namespace {
int add(Graph& graph, ir::OpDef const& op, std::vector<int> in) {
  std::vector<ir::Input> inputs;
  for (int value : in) inputs.push_back({value, {}});
  return graph.add(op, std::move(inputs), ir::default_attrs(op), {});
}
std::vector<std::uint64_t> bits(ir::Strided const& x) {  // every NaN alike
  std::vector<std::uint64_t> all;
  for (double const value : support::reals(x)) all.push_back(std::isnan(value) ? 1 : std::bit_cast<std::uint64_t>(value));
  return all;
}
void check_same(Graph const& a, Graph const& b, std::span<ir::Strided const> inputs) {
  ir::verify(b);
  auto const x = ir::evaluate(a, inputs), y = ir::evaluate(b, inputs);
  REQUIRE(x.outputs.size() == y.outputs.size());
  for (std::size_t k = 0; k < x.outputs.size(); ++k) CHECK(bits(x.outputs[k]) == bits(y.outputs[k]));
}
std::vector<support::Array> drawn(Graph const& graph, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<support::Array> held;
  for (int input : graph.inputs) {
    auto const& meta = *graph.values[static_cast<std::size_t>(input)].meta;
    held.push_back(support::array(meta.dtype, ir::values(meta.sizes)));
    for (std::int64_t i = 0; i < base::numel(held.back().at.sizes); ++i) held.back().at.set(i, std::uniform_real_distribution(-1.5, 1.5)(random));
  }
  return held;
}
std::vector<ir::Strided> elements(std::span<support::Array const> held) {
  std::vector<ir::Strided> list;
  for (auto const& x : held) list.push_back(x.at);
  return list;
}
ir::Meta floats(ir::Dims sizes) { return ir::contiguous_meta(DType::f32, {}, std::move(sizes)); }

/// The most bytes alive if every value has memory of its own, views too, and whatever a view may look at stays with it: an upper bound.
std::int64_t plainly(Graph const& graph) {
  int const end = static_cast<int>(graph.nodes.size());
  std::vector<int> last(graph.values.size());
  for (std::size_t v = 0; v < graph.values.size(); ++v) last[v] = graph.values[v].node;
  for (int n = 0; n < end; ++n)
    for (auto const& input : graph.nodes[static_cast<std::size_t>(n)].inputs)
      if (input.value >= 0) last[static_cast<std::size_t>(input.value)] = n;
  for (int output : graph.outputs) last[static_cast<std::size_t>(output)] = end;
  for (auto const& node : graph.nodes | std::views::reverse)
    if (node.op->geometry) {
      int& parent = last[static_cast<std::size_t>(node.inputs[0].value)];
      parent = std::max(parent, last[static_cast<std::size_t>(node.first)]);
    }
  std::int64_t most = 0;
  for (int step = 0; step < end; ++step) {
    std::int64_t sum = 0;
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      auto const& meta = *graph.values[v].meta;
      if (graph.values[v].node >= 0 && graph.values[v].node <= step && step <= last[v]) sum += base::numel(ir::values(meta.sizes)) * base::bytes_of(meta.dtype);
    }
    most = std::max(most, sum);
  }
  return most;
}

/// `depth` layers of tanh(x w) and what is between: a deep network with its gradients.
ir::Joint deep(int depth, int rows, int width, int pointwise) {
  Graph graph;
  int x = graph.input(floats({rows, width}), "x");
  std::vector<int> wrt;
  for (int k = 0; k < depth; ++k) {
    wrt.push_back(static_cast<int>(graph.inputs.size()));
    x = add(graph, ir::ops::matmul, {x, graph.input(floats({width, width}), std::format("w{}", k))});
    for (int p = 0; p < pointwise; ++p) x = add(graph, p % 2 ? ir::ops::sin : ir::ops::tanh, {x});
  }
  graph.outputs = {add(graph, ir::ops::sum, {x})};
  return ir::joint_graph(graph, wrt);
}
}  // namespace

TEST_CASE("what a graph holds that runs node by node") {
  Graph graph;
  int const x = graph.input(floats({16, 16}));
  int const a = add(graph, ir::ops::tanh, {x}), b = add(graph, ir::ops::exp, {a}), c = add(graph, ir::ops::sin, {b});
  graph.outputs = {c};
  CHECK(fusion::step_peak(graph) == 1024);  // in place, one after another; the input is not of the step
  graph.outputs = {c, a};
  CHECK(fusion::step_peak(graph) == 2048);  // a must stay
  // A view keeps what it looks at, and takes nothing itself; what is read through a view is not overwritten.
  Graph viewed;
  int const y = viewed.input(floats({16, 16}));
  int const e = add(viewed, ir::ops::exp, {y});
  int const turned = viewed.add(ir::ops::permute, {{e, {}}}, ir::Attrs{}.with(ir::Dims{1, 0}), {});
  viewed.outputs = {add(viewed, ir::ops::add, {e, turned})};
  CHECK(fusion::step_peak(viewed) == 2048);
  auto const blocks = fusion::blocks_of(viewed);
  CHECK(blocks.values == std::vector<int>{y, e, viewed.outputs[0]});
  CHECK(blocks.blocks[1].last == 2);
  CHECK(blocks.blocks[2].instead_of == -1);
  // New elements of an input are written in its place, unless the old ones are read later.
  auto const step = [](bool read_later) {
    Graph state;
    int const w = state.input(floats({16, 16}), "w"), g = state.input(floats({16, 16}), "g");
    int const next = add(state, ir::ops::sub, {w, g});
    int const other = read_later ? add(state, ir::ops::sum, {w}) : add(state, ir::ops::sum, {g});
    state.outputs = {other, next}, state.mutated = {0};
    return fusion::step_peak(state);
  };
  CHECK(step(false) == 4);
  CHECK(step(true) == 1028);
}

TEST_CASE("wide values are reduced one by one, not all made first") {
  Graph graph;
  int const x = graph.input(floats({64, 64}));
  std::vector<int> wide, narrow;
  for (int k = 0; k < 8; ++k) wide.push_back(graph.add(ir::ops::mul, {{x, {}}, {-1, ir::Scalar(k + 2.0)}}, {}, {}));
  for (int value : wide) narrow.push_back(add(graph, ir::ops::sum, {value}));
  for (std::size_t k = 1; k < 8; ++k) narrow[0] = add(graph, ir::ops::add, {narrow[0], narrow[k]});
  graph.outputs = {narrow[0]};
  CHECK(fusion::step_peak(graph) == 8 * 64 * 64 * 4 + 4);
  auto const better = fusion::reorder(graph);
  CHECK(fusion::step_peak(better) <= 64 * 64 * 4 + 8 * 4);
  auto const held = drawn(graph, 7);
  check_same(graph, better, elements(held));
}

TEST_CASE("the peak never rises, the values stay, an order is the same each time") {
  std::mt19937 random(71);
  int lower = 0;
  for (int turn = 0; turn < support::tier(60, 300, 3000); ++turn) {
    auto drawn_graph = support::random_graph(random, {.nodes = 30});
    auto const graph = ir::decompose(drawn_graph.graph);
    if (std::ranges::any_of(graph.nodes, [](ir::Node const& node) { return ir::writes(*node.op); })) continue;
    auto const better = fusion::reorder(graph);
    auto const before = fusion::step_peak(graph), after = fusion::step_peak(better);
    CHECK(after <= before);
    CHECK(before <= plainly(graph));
    CHECK(ir::equal(better, fusion::reorder(graph)));
    lower += after < before;
    check_same(graph, better, drawn_graph.elements());
    std::vector<std::string_view> order, again;  // calls that must keep their order do
    for (auto const* which : {&graph, &better})
      for (auto const& node : which->nodes)
        if (node.op->kind == ir::Kind::random || node.op->kind == ir::Kind::collective) (which == &graph ? order : again).push_back(node.op->name);
    CHECK(order == again);
  }
  CHECK(lower > 10);
}

TEST_CASE("a budget is reached by computing again, bit for bit, and not further than it must be") {
  for (int const pointwise : {1, 2, 4}) {
    auto const joint = deep(8, 64, 32, pointwise);
    auto const held = drawn(joint.graph, 8);
    auto const before = fusion::step_peak(joint.graph);
    std::int64_t last = before + 1;
    double flops = 0;
    for (double const part : {1.0, 0.9, 0.75, 0.6}) {
      auto const budget = static_cast<std::int64_t>(static_cast<double>(before) * part);
      auto const done = fusion::rematerialize(joint, {.budget_bytes = budget});
      MESSAGE(pointwise, " pointwise, ", part, ": ", fusion::to_string(done));
      CHECK(done.before == before);
      CHECK(done.peak == fusion::step_peak(done.graph));
      CHECK(done.peak <= last);
      CHECK(done.reached() == (done.peak <= budget));
      CHECK(done.flops >= flops);
      if (part == 1.0) CHECK(done.recomputed.empty());
      for (int n : done.recomputed) {
        auto const& op = *joint.graph.nodes[static_cast<std::size_t>(n)].op;
        CHECK((op.kind == ir::Kind::view || ir::recomputable(op)));
      }
      CHECK(done.graph.nodes.size() == joint.graph.nodes.size() + done.recomputed.size());
      check_same(joint.graph, done.graph, elements(held));
      last = done.peak, flops = done.flops;
    }
  }
}

TEST_CASE("a budget that cannot be reached is said") {
  auto const joint = deep(4, 64, 32, 1);
  auto const done = fusion::rematerialize(joint, {.budget_bytes = 1});
  CHECK(!done.reached());
  CHECK(fusion::to_string(done).find("budget 1: out of reach") != std::string::npos);
  // Products too, if they may: less is held, at a price.
  auto const all = fusion::rematerialize(joint, {.budget_bytes = 1, .may_recompute = [](ir::OpDef const& op) { return op.kind != ir::Kind::random; }});
  CHECK(all.peak <= done.peak);
  auto const held = drawn(joint.graph, 9);
  check_same(joint.graph, all.graph, elements(held));
}

TEST_CASE("one value over a wide middle: by hand") {
  // a is made first and read last; the middle holds two large values.
  Graph graph;
  int const x = graph.input(floats({16, 16})), y = graph.input(floats({16, 16}));
  int const a = add(graph, ir::ops::exp, {x});
  int const b = add(graph, ir::ops::matmul, {y, y}), c = add(graph, ir::ops::matmul, {b, b}), d = add(graph, ir::ops::sum, {c});
  graph.outputs = {add(graph, ir::ops::mul, {a, d})};
  CHECK(fusion::step_peak(graph) == 3072);
  auto const done = fusion::rematerialize(graph, {.budget_bytes = 2048});
  CHECK(done.reached());
  CHECK(done.peak == 2048);
  CHECK(done.recomputed == std::vector<int>{0});
  CHECK(done.flops == 16 * 16 * ir::ops::exp.cost);
  CHECK(!fusion::rematerialize(graph, {.budget_bytes = 2047}).reached());  // the products' own
  auto const held = drawn(graph, 10);
  check_same(graph, done.graph, elements(held));
  // A random number is drawn once.
  Graph noisy;
  int const z = noisy.input(floats({16, 16}));
  int const noise = noisy.add(ir::ops::rand, {}, ir::Attrs{}.with(ir::Dims{16, 16}).with(1).with(0).with(DType::f32).with(base::Device{}), {});
  int const p = add(noisy, ir::ops::matmul, {z, z}), q = add(noisy, ir::ops::matmul, {p, p});
  noisy.outputs = {add(noisy, ir::ops::mul, {noise, add(noisy, ir::ops::sum, {q})})};
  CHECK(fusion::rematerialize(noisy, {.budget_bytes = 0}).recomputed.empty());
}

TEST_CASE("random programs with gradients keep their bits under every budget") {
  std::mt19937 random(72);
  int computed_again = 0;
  for (int turn = 0; turn < support::tier(30, 150, 1500); ++turn) {
    Graph graph;
    graph.input(floats({8, 8}), "x"), graph.input(floats({8, 8}), "y");
    std::array<ir::OpDef const*, 7> const calls{&ir::ops::tanh, &ir::ops::exp,    &ir::ops::sin,    &ir::ops::mul,
                                                &ir::ops::add,  &ir::ops::matmul, &ir::ops::permute};
    for (auto k = 4 + random() % 16; k > 0; --k) {
      auto const& op = *calls[random() % calls.size()];
      int const last = static_cast<int>(graph.values.size()) - 1, other = static_cast<int>(random() % graph.values.size());
      if (&op == &ir::ops::permute)
        graph.add(op, {{last, {}}}, ir::Attrs{}.with(ir::Dims{1, 0}), {});
      else
        add(graph, op, ir::signature(op).operands == 2 ? std::vector{last, other} : std::vector{random() % 2 ? last : other});
    }
    graph.outputs = {add(graph, ir::ops::sum, {static_cast<int>(graph.values.size()) - 1})};
    auto const joint = random() % 2 ? ir::joint_graph(graph, std::array{0, 1}) : ir::Joint{ir::with_gradients(graph, std::array{0, 1}), 1, {}};
    auto const before = fusion::step_peak(joint.graph);
    auto const budget = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(before));
    auto const held = drawn(joint.graph, static_cast<std::uint32_t>(turn));
    for (auto const& done : {fusion::rematerialize(joint, {.budget_bytes = budget}), fusion::rematerialize(joint.graph, {.budget_bytes = budget})}) {
      CHECK(done.peak <= before);
      CHECK(done.peak == fusion::step_peak(done.graph));
      computed_again += !done.recomputed.empty();
      check_same(joint.graph, done.graph, elements(held));
    }
  }
  CHECK(computed_again > 20);
}
