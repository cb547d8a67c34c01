// Passes keep what a graph computes, verify finds what breaks a graph, and both take large graphs in linear time.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_random.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;

namespace {
using Values = std::vector<std::vector<double>>;

Values values(ir::Evaluated const& done) {
  Values all;
  for (auto const& y : done.outputs) all.push_back(support::reals(y));
  return all;
}

/// The slow twin: every node as a graph of its own, in order.
Values one_by_one(support::RandomGraph const& made) {
  auto const& graph = made.graph;
  std::vector<ir::Strided> value(graph.values.size());
  std::vector<base::Ref<base::Buffer>> held;
  for (std::size_t k = 0; k < made.inputs.size(); ++k) value[static_cast<std::size_t>(graph.inputs[k])] = made.inputs[k].at;
  for (auto const& node : graph.nodes) {
    Graph single;
    std::vector<ir::Input> in;
    std::vector<ir::Strided> elements;
    for (auto const& input : node.inputs) {
      in.push_back({-1, graph.symbols.evaluate(input.scalar, {})});
      if (input.value < 0) continue;
      elements.push_back(value[static_cast<std::size_t>(input.value)]);
      in.back() = {single.input(support::meta_of(elements.back())), {}};
    }
    auto attrs = node.attrs;
    for (auto& dim : attrs.ints) dim = graph.symbols.evaluate(dim, {});
    for (auto& number : attrs.nums) number = graph.symbols.evaluate(number, {});
    int const first = single.add(*node.op, in, attrs, {});
    for (int k = 0; k < node.results; ++k) single.outputs.push_back(first + k);
    auto const done = support::run(single, elements);
    for (int k = 0; k < node.results; ++k) value[static_cast<std::size_t>(node.first + k)] = done.outputs[static_cast<std::size_t>(k)];
    held.insert(held.end(), done.storage.begin(), done.storage.end());
  }
  Values all;
  for (int output : graph.outputs) all.push_back(support::reals(value[static_cast<std::size_t>(output)]));
  return all;
}

void check_same(Values const& ours, Values const& theirs, std::string const& what) {
  REQUIRE_MESSAGE(ours.size() >= theirs.size(), what);
  for (std::size_t k = 0; k < theirs.size(); ++k) CHECK_MESSAGE(support::distance(ours[k], theirs[k]) == 0, what << ": output " << k);
}

std::set<std::string> calls_in(Graph const& graph) {
  std::set<std::string> calls;
  for (auto const& node : graph.nodes) {
    std::string text(node.op->name);
    for (auto const& input : node.inputs) text += std::format(" {} {}", input.value, graph.symbols.to_string(input.scalar));
    calls.insert(text + ir::to_string(*node.op, node.attrs, &graph.symbols));
  }
  return calls;
}
bool pure(ir::OpDef const& op) { return op.kind != ir::Kind::random && op.kind != ir::Kind::host; }
}  // namespace

TEST_CASE("passes keep the outputs of random graphs, bit for bit") {
  std::mt19937 random(31);
  int removed = 0, merged = 0, replaced = 0;
  for (int turn = 0; turn < support::tier(40, 250, 3000); ++turn) {
    auto const made = support::random_graph(random, {.nodes = 1 + static_cast<int>(random() % 25), .symbols = turn % 2 == 0, .ornaments = turn % 3 == 0});
    auto const& graph = made.graph;
    auto const text = ir::to_string(graph);
    auto const why = support::caught([&] {
      auto const live = ir::eliminate_dead_code(graph), once = ir::merge_common(graph), plain = ir::decompose(graph);
      auto const all = ir::eliminate_dead_code(ir::merge_common(ir::decompose(graph)));
      for (auto const* pass : {&live, &once, &plain, &all}) ir::verify(*pass);
      auto const expected = one_by_one(made);
      check_same(values(support::run(graph, made.elements())), expected, "evaluate of\n" + text);
      check_same(values(support::run(live, made.elements())), expected, "eliminate_dead_code of\n" + text);
      check_same(values(support::run(once, made.elements())), expected, "merge_common of\n" + text);
      check_same(values(ir::evaluate(plain, made.elements())), expected, "decompose of\n" + text);
      check_same(values(ir::evaluate(all, made.elements())), expected, "all of\n" + text);
      CHECK(ir::to_string(graph) == text);  // a pass leaves its operand alone
      CHECK(ir::equal(ir::eliminate_dead_code(live), live));
      CHECK(ir::equal(ir::merge_common(once), once));
      CHECK(ir::equal(ir::decompose(plain), plain));
      std::set<int> read(live.outputs.begin(), live.outputs.end());
      for (auto const& node : live.nodes)
        for (auto const& input : node.inputs) read.insert(input.value);
      for (auto const& node : live.nodes) {
        bool needed = !pure(*node.op);
        for (int k = 0; k < node.results; ++k) needed |= read.contains(node.first + k);
        CHECK(needed);
      }
      if (std::ranges::all_of(once.nodes, [](auto const& node) { return pure(*node.op); })) CHECK(calls_in(once).size() == once.nodes.size());
      CHECK(std::ranges::all_of(plain.nodes, [](auto const& node) { return ir::has_kernel(*node.op); }));
      removed += static_cast<int>(graph.nodes.size() - live.nodes.size());
      merged += static_cast<int>(graph.nodes.size() - once.nodes.size());
      replaced += static_cast<int>(plain.nodes.size() - graph.nodes.size());
    });
    CHECK_MESSAGE(why == "nothing", why << "\n" << text);
  }
  CHECK(removed > 20);
  CHECK(merged > 20);
  CHECK(replaced > 20);
}

