// Graphs through the fusion backend against the reference evaluator.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_random.hpp"
#include "ir_support.hpp"
#include "reference.hpp"

namespace ir = tenon::ir;
namespace base = tenon::base;
namespace fusion = tenon::fusion;

namespace {
// One way of lowering and running.
struct How {
  std::string_view name;
  int every;  ///< of so many random graphs one is run so: a compilation costs 50 ms, tuning some 30 of them
  fusion::LowerOptions options;
};
How const ways[] = {
    {"normal", 3, {}},
    {"reduce_overhead, a thread for every element", 2, {.grain = 1, .mode = fusion::Mode::reduce_overhead}},
    {"interpreter", 1, {.interpret = true}},
    {"one by one", 5, {.group = {.fuse = false}, .in_place = false, .grain = 3}},
    {"interpreter, one by one, reduce_overhead", 1, {.group = {.fuse = false}, .interpret = true, .mode = fusion::Mode::reduce_overhead}},
    {"as little memory as can be", 4, {.memory_budget = 1}},
    {"max_autotune", support::tier(25, 25, 100), {.grain = 16, .mode = fusion::Mode::max_autotune, .tune_seconds = 0.01}},
};

std::vector<std::byte> bytes_of(ir::Strided const& x) {
  auto const copy = support::converted(x, x.dtype);
  return {copy.at.data, copy.at.data + base::numel(x.sizes) * base::bytes_of(x.dtype)};
}
// Attention's gradient adds parts of queries, as many as there are threads, where heads are fewer.
bool depends_on_threads(ir::Graph const& graph) {
  return std::ranges::any_of(graph.nodes, [](auto const& node) { return node.op->name.starts_with("scaled_dot_product_attention"); });
}

// How to make a random graph again without the others.
std::string alone(int seed) { return std::format("seed {0}, alone: TENON_SEEDS={0}\n", seed); }

// Runs a graph and holds it to the evaluator's results: outputs, their strides, and what is left of the inputs.
struct Checked {
  ir::Graph const& graph;
  fusion::Runner run;

  Checked(ir::Graph const& of, fusion::LowerOptions const& options) : graph(of), run(fusion::lower(of, options)) {}

  void operator()(std::span<ir::Strided const> inputs, ir::Bindings const& bindings, support::Reference& expected) const {
    std::vector<std::vector<std::byte>> first;
    for (int const threads : {1, 5, 3, 2}) {
      tenon::device::set_threads(threads);
      INFO("threads " << threads);
      std::vector<support::Array> held;  // a run may write to mutated inputs
      std::vector<ir::Strided> given;
      for (auto const& input : inputs) {
        bool const copied = !graph.mutated.empty() && base::is_contiguous(input.sizes, input.strides);
        if (copied) held.push_back(support::converted(input, input.dtype));
        given.push_back(copied ? held.back().at : input);
      }
      auto const actual = run(given, bindings);
      auto const& due = expected.value().outputs;
      REQUIRE(actual.outputs.size() == due.size());
      auto const plain = actual.outputs.size() - graph.mutated.size();
      std::set<int> written;
      for (std::size_t k = 0; k < actual.outputs.size(); ++k) {
        INFO("output " << k);
        CHECK(expected.fault(k, actual.outputs[k]) == "");
        CHECK(actual.outputs[k].strides == due[k].strides);
        if (k >= plain && actual.outputs[k].data == given[static_cast<std::size_t>(graph.mutated[k - plain])].data) written.insert(graph.mutated[k - plain]);
        if (threads == 1)
          first.push_back(bytes_of(actual.outputs[k]));
        else if (!depends_on_threads(graph))
          CHECK(first[k] == bytes_of(actual.outputs[k]));
      }
      for (std::size_t k = 0; k < given.size(); ++k)
        if (!written.contains(static_cast<int>(k))) CHECK(bytes_of(given[k]) == bytes_of(inputs[k]));
    }
    tenon::device::set_threads(2);
  }
};

// Some inputs get new values, as a body that writes to them leaves behind: each a value of its type that stands behind the outputs.
void mutate(ir::Graph& graph, std::mt19937& random) {
  for (int k = 0; std::cmp_less(k, graph.inputs.size()); ++k) {
    auto const& own = *graph.values[static_cast<std::size_t>(graph.inputs[static_cast<std::size_t>(k)])].meta;
    std::vector<int> fitting;
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v) {
      auto const& value = graph.values[static_cast<std::size_t>(v)];
      if (value.node >= 0 && value.meta->dtype == own.dtype && value.meta->sizes == own.sizes) fitting.push_back(v);
    }
    if (fitting.empty() || random() % 4 == 0) continue;
    graph.outputs.push_back(fitting[random() % fitting.size()]);
    graph.mutated.push_back(k);
  }
}

