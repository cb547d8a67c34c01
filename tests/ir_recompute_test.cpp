// The cut of a joint graph: both parts together give what the joint graph gives, bit for bit, and no other choice keeps fewer bytes.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;

namespace {
using Bits = std::vector<std::vector<double>>;
support::Array drawn(ir::Meta const& meta, std::mt19937& random) {
  auto x = support::array(meta.dtype, ir::values(meta.sizes));
  for (std::int64_t i = 0; i < base::numel(x.at.sizes); ++i) x.at.set(i, std::uniform_real_distribution(-2.0, 2.0)(random));
  return x;
}
/// Runs forward, then backward on what it saved, and compares with the joint graph.
void check_parts(ir::Joint const& joint, ir::Partition const& parts, std::mt19937& random) {
  ir::verify(parts.forward), ir::verify(parts.backward);
  std::vector<support::Array> held;
  std::vector<ir::Strided> inputs, forward_in, backward_in;
  for (int k = 0; std::cmp_less(k, joint.graph.inputs.size()); ++k) {
    held.push_back(drawn(*joint.graph.values[static_cast<std::size_t>(joint.graph.inputs[static_cast<std::size_t>(k)])].meta, random));
    inputs.push_back(held.back().at);
    if (std::ranges::find(joint.cotangents, k) == joint.cotangents.end()) forward_in.push_back(inputs.back());
  }
  auto const whole = support::run(joint.graph, inputs), forward = support::run(parts.forward, forward_in);
  REQUIRE(forward.outputs.size() == static_cast<std::size_t>(joint.outputs) + parts.saved.size());
  for (int k = 0; k < joint.outputs; ++k)
    CHECK(support::reals(forward.outputs[static_cast<std::size_t>(k)]) == support::reals(whole.outputs[static_cast<std::size_t>(k)]));
  backward_in.assign(forward.outputs.begin() + joint.outputs, forward.outputs.end());
  for (int k : joint.cotangents) backward_in.push_back(inputs[static_cast<std::size_t>(k)]);
  auto const backward = support::run(parts.backward, backward_in);
  REQUIRE(backward.outputs.size() + static_cast<std::size_t>(joint.outputs) == whole.outputs.size());
  for (std::size_t k = 0; k < backward.outputs.size(); ++k)
    CHECK(support::reals(backward.outputs[k]) == support::reals(whole.outputs[static_cast<std::size_t>(joint.outputs) + k]));
}

/// The fewest bytes by trying every set of values: independent of flows, straight from the definition.
struct Brute {
  ir::Joint const& joint;
  ir::PartitionOptions const& options;
  Graph const& graph = joint.graph;
  std::vector<bool> forward = std::vector<bool>(graph.values.size(), false);
  std::vector<int> candidates{};