// Calls that are smooth where the random graphs lead them, so that a difference quotient says something.
std::vector<std::string_view> const smooth{"tanh(f64[2, 3])",
                                           "sigmoid(f64[2, 3])",
                                           "sin(f64[2, 3])",
                                           "cos(f64[2, 3])",
                                           "add(f64[2, 3], f64[2, 3], alpha=0.5)",
                                           "neg(f64[2, 3])",
                                           "mul(f64[2, 3], 0.7)",
                                           "mul(f64[2, 3], f64[3])",
                                           "add(f64[2, 3], f64[3])",
                                           "softmax(f64[2, 3], dim=1)",
                                           "silu(f64[2, 3])",
                                           "permute(f64[2, 3], dims=[1, 0])",
                                           "permute(f64[3, 2], dims=[1, 0])",
                                           "matmul(f64[2, 3], f64[3, 2])",
                                           "matmul(f64[3, 2], f64[2, 3])",
                                           "gelu(f64[2, 3])",
                                           "reshape(f64[2, 3], shape=[3, 2])",
                                           "mean(f64[2, 3], dim=[0])",
                                           "linear(f64[2, 3], f64[3, 3], f64[3])",
                                           "slice(f64[3, 3], end=2)",
                                           "cat(f64[2, 3], f64[1, 3])"};

TEST_CASE("gradients of random graphs keep the outputs and agree with differences") {
  std::mt19937 random(32);
  std::vector<std::string_view> lines = smooth;
  int zeros = 0;
  for (int turn = 0; turn < support::tier(30, 200, 2000); ++turn) {
    auto made = support::random_graph(random, {.nodes = 1 + static_cast<int>(random() % 20), .symbols = turn % 2 == 0, .calls = lines});
    auto& graph = made.graph;
    int const last = graph.outputs.back();
    graph.outputs.insert(graph.outputs.begin(), graph.add(ir::ops::mean, {{last, {}}}, ir::default_attrs(ir::ops::mean), {}));
    std::vector<int> wrt(graph.inputs.size());
    std::iota(wrt.begin(), wrt.end(), 0);
    auto const joint = ir::with_gradients(graph, wrt);
    ir::verify(joint);
    auto const forward = ir::decompose(graph);
    auto elements = made.elements();
    auto const expected = values(ir::evaluate(forward, elements)), got = values(support::run(joint, elements));
    check_same(got, expected, "with_gradients of\n" + ir::to_string(graph));
    auto const tidy = ir::eliminate_dead_code(ir::merge_common(ir::decompose(joint)));
    ir::verify(tidy);
    check_same(values(ir::evaluate(tidy, elements)), got, "passes over the joint graph of\n" + ir::to_string(graph));
    // Along one random direction over all inputs.
    constexpr double h = 1e-6;
    double slope = 0;
    std::vector<support::Array> up, down;
    for (std::size_t k = 0; k < elements.size(); ++k) {
      up.push_back(support::converted(elements[k], DType::f64)), down.push_back(support::converted(elements[k], DType::f64));
      auto const& gradient = got[expected.size() + k];
      REQUIRE(std::cmp_equal(gradient.size(), base::numel(elements[k].sizes)));
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        double const step = std::uniform_real_distribution(-1.0, 1.0)(random), x = up[k].at.real(static_cast<std::int64_t>(i));
        up[k].at.set(static_cast<std::int64_t>(i), x + h * step), down[k].at.set(static_cast<std::int64_t>(i), x - h * step);
        slope += gradient[i] * step;
      }
      zeros += std::ranges::all_of(gradient, [](double g) { return g == 0; });
    }
    auto const loss = [&](std::vector<support::Array> const& at) {
      std::vector<ir::Strided> in;
      for (auto const& x : at) in.push_back(x.at);
      return values(ir::evaluate(forward, in))[0][0];
    };
    double const quotient = (loss(up) - loss(down)) / (2 * h);
    CHECK_MESSAGE(std::fabs(quotient - slope) <= 1e-6 * std::max(1.0, std::fabs(slope)), quotient << " " << slope << "\n" << ir::to_string(graph));
  }
  CHECK(zeros > 0);  // inputs that the loss does not depend on
}