// Other sizes for a graph's symbols, where its constraints allow them; elements are those of `inputs`, repeated.
std::optional<std::pair<ir::Bindings, std::vector<support::Array>>> resized(ir::Graph const& graph, std::span<ir::Strided const> inputs, std::mt19937& random) {
  auto const& symbols = graph.symbols;
  ir::Bindings bindings;
  for (int number = 0; std::cmp_less(number, symbols.names().size()); ++number) {
    bool const size = symbols.names()[static_cast<std::size_t>(number)][0] == 's';
    auto const hint = symbols.symbol_at(number);
    bindings.whole.push_back(size && random() % 2 ? 2 + static_cast<std::int64_t>(random() % 9) : hint.whole);
    bindings.real.push_back(random() % 2 ? hint.real : hint.real / 2);
  }
  for (auto const& c : symbols.constraints)
    if (!ir::holds(symbols.evaluate(c.a, bindings), c.relation, symbols.evaluate(c.b, bindings))) return std::nullopt;
  std::vector<support::Array> list;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    base::Shape sizes;
    for (auto const size : graph.values[static_cast<std::size_t>(graph.inputs[k])].meta->sizes) sizes.push_back(symbols.evaluate(size, bindings));
    auto const old = support::reals(inputs[k]);
    std::vector<double> values;
    for (std::int64_t i = 0; i < base::numel(sizes); ++i) values.push_back(old.empty() ? 0 : old[static_cast<std::size_t>(i) % old.size()]);
    list.push_back(support::array(inputs[k].dtype, sizes, values));
  }
  return std::pair{std::move(bindings), std::move(list)};
}

// A list's elements as rows and columns, where they are.
ir::Strided matrix(auto& list, base::DType dtype, std::int64_t rows, std::int64_t columns) {
  base::Shape const sizes{rows, columns};
  return {reinterpret_cast<std::byte*>(list.data()), dtype, sizes, base::contiguous_strides(sizes)};
}
}  // namespace

TEST_CASE("an element that rounding decides may be what another rounding gives; any other is held to its dtype") {
  auto const graph = ir::parse_graph(R"(graph g(%0: f32[3]) {
  %1 = div(%0, 3.0): f32[3]
  %2 = mul(%1, 3.0): f32[3]
  %3 = sub(%2, %0): f32[3]
  %4 = ceil(%3): f32[3]
  %5 = ceil(%1): f32[3]
  %6 = exp(%1): f32[3]
  return %4, %5, %6
})");
  auto const x = support::array(base::DType::f32, {3}, std::vector<double>{1.1, -7.3, 4.7});
  std::array const in{x.at};
  // With one element of output k moved by so much.
  auto const moved = [&](std::size_t k, double by) {
    support::Reference reference(graph, in);
    auto const own = support::converted(reference.value().outputs[k], base::DType::f32);
    own.at.set(1, own.at.real(1) + by);
    return reference.fault(k, own.at);
  };
  for (std::size_t k = 0; k < 3; ++k) CHECK(moved(k, 0) == "");
  CHECK(moved(0, 1) == "");  // of a difference that is 0 or 5e-7
  CHECK(moved(1, 1).starts_with("element 1 is -1, not -2: 1 apart, allowed 4"));
  CHECK(moved(1, 1).ends_with("e-05"));
  CHECK(moved(2, 1e-5) == "");
  CHECK(moved(2, 1e-3).starts_with("element 1 is 0.088"));
}

TEST_CASE("random graphs in every mode, with every number of threads, give the evaluator's values") {
  auto const seeds = support::seeds(support::tier(60, 300, 10000));
  std::ptrdiff_t shaky = 0;
  for (int const k : seeds) {
    std::mt19937 random(20261130u + static_cast<unsigned>(k));
    auto made = support::random_graph(random, {.nodes = 6 + k % 20, .strides = k % 3 == 2});
    if (k % 2) mutate(made.graph, random);
    auto const inputs = made.elements();
    support::Reference expected(made.graph, inputs);
    INFO(alone(k) << ir::to_string(made.graph));
    for (auto const& [name, every, options] : ways) {
      if (k % every != every / 2) continue;
      INFO(name);
      Checked const check(made.graph, options);
      check(inputs, {}, expected);
    }
    shaky += expected.shaky();
  }
  CHECK(50 * shaky <= std::ssize(seeds) + 50);
}