  Brute(ir::Joint const& of, ir::PartitionOptions const& how) : joint(of), options(how) {
    for (std::size_t k = 0; k < graph.inputs.size(); ++k)
      forward[static_cast<std::size_t>(graph.inputs[k])] = std::ranges::find(joint.cotangents, static_cast<int>(k)) == joint.cotangents.end();
    for (auto const& node : graph.nodes) {
      bool const possible =
          std::ranges::all_of(node.inputs, [&](auto const& input) { return input.value < 0 || forward[static_cast<std::size_t>(input.value)]; });
      for (int k = 0; k < node.results; ++k) forward[static_cast<std::size_t>(node.first + k)] = possible;
    }
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
      if (forward[static_cast<std::size_t>(v)] && !is_view(v)) candidates.push_back(v);
  }
  int maker(int v) const { return graph.values[static_cast<std::size_t>(v)].node; }
  bool is_view(int v) const { return maker(v) >= 0 && graph.nodes[static_cast<std::size_t>(maker(v))].op->kind == ir::Kind::view; }
  std::int64_t bytes(int v) const {
    if (maker(v) < 0 && !options.count_inputs) return 0;
    auto const& meta = *graph.values[static_cast<std::size_t>(v)].meta;
    return base::numel(ir::values(meta.sizes)) * base::bytes_of(meta.dtype);
  }
  bool enough(std::vector<bool> known) const {  // whether the backward part can be computed from these
    for (auto const& node : graph.nodes) {
      auto const first = static_cast<std::size_t>(node.first);
      if (forward[first] && !is_view(node.first) && !options.may_recompute(*node.op)) continue;
      if (std::ranges::all_of(node.inputs, [&](auto const& input) { return input.value < 0 || known[static_cast<std::size_t>(input.value)]; }))
        for (int k = 0; k < node.results; ++k) known[first + static_cast<std::size_t>(k)] = true;
    }
    for (std::size_t k = static_cast<std::size_t>(joint.outputs); k < graph.outputs.size(); ++k)
      if (!known[static_cast<std::size_t>(graph.outputs[k])]) return false;
    return true;
  }
  std::int64_t least() const {
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (std::uint64_t set = 0; set < (std::uint64_t{1} << candidates.size()); ++set) {
      std::vector<bool> known(graph.values.size(), false);
      for (int k : joint.cotangents) known[static_cast<std::size_t>(graph.inputs[static_cast<std::size_t>(k)])] = true;
      std::int64_t total = 0;
      for (std::size_t c = 0; c < candidates.size(); ++c)
        if (set >> c & 1) total += bytes(candidates[c]), known[static_cast<std::size_t>(candidates[c])] = true;
      if (total < best && enough(std::move(known))) best = total;
    }
    return best;
  }
};

int add(Graph& graph, ir::OpDef const& op, std::vector<ir::Input> in, ir::Attrs attrs) { return graph.add(op, std::move(in), std::move(attrs), {}); }
int add(Graph& graph, ir::OpDef const& op, std::vector<ir::Input> in) { return graph.add(op, std::move(in), ir::default_attrs(op), {}); }

/// A small random program of pointwise calls, reductions, broadcasts, casts, views, products and random numbers.
Graph program(std::mt19937& random) {
  Graph graph;
  graph.input(ir::contiguous_meta(DType::f64, {}, {4, 4}));
  if (random() % 2) graph.input(ir::contiguous_meta(DType::f64, {}, {1, 4}));
  for (auto k = 1 + random() % 5; k > 0; --k) {
    int const last = static_cast<int>(graph.values.size()) - 1, x = random() % 3 ? last : static_cast<int>(random() % graph.values.size());
    auto const& sizes = graph.values[static_cast<std::size_t>(x)].meta->sizes;
    switch (random() % 9) {
      case 0:
        add(graph, ir::ops::tanh, {{x, {}}});
        break;
      case 1:
        add(graph, ir::ops::exp, {{x, {}}});
        break;
      case 2:
        add(graph, ir::ops::mul, {{x, {}}, {last, {}}});
        break;
      case 3:
        add(graph, ir::ops::sum, {{x, {}}}, ir::Attrs{}.with(ir::Dims{0}).with(1).with(ir::absent));
        break;
      case 4:
        add(graph, ir::ops::permute, {{x, {}}}, ir::Attrs{}.with(ir::Dims{1, 0}));
        break;
      case 5:
        if (sizes[1].value == 4) add(graph, ir::ops::matmul, {{x, {}}, {0, {}}});
        break;
      case 6:
        add(graph, ir::ops::sin, {{x, {}}});
        break;
      case 7: {
        int const noise =
            add(graph, ir::ops::rand, {}, ir::Attrs{}.with(sizes).with(static_cast<int>(random() % 100)).with(0).with(DType::f64).with(base::Device{}));
        add(graph, ir::ops::mul, {{x, {}}, {noise, {}}});
        break;
      }
      default:
        add(graph, ir::ops::square, {{x, {}}});
    }
  }
  graph.outputs = {static_cast<int>(graph.values.size()) - 1};
  if (random() % 3 == 0) graph.outputs.push_back(static_cast<int>(random() % graph.values.size()));
  return graph;
}
}  // namespace

TEST_CASE("no set of saved values is smaller than the cut: every set tried") {
  std::mt19937 random(91);
  int tried = 0, recomputed = 0;
  int const wanted = support::tier(60, 400, 4000);
  while (tried < wanted) {
    auto const graph = program(random);
    ir::verify(graph);
    std::vector<int> wrt(graph.inputs.size());
    std::iota(wrt.begin(), wrt.end(), 0);
    ir::Joint joint;
    try {
      joint = ir::joint_graph(graph, wrt);
    } catch (base::Error const&) {
      continue;
    }
    joint.graph = ir::eliminate_dead_code(ir::merge_common(joint.graph));
    ir::PartitionOptions options;
    options.count_inputs = random() % 2;
    if (random() % 3 == 0) options.may_recompute = [](ir::OpDef const& op) { return op.kind != ir::Kind::random; };
    Brute const brute(joint, options);
    if (brute.candidates.size() > 12) continue;
    auto const parts = ir::partition(joint, options);
    auto const text = ir::to_string(joint.graph);
    CHECK_MESSAGE(parts.bytes == brute.least(), text << ir::to_string(parts.forward) << ir::to_string(parts.backward));
    std::int64_t bytes = 0;
    for (int v : parts.saved) bytes += brute.bytes(v);
    CHECK(bytes == parts.bytes);
    for (int n : parts.recomputed) {
      auto const& op = *joint.graph.nodes[static_cast<std::size_t>(n)].op;
      CHECK((op.kind == ir::Kind::view || options.may_recompute(op)));
    }
    check_parts(joint, parts, random);
    ++tried, recomputed += !parts.recomputed.empty();
  }
  CHECK(recomputed > wanted / 10);
}