TEST_CASE("what with_gradients refuses") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, ir::Dims{ir::Dim(2)}));
  std::array const wrt{0};
  CHECK(support::caught([&] { ir::with_gradients(graph, wrt); }).starts_with("Bug: with_gradients needs an output"));
  graph.outputs = {x};
  CHECK(support::says(support::caught([&] { ir::with_gradients(graph, wrt); }), "with_gradients: output 0 must be a scalar, not f32[2]"));
}

TEST_CASE("random calls are never merged or dropped") {
  Graph graph;
  auto const attrs = ir::Attrs{}.with(ir::Dims{2}).with(0).with(0).with(DType::f32).with(base::Device{});
  graph.add(ir::ops::rand, {}, attrs);
  graph.outputs.push_back(graph.add(ir::ops::rand, {}, attrs));
  CHECK(ir::merge_common(ir::eliminate_dead_code(graph)).nodes.size() == 2);
}

TEST_CASE("verify names what breaks a graph") {
  auto const good = ir::parse_graph(R"(graph g(%0 x: f32[2, 3], %1 y: f32[3]) {
  %2 = add(%0, %1): f32[2, 3]
  %3 = sum(%2, dim=[1]): f32[2]
  %4 = permute(%2, dims=[1, 0]): f32[3, 2] strides [1, 3]
  return %3
})");
  ir::verify(good);
  auto const remeta = [](int value, auto change) {
    return [=](Graph& g) {
      auto meta = ir::Meta(*g.values[static_cast<std::size_t>(value)].meta);
      change(meta);
      g.values[static_cast<std::size_t>(value)].meta = ir::MetaRef(new ir::Meta(meta));
    };
  };
  struct Row {
    std::function<void(Graph&)> corrupt;
    std::string_view text;
  };
  std::vector<Row> const rows{
      {[](Graph& g) { g.nodes[0].op = nullptr; }, "node 0 has no op"},
      {[](Graph& g) { g.nodes[1].op = &ir::ops::neg; }, "node 1 (neg) is not legal: neg: too many attributes"},
      {[](Graph& g) { g.nodes[0].inputs[0].value = 3; }, "node 0 (add) reads %3 before it is made"},
      {[](Graph& g) { g.nodes[0].inputs[0].value = 2; }, "node 0 (add) reads %2 before it is made"},
      {[](Graph& g) { g.nodes[0].inputs[0].value = 99; }, "node 0 (add) reads %99 before it is made"},
      {[](Graph& g) { g.nodes[0].inputs.pop_back(); }, "node 0 (add) is not legal: add: takes 2 operands, not 1"},
      {[](Graph& g) { g.nodes[0].inputs[1] = {}; }, "node 0 (add) is not legal: add: operand 1 (other) is missing"},
      {[](Graph& g) { g.nodes[1].inputs[0] = {-1, ir::Scalar(1.0)}; }, "node 1 (sum) is not legal: sum: operand 0 (input) must be a tensor"},
      {[](Graph& g) { g.nodes[0].attrs = {}; }, "node 0 (add) is not legal: add: attribute alpha is missing"},
      {[](Graph& g) { g.nodes[1].attrs.ints[0] = 9; }, "node 1 (sum) is not legal: sum: attribute dim can't be 9"},
      {[](Graph& g) { g.nodes[1].attrs.ints[1] = 2; }, "node 1 (sum) is not legal: sum: "},
      {[](Graph& g) { g.nodes[1].attrs.ints[1] = 0; }, "node 1 (sum) makes f32[3], f32[2] is recorded"},
      {[](Graph& g) { g.nodes[1].attrs.ints[2] = 7; }, "node 1 (sum) is not legal: sum: attribute keepdim can't be 7"},
      {[](Graph& g) { g.nodes[1].attrs.ints[3] = 77; }, "node 1 (sum) is not legal: sum: attribute dtype can't be 77"},
      {[](Graph& g) { g.nodes[0].first = 1; }, "%1 is made twice or does not exist"},
      {[](Graph& g) { g.nodes[0].first = -3; }, "%-3 is made twice or does not exist"},
      {[](Graph& g) { g.nodes[0].results = 2; }, "node 0 (add) makes 1 results, 2 are recorded"},
      {[](Graph& g) { g.nodes[0].results = 0; }, "node 0 (add) makes 1 results, 0 are recorded"},
      {[](Graph& g) { g.nodes.pop_back(); }, "5 values, 4 of them made"},
      {[](Graph& g) { std::swap(g.nodes[0], g.nodes[1]); }, "node 0 (sum) reads %2 before it is made"},
      {[](Graph& g) { g.values[2].node = 1; }, "node 0 (add) makes %2, which names another node"},
      {[](Graph& g) { g.values[2].index = 1; }, "node 0 (add) makes %2, which names another node"},
      {[](Graph& g) { g.values[2].meta = nullptr; }, "%2 is made twice or does not exist"},
      {[](Graph& g) { g.values.pop_back(); }, "%4 is made twice or does not exist"},
      {remeta(2, [](ir::Meta& m) { m.dtype = DType::f64; }), "node 0 (add) makes f32[2, 3], f64[2, 3] is recorded"},
      {remeta(2, [](ir::Meta& m) { m.sizes[1] = 4; }), "node 0 (add) makes f32[2, 3], f32[2, 4] strides [3, 1] is recorded"},
      {remeta(2, [](ir::Meta& m) { m.sizes = ir::Dims{2}, m.strides = ir::Dims{3}; }), "node 0 (add) makes f32[2, 3], f32[2] strides [3] is recorded"},
      {remeta(4, [](ir::Meta& m) { m.strides[0] = 2; }), "node 2 (permute) makes f32[3, 2] strides [1, 3], f32[3, 2] strides [2, 3] is recorded"},
      {remeta(2, [](ir::Meta& m) { m.device = {base::Device::Kind::sim, 0}; }), "node 0 (add) makes f32[2, 3], f32[2, 3] on sim:0 is recorded"},
      {remeta(1, [](ir::Meta& m) { m.sizes[0] = 4; }), "node 0 (add) is not legal: add: sizes 3 and 4 do not broadcast"},
      {[](Graph& g) { g.inputs[1] = 0; }, "%0 is made twice or does not exist"},
      {[](Graph& g) { g.inputs[1] = 50; }, "%50 is made twice or does not exist"},
      {[](Graph& g) { g.inputs.pop_back(); }, "node 0 (add) reads %1 before it is made"},
      {[](Graph& g) { g.values[1].node = 0; }, "input %1 is recorded as another value"},
      {[](Graph& g) { g.values[1].index = 0; }, "input %1 is recorded as another value"},
      {[](Graph& g) { g.outputs[0] = 5; }, "output %5 does not exist"},
      {[](Graph& g) { g.outputs[0] = -1; }, "output %-1 does not exist"},
  };
  for (std::size_t k = 0; k < rows.size(); ++k) {
    auto graph = good;
    rows[k].corrupt(graph);
    auto const text = support::caught([&] { ir::verify(graph); });
    CHECK_MESSAGE((text.starts_with("Bug: verify: g: ") && support::says(text, rows[k].text)), "row " << k << ": " << text);
  }
}

