// An op of the user's: one row outside the module gets inference, evaluation, gradient, symbols, cost and print from its facts.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;

namespace {

// clang-format off
// sqrt(x^2 + bend^2) - bend: |x| with a round corner.
constinit ir::OpDef const bent{.name = "user.bent", .kind = ir::Kind::pointwise, .signature = "Tensor input, float bend=1", .terms = "-", .mono = ".",
    .types = ir::Types::real, .precision = ir::Precision::wide, .cost = 6,
    .element = {[](double const* x, double const* a) { return std::sqrt(x[0] * x[0] + a[0] * a[0]) - a[0]; }},
    .source = "(sqrt({0} * {0} + {a0} * {a0}) - {a0})",
    .vjp = [](ir::Vjp& v) {
      v.grad(0) = v.g() * v.x() / (v.y() + ir::num(v.attrs.nums[0]));
    }, .saves = 1 | ir::saves_result};
// Rows of x weighted by w and added: only an equation says how it infers and what it costs; a body says the rest.
constinit ir::OpDef const blend{.name = "user.blend", .kind = ir::Kind::contraction, .signature = "Tensor input, Tensor weight", .equation = {"ab,a->b"}, .terms = "aa",
    .combine = ir::Monoid::sum, .precision = ir::Precision::low,
    .decompose = [](ir::Body& b) { b.out.push_back(ir::call(ir::ops::matmul, {b.x(1), b.x(0)})); }};
// clang-format on

support::Array drawn(base::Shape const& sizes, std::mt19937& random) {
  std::vector<double> values(static_cast<std::size_t>(base::numel(sizes)));
  for (auto& v : values) v = std::uniform_real_distribution(-2.0, 2.0)(random);
  return support::array(DType::f64, sizes, values);
}

/// bent(blend(x, w), bend), with the sizes given.
Graph built(ir::Symbols symbols, ir::Dims const& sizes, ir::Scalar bend) {
  Graph graph;
  graph.name = "mine";
  graph.symbols = std::move(symbols);
  ir::Symbols::Scope const scope(&graph.symbols);
  int const x = graph.input(ir::contiguous_meta(DType::f64, {}, sizes), "x"), w = graph.input(ir::contiguous_meta(DType::f64, {}, ir::Dims{sizes[0]}), "w");
  int const mixed = graph.add(blend, {{x, {}}, {w, {}}}, {}, {});
  graph.outputs = {graph.add(bent, {{mixed, {}}}, ir::Attrs{}.with_num(bend), {})};
  return graph;
}
}  // namespace

TEST_CASE("a user's op infers, evaluates, differentiates and prints") {
  auto const graph = built({}, ir::Dims{4, 3}, 0.5);
  ir::verify(graph);
  CHECK(ir::to_string(graph) == R"(graph mine(%0 x: f64[4, 3], %1 w: f64[4]) {
  %2 = user.blend(%0, %1): f64[3]
  %3 = user.bent(%2, bend=0.5): f64[3]
  return %3
}
)");
  std::mt19937 random(41);
  auto const x = drawn({4, 3}, random), w = drawn({4}, random), cotangent = drawn({3}, random);
  std::array const inputs{x.at, w.at};
  auto const y = support::reals(support::run(graph, inputs).outputs[0]);
  auto const expected = [&](std::int64_t column) {
    double sum = 0;
    for (std::int64_t row = 0; row < 4; ++row) sum += x.at.real(row * 3 + column) * w.at.real(row);
    return std::sqrt(sum * sum + 0.25) - 0.5;
  };
  for (std::int64_t c = 0; c < 3; ++c) CHECK(y[static_cast<std::size_t>(c)] == doctest::Approx(expected(c)));

  std::array const wrt{0, 1};
  auto const joint = support::gradient_graph(graph, wrt);
  ir::verify(joint);
  std::array const all{x.at, w.at, cotangent.at};
  auto const gradients = support::run(joint, all);
  auto const loss = [&] {
    double sum = 0;
    for (std::int64_t c = 0; c < 3; ++c) sum += expected(c) * cotangent.at.real(c);
    return sum;
  };
  for (std::size_t k = 0; k < 2; ++k)
    for (std::int64_t i = 0; i < base::numel(inputs[k].sizes); ++i) {
      double const here = inputs[k].real(i);
      inputs[k].set(i, here + 1e-6);
      double const up = loss();
      inputs[k].set(i, here - 1e-6);
      double const down = loss();
      inputs[k].set(i, here);
      CHECK(gradients.outputs[k + 1].real(i) == doctest::Approx((up - down) / 2e-6).epsilon(1e-6));
    }
}

TEST_CASE("facts of a user's op are read like any other's") {
  auto const graph = built({}, ir::Dims{4, 3}, 1.0);
  auto const meta = [&](int value) { return graph.values[static_cast<std::size_t>(value)].meta.get(); };
  std::array const in{meta(0), meta(1)};
  std::array const out{*meta(2)};
  CHECK(ir::equation_of(blend, {}, in) == "ab,a->b");
  CHECK(ir::cost(blend, in, out, {}).flops == 2 * 4 * 3);
  CHECK(ir::cost(blend, in, out, {}).bytes == 8 * (12 + 4 + 3));
  CHECK(ir::has_kernel(bent));
  CHECK(!ir::has_kernel(blend));
  CHECK(ir::to_string(bent, ir::default_attrs(bent)).empty());
  CHECK(ir::find_op("user.bent") == nullptr);  // the table holds Tenon's own ops
  CHECK(support::says(support::caught([&] { ir::parse_graph(ir::to_string(graph)); }), "line 2, column 8: unknown op user.blend"));
}

TEST_CASE("wrong calls of a user's op are Errors by its name") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f64, {}, ir::Dims{4, 3})), w = graph.input(ir::contiguous_meta(DType::f64, {}, ir::Dims{5}));
  CHECK(support::caught([&] { graph.add(blend, {{x, {}}, {w, {}}}); }).starts_with("user.blend: "));
  CHECK(support::caught([&] { graph.add(blend, {{x, {}}}); }) == "user.blend: takes 2 operands, not 1");
  CHECK(support::caught([&] { graph.add(bent, {{x, {}}}); }) == "user.bent: attribute bend is missing");
}

TEST_CASE("a user's op takes symbols") {
  ir::Symbols symbols;
  auto const rows = symbols.symbol(4);
  auto const bend = symbols.real_symbol(0.5);
  auto const graph = built(symbols, ir::Dims{rows, 3}, bend);
  ir::verify(graph);
  auto const again = ir::decompose(graph);
  std::mt19937 random(42);
  auto const x = drawn({6, 3}, random), w = drawn({6}, random);
  std::array const inputs{x.at, w.at};
  auto const general = support::reals(ir::evaluate(again, inputs, {{6, 0}, {0, 2.0}}).outputs[0]);
  auto const plain = support::reals(support::run(built({}, ir::Dims{6, 3}, 2.0), inputs).outputs[0]);
  CHECK(support::distance(general, plain) == 0);
}

TEST_CASE("every row of modules/ir/ops_*.cpp is listed at the end of its file") {
  std::size_t rows = 0;
  for (auto const& entry : std::filesystem::directory_iterator("modules/ir")) {
    if (!entry.path().filename().string().starts_with("ops_")) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);)
      rows += line.starts_with("constinit const OpDef ") || line.starts_with("COMPARISON(") || line.starts_with("BITS(");
  }
  CHECK(rows == ir::all_ops().size());
}