TEST_CASE("random graphs with symbols for sizes and numbers: one program for all of their values") {
  auto const seeds = support::seeds(support::tier(20, 100, 3000));
  int resized_runs = 0;
  for (int const k : seeds) {
    std::mt19937 random(77u + static_cast<unsigned>(k));
    auto const made = support::random_graph(random, {.nodes = 4 + k % 12, .symbols = true});
    auto const inputs = made.elements();
    INFO(alone(k) << ir::to_string(made.graph));
    auto const& options = ways[static_cast<std::size_t>(k) % 5].options;
    Checked const check(made.graph, options);
    support::Reference expected(made.graph, inputs);
    check(inputs, {}, expected);
    for (int turn = 0; turn < 6; ++turn) {
      auto const other = resized(made.graph, inputs, random);
      if (!other) continue;
      std::vector<ir::Strided> views;
      for (auto const& x : other->second) views.push_back(x.at);
      std::optional<support::Reference> resized;
      if (support::caught([&] { resized.emplace(made.graph, views, other->first); }) != "nothing") continue;  // an index beyond a smaller size
      ++resized_runs;
      check(views, other->first, *resized);
    }
    check(inputs, {}, expected);
  }
  CHECK((seeds.size() < 20 || resized_runs > std::ssize(seeds)));
}

TEST_CASE("a product that is read transposed is computed the other way round, and what copied it is gone") {
  std::mt19937 random(7);
  for (int const batches : {0, 1, 3})
    for (bool const also : {false, true}) {  // also returned as it is: then it stays
      ir::Graph graph;
      auto const sizes = [&](std::int64_t rows, std::int64_t columns) { return batches ? base::Shape{batches, rows, columns} : base::Shape{rows, columns}; };
      std::vector<double> numbers(static_cast<std::size_t>(std::max(batches, 1)) * 35);
      for (auto& x : numbers) x = std::normal_distribution<>()(random);
      auto const a = support::array(base::DType::f32, sizes(7, 5), numbers),
                 b = support::array(base::DType::f32, sizes(5, 6), std::span(numbers).first(numbers.size() / 7 * 6));
      std::array const in{a.at, b.at};
      int const x = graph.input(support::meta_of(in[0])), y = graph.input(support::meta_of(in[1]));
      int const product = graph.add(ir::ops::matmul, {{x, {}}, {y, {}}}, {}, {});
      int const turned = graph.add(ir::ops::transpose, {{product, {}}}, {.ints = {-2, -1}}, {});
      int const copy = graph.add(ir::ops::clone, {{turned, {}}}, {}, {});
      graph.outputs = {copy, graph.add(ir::ops::relu, {{turned, {}}}, {}, {})};
      if (also) graph.outputs.push_back(product);
      auto const text = ir::to_string(fusion::primitive(graph));
      INFO(text);
      CHECK((text.find("clone") == std::string::npos) == !also);
      support::Reference expected(graph, in);
      Checked(graph, {})(in, {}, expected);
    }
}

TEST_CASE("rows behind a product never write over an operand that other threads still read") {
  ir::Graph graph;
  std::mt19937 random(11);
  std::vector<double> numbers(256 * 256);
  for (auto& x : numbers) x = std::normal_distribution<>(0, 0.1)(random);
  auto const a = support::array(base::DType::f32, {256, 256}, numbers), b = support::array(base::DType::f32, {256, 256}, numbers);
  std::array const in{a.at, b.at};
  int const x = graph.input(support::meta_of(in[0]));
  int value = graph.add(ir::ops::tanh, {{graph.input(support::meta_of(in[1])), {}}}, {}, {});
  for (int k = 0; k < 6; ++k) {
    value = graph.add(ir::ops::matmul, {{x, {}}, {value, {}}}, {}, {});
    value = graph.add(ir::ops::tanh, {{value, {}}}, {}, {});
  }
  graph.outputs = {value};
  auto const program = fusion::plan(graph);
  CHECK(std::ranges::any_of(program.launches, &fusion::Launch::with_next));
  Checked const check(graph, {});
  support::Reference expected(graph, in);
  for (int turn = 0; turn < 10; ++turn) check(in, {}, expected);
}