TEST_CASE("a chain of 100000 nodes passes through everything in linear time") {
  using Clock = std::chrono::steady_clock;
  int const length = support::tier(10'000, 100'000, 100'000);
  Graph graph;
  auto start = Clock::now();
  std::string times;
  auto const took = [&](std::string_view what) {
    times += std::format(" {} {:.2f}", what, std::chrono::duration<double>(Clock::now() - start).count());
    start = Clock::now();
  };
  auto const rows = graph.symbols.symbol(4);
  ir::Dims const sizes{rows, 3};
  int x = graph.input([&] {
    ir::Symbols::Scope const scope(&graph.symbols);
    return ir::contiguous_meta(DType::f64, {}, sizes);
  }());
  auto const dropout = ir::default_attrs(ir::ops::dropout);
  while (std::cmp_less(graph.nodes.size(), length)) {
    int const a = graph.add(ir::ops::tanh, {{x, {}}}), b = graph.add(ir::ops::tanh, {{x, {}}});
    graph.add(ir::ops::exp, {{a, {}}});  // dead
    x = graph.add(ir::ops::add, {{a, {}}, {b, {}}}, ir::default_attrs(ir::ops::add));
    x = graph.add(ir::ops::softmax, {{x, {}}}, ir::Attrs{}.with(ir::Dim(1)).with(ir::Dim(ir::absent)));
  }
  graph.outputs = {graph.add(ir::ops::sum, {{x, {}}}, ir::default_attrs(ir::ops::sum))};
  took("build");
  ir::verify(graph);
  took("verify");
  auto const live = ir::eliminate_dead_code(graph);
  took("dce");
  auto const once = ir::merge_common(live);
  took("cse");
  auto const plain = ir::decompose(once);
  took("decompose");
  auto const text = ir::to_string(graph);
  took("print");
  auto const again = ir::parse_graph(text);
  took("parse");
  auto const dot = ir::to_dot(graph);
  took("dot");
  std::array const wrt{0};
  auto const joint = ir::with_gradients(once, wrt);
  took("gradients");
  ir::verify(joint);
  took("verify");
  std::array const values{0.1, 0.2, 0.3, 0.4, 0.5, 0.6};
  auto const input = support::array(DType::f64, {2, 3}, values);
  std::array const inputs{input.at};
  auto const sum = support::reals(ir::evaluate(plain, inputs, {{2}, {}}).outputs[0])[0];
  took("evaluate");
  std::cout << std::format("chain of {} nodes, seconds:{}\n", graph.nodes.size(), times);
  CHECK(sum == doctest::Approx(2));
  CHECK(live.nodes.size() == 1 + (graph.nodes.size() - 1) / 5 * 4);
  CHECK(once.nodes.size() == 1 + (graph.nodes.size() - 1) / 5 * 3);
  CHECK(ir::equal(again, graph));
  CHECK(dot.size() > text.size());
}

TEST_CASE("Graphviz reads what to_dot prints") {
  if (std::system("dot -V > /dev/null 2>&1") != 0) {
    std::cout << "SKIP: Graphviz reads what to_dot prints: no dot on this machine\n";
    return;
  }
  std::mt19937 random(33);
  auto const folder = std::filesystem::temp_directory_path() / std::format("tenon_ir_dot_{}", std::random_device{}());
  std::filesystem::create_directories(folder);
  for (int turn = 0; turn < support::tier(3, 12, 60); ++turn) {
    auto const graph = support::random_graph(random, {.nodes = 1 + turn, .symbols = turn % 2 == 0, .ornaments = true}).graph;
    std::ofstream(folder / "graph.dot") << ir::to_dot(graph);
    auto const command =
        std::format("dot -Tsvg '{}' -o '{}' 2> '{}'", (folder / "graph.dot").string(), (folder / "graph.svg").string(), (folder / "errors").string());
    CHECK_MESSAGE(std::system(command.c_str()) == 0, ir::to_dot(graph));
    auto const read = [&](char const* name) {
      std::ifstream file(folder / name);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    CHECK(read("errors") == "");
    auto const svg = read("graph.svg");
    std::size_t boxes = 0;
    for (auto at = svg.find("class=\"node\""); at != std::string::npos; at = svg.find("class=\"node\"", at + 1)) ++boxes;
    CHECK(boxes == graph.inputs.size() + graph.nodes.size() + graph.outputs.size());
  }
  std::filesystem::remove_all(folder);
}