TEST_CASE("a chain keeps its input, a narrow place in it less") {
  Graph graph;
  int x = graph.input(ir::contiguous_meta(DType::f32, {}, {64, 64}));
  x = add(graph, ir::ops::tanh, {{x, {}}});
  x = add(graph, ir::ops::exp, {{x, {}}});
  x = add(graph, ir::ops::sin, {{x, {}}});
  graph.outputs = {x};
  auto const joint = ir::joint_graph(graph, std::array{0});
  auto const parts = ir::partition(joint);
  CHECK(parts.bytes == 64 * 64 * 4);  // one value, from which all three are computed again
  CHECK(parts.saved.size() == 1);
  std::mt19937 random(92);
  check_parts(joint, parts, random);
  // A sum before the last two: 64 numbers are enough for what follows it, but tanh's gradient still needs one full value.
  Graph narrow;
  x = narrow.input(ir::contiguous_meta(DType::f32, {}, {64, 64}));
  x = add(narrow, ir::ops::tanh, {{x, {}}});
  x = add(narrow, ir::ops::sum, {{x, {}}}, ir::Attrs{}.with(ir::Dims{1}).with(0).with(ir::absent));
  x = add(narrow, ir::ops::exp, {{x, {}}});
  narrow.outputs = {add(narrow, ir::ops::sin, {{x, {}}})};
  auto const small = ir::partition(ir::joint_graph(narrow, std::array{0}));
  CHECK(small.bytes == 64 * 64 * 4);
  auto const held = ir::partition(ir::joint_graph(narrow, std::array{0}), {.count_inputs = false});
  CHECK(held.bytes == 0);
}

TEST_CASE("products and random numbers are never computed again, views always are") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, {8, 8})), w = graph.input(ir::contiguous_meta(DType::f32, {}, {8, 8}));
  int const turned = add(graph, ir::ops::permute, {{w, {}}}, ir::Attrs{}.with(ir::Dims{1, 0}));
  int const product = add(graph, ir::ops::matmul, {{x, {}}, {turned, {}}});
  int const noise = add(graph, ir::ops::rand, {}, ir::Attrs{}.with(ir::Dims{8, 8}).with(1).with(0).with(DType::f32).with(base::Device{}));
  int const mask = add(graph, ir::ops::gt, {{noise, {}}, {-1, ir::Scalar(0.5)}}, {});
  int const kept = add(graph, ir::ops::where, {{mask, {}}, {product, {}}, {-1, ir::Scalar(0.0)}}, {});
  graph.outputs = {add(graph, ir::ops::tanh, {{kept, {}}})};
  auto const joint = ir::joint_graph(graph, std::array{0, 1});
  auto const parts = ir::partition(joint);
  for (int n : parts.recomputed) {
    auto const kind = joint.graph.nodes[static_cast<std::size_t>(n)].op->kind;
    CHECK(kind != ir::Kind::contraction);
    CHECK(kind != ir::Kind::random);
  }
  CHECK(std::ranges::find(parts.saved, turned) == parts.saved.end());
  // x and w for the product's own gradient, the mask as booleans, and one of tanh's values.
  CHECK(parts.bytes == 3 * 8 * 8 * 4 + 8 * 8);
  std::mt19937 random(93);
  check_parts(joint, parts, random);
}

TEST_CASE("a joint graph of with_gradients is cut behind its outputs") {
  std::mt19937 random(94);
  for (int turn = 0; turn < support::tier(20, 100, 1000); ++turn) {
    auto graph = program(random);
    graph.outputs = {add(graph, ir::ops::sum, {{graph.outputs[0], {}}})};
    ir::Joint const joint{ir::with_gradients(graph, std::array{0}), 1, {}};
    auto const parts = ir::partition(joint);
    check_parts(joint, parts, random);
    for (auto const& node : parts.forward.nodes) CHECK(node.op->name.find("grad") == std::string_view::npos);
  }
}