TEST_CASE("softmax, its logarithm's gradient and sums of scattered values in their cheaper forms") {
  // Cross-entropy's gradient by hand: g (p - [j = t]) with p = softmax(x), here as -(p g' - scattered g') with g' = -g.
  auto const graph = ir::parse_graph(R"(graph loss(%0 "x": f32[3, 300], %1 "target": i64[3, 1], %2 "g": f32[3, 1], %3 "zero": f32[3, 300]) {
  %4 = amax(%0, dim=[1], keepdim=true): f32[3, 1]
  %5 = sub(%0, %4): f32[3, 300]
  %6 = exp(%5): f32[3, 300]
  %7 = sum(%6, dim=[1], keepdim=true): f32[3, 1]
  %8 = div(%6, %7): f32[3, 300]
  %9 = log(%7): f32[3, 1]
  %10 = sub(%5, %9): f32[3, 300]
  %11 = exp(%10): f32[3, 300]
  %12 = full(size=[3, 300], fill_value=0.0): f32[3, 300]
  %13 = scatter_add(%12, %1, %2, dim=1): f32[3, 300]
  %14 = sum(%13, dim=[1], keepdim=true): f32[3, 1]
  %15 = mul(%11, %14): f32[3, 300]
  %16 = sub(%13, %15): f32[3, 300]
  %17 = scatter_add(%3, %1, %2, dim=1): f32[3, 300]
  %18 = sum(%17, dim=[1], keepdim=true): f32[3, 1]
  %19 = sub(%0, %4, alpha=2.0): f32[3, 300]
  %20 = exp(%19): f32[3, 300]
  %21 = sum(%20, dim=[1], keepdim=true): f32[3, 1]
  %22 = div(%20, %21): f32[3, 300]
  return %8, %16, %18, %22
}
)");
  std::vector<float> x(900), zero(900, 0.5f);
  std::mt19937 random(7);
  for (auto& value : x) value = std::uniform_real_distribution(-30.0f, 30.0f)(random);
  x[299] = 95.0f, x[600] = -200.0f;
  std::vector<std::int64_t> target{299, 0, 17};
  std::vector<float> g{-0.25f, 2.0f, 0.0f};
  std::array const inputs{matrix(x, base::DType::f32, 3, 300), matrix(target, base::DType::i64, 3, 1), matrix(g, base::DType::f32, 3, 1),
                          matrix(zero, base::DType::f32, 3, 300)};
  auto const program = fusion::plan(graph);
  auto const count = [&](std::string_view op) { return std::ranges::count_if(program.grouping.graph.nodes, [&](auto const& n) { return n.op->name == op; }); };
  CHECK(count("log") == 0);         // nothing needs it any more
  CHECK(count("exp") == 2);         // of x - max and of x - 2 max
  CHECK(count("reciprocal") == 1);  // shared by both forms
  CHECK(count("div") == 1);         // e^(x - 2 max) may be anything, and its sum 0
  CHECK(count("sum") == 3);         // the scattered one starts from 0.5 once, and is a sum then
  support::Reference expected(graph, inputs);
  for (bool const interpret : {false, true}) Checked(graph, {.interpret = interpret})(inputs, {}, expected);
  CHECK(!expected.shaky());
}

TEST_CASE("places of a difference are the difference of places, where what is taken off is the same all along the dim") {
  auto const graph = ir::parse_graph(R"(graph places(%0 "x": f32[3, 50], %1 "index": i64[3, 2], %2 "fewer": i64[2, 2], %3 "y": f32[3, 50]) {
  %4 = amax(%0, dim=[1], keepdim=true): f32[3, 1]
  %5 = sub(%0, %4): f32[3, 50]
  %6 = exp(%5): f32[3, 50]
  %7 = sum(%6, dim=[1], keepdim=true): f32[3, 1]
  %8 = log(%7): f32[3, 1]
  %9 = sub(%5, %8): f32[3, 50]
  %10 = gather(%9, %1, dim=1): f32[3, 2]
  %11 = sub(%0, %3): f32[3, 50]
  %12 = gather(%11, %1, dim=-1): f32[3, 2]
  %13 = sub(%0, %4, alpha=2.0): f32[3, 50]
  %14 = gather(%13, %1, dim=1): f32[3, 2]
  %15 = gather(%9, %2, dim=1): f32[2, 2]
  return %10, %12, %14, %15
}
)");
  std::vector<float> x(150), y(150);
  std::mt19937 random(11);
  for (auto* list : {&x, &y})
    for (auto& value : *list) value = std::uniform_real_distribution(-5.0f, 5.0f)(random);
  std::vector<std::int64_t> index{49, 0, 7, 7, 30, 1}, fewer{0, 49, 12, 3};
  std::array const inputs{matrix(x, base::DType::f32, 3, 50), matrix(index, base::DType::i64, 3, 2), matrix(fewer, base::DType::i64, 2, 2),
                          matrix(y, base::DType::f32, 3, 50)};
  auto const primitive = fusion::plan(graph).grouping.graph;
  int from_input = 0, from_difference = 0;
  for (auto const& node : primitive.nodes)
    if (node.op->name == "gather") ++(primitive.values[static_cast<std::size_t>(node.inputs[0].value)].node < 0 ? from_input : from_difference);
  CHECK(from_input == 1);       // of the logarithm of softmax, through both differences
  CHECK(from_difference == 3);  // another y for each place; scaled; fewer rows than y has
  support::Reference expected(graph, inputs);
  for (bool const interpret : {false, true}) Checked(graph, {.interpret = interpret})(inputs, {}, expected);
  CHECK(!expected.shaky());
}
