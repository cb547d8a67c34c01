// Joint graphs: cotangents as inputs, detach, outputs and inputs that nobody uses, a user's own forward and backward, and gradients of gradients.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;

namespace {
std::vector<double> run(Graph const& graph, std::vector<support::Array> const& inputs, std::size_t output) {
  std::vector<ir::Strided> at;
  for (auto const& x : inputs) at.push_back(x.at);
  return support::reals(support::run(graph, at).outputs[output]);
}
support::Array row(std::initializer_list<double> values) { return support::array(DType::f64, {std::ssize(values)}, std::vector<double>(values)); }

// clang-format off
// Rounds, and passes the gradient as if it did not: forward and backward are the user's own.
constinit ir::OpDef const straight{.name = "user.straight_through", .kind = ir::Kind::pointwise, .signature = "Tensor input, float limit=1", .terms = "-", .mono = "+",
    .vjp = [](ir::Vjp& v) {
      v.grad(0) = ir::call(ir::ops::where, {ir::call(ir::ops::le, {ir::call(ir::ops::abs, {v.x()}), ir::num(v.attrs.nums[0])}), v.g(), 0.0});
    }, .saves = 1,
    .decompose = [](ir::Body& b) { b.out.push_back(ir::call(ir::ops::round, {b.x()})); }};
// Two results, and a backward that reads a result: (x / |x|, |x|) of a vector.
constinit ir::OpDef const polar{.name = "user.polar", .kind = ir::Kind::normalise, .signature = "Tensor input", .results = 2, .terms = "-",
    .vjp = [](ir::Vjp& v) {
      ir::Var const unit = v.y(0), length = v.y(1);
      ir::Var sum;
      if (v.g(0)) {
        ir::Var const along = ir::call(ir::ops::sum, {v.g(0) * unit}, ir::default_attrs(ir::ops::sum));
        sum = (v.g(0) - unit * along) / length;
      }
      if (v.g(1)) sum = sum ? sum + v.g(1) * unit : v.g(1) * unit;
      v.grad(0) = sum;
    }, .saves = 3 * ir::saves_result,
    .decompose = [](ir::Body& b) {
      ir::Var const length = ir::call(ir::ops::sqrt, {ir::call(ir::ops::sum, {b.x() * b.x()}, ir::default_attrs(ir::ops::sum))});
      b.out = {b.x() / length, length};
    }};
// clang-format on

}  // namespace

TEST_CASE("a joint graph takes a cotangent for each real output") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f64, {}, {2}), "x"), unused = graph.input(ir::contiguous_meta(DType::f64, {}, {3}), "unused");
  int const y = graph.add(ir::ops::exp, {{x, {}}}, {}, {}), z = graph.add(ir::ops::square, {{x, {}}}, {}, {});
  int const positive = graph.add(ir::ops::gt, {{x, {}}, {-1, ir::Scalar(0.0)}}, {}, {});
  graph.outputs = {y, positive, z, unused, x};
  auto const joint = ir::joint_graph(graph, std::array{0, 1});
  ir::verify(joint.graph);
  CHECK(joint.outputs == 5);
  CHECK(joint.cotangents == std::vector{2, 3, 4, 5});
  CHECK(joint.graph.outputs.size() == 7);
  std::vector const inputs{row({1, 2}), row({0, 0, 0}), row({3, 5}), row({7, 11}), row({1, 2, 3}), row({100, 200})};
  auto const gradient = run(joint.graph, inputs, 5);
  for (std::size_t i = 0; i < 2; ++i) {
    double const at = i ? 2 : 1, dy = i ? 5 : 3, dz = i ? 11 : 7, dx = i ? 200 : 100;
    CHECK(gradient[i] == doctest::Approx(dy * std::exp(at) + dz * 2 * at + dx));
  }
  CHECK(run(joint.graph, inputs, 6) == std::vector{1.0, 2.0, 3.0});
  CHECK(support::caught([&] { ir::joint_graph(graph, std::array{2}); }) == "joint_graph: there is no input 2, the graph has 2");
  CHECK(support::caught([&] { ir::with_gradients(graph, std::array{-1}); }) == "with_gradients: output 0 must be a scalar, not f64[2]");
}

TEST_CASE("no gradient flows through detach, and what it cuts off is zero") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f64, {}, {2})), w = graph.input(ir::contiguous_meta(DType::f64, {}, {2}));
  int const still = graph.add(*ir::find_op("detach"), {{x, {}}}, {}, {});
  int const product = graph.add(ir::ops::mul, {{x, {}}, {still, {}}}, {}, {});
  int const dead = graph.add(*ir::find_op("detach"), {{w, {}}}, {}, {});
  int const sum = graph.add(ir::ops::add, {{product, {}}, {dead, {}}}, ir::default_attrs(ir::ops::add), {});
  graph.outputs = {graph.add(ir::ops::sum, {{sum, {}}}, ir::default_attrs(ir::ops::sum), {})};
  auto const joint = ir::with_gradients(graph, std::array{0, 1});
  std::vector const inputs{row({3, 4}), row({5, 6})};
  CHECK(run(joint, inputs, 0) == std::vector{36.0});
  CHECK(run(joint, inputs, 1) == std::vector{3.0, 4.0});  // of x * constant
  CHECK(run(joint, inputs, 2) == std::vector{0.0, 0.0});
}

TEST_CASE("a user's own forward and backward") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f64, {}, {4}));
  int const rounded = graph.add(straight, {{x, {}}}, ir::Attrs{}.with_num(2.0), {});
  int const parts = graph.add(polar, {{rounded, {}}}, {}, {});
  int const scaled = graph.add(ir::ops::mul, {{parts, {}}, {parts + 1, {}}}, {}, {});
  graph.outputs = {graph.add(ir::ops::sum, {{scaled, {}}}, ir::default_attrs(ir::ops::sum), {})};
  ir::verify(graph);
  auto const joint = ir::with_gradients(graph, std::array{0});
  ir::verify(joint);
  std::vector const inputs{row({0.6, -1.4, 2.6, 1.9})};
  CHECK(run(joint, inputs, 0)[0] == doctest::Approx(1 - 1 + 3 + 2));
  // unit * length is the rounded vector again, so its sum has gradient 1 by polar's rule; straight stops it beyond 2.
  auto const gradient = run(joint, inputs, 1);
  for (std::size_t i = 0; i < 4; ++i) CHECK(gradient[i] == doctest::Approx(i == 2 ? 0 : 1));
  // The rule is used, not the body: the body of straight has no slope anywhere.
  Graph body = graph;
  body.nodes[0].op = &ir::ops::round, body.nodes[0].attrs = {};
  CHECK(run(ir::with_gradients(body, std::array{0}), inputs, 1) == std::vector{0.0, 0.0, 0.0, 0.0});
  auto const pair = ir::partition(ir::joint_graph(graph, std::array{0}));
  ir::verify(pair.forward), ir::verify(pair.backward);
}

TEST_CASE("second derivatives agree with central differences of the first") {
  std::mt19937 random(81);
  int checked = 0, flat = 0;
  for (auto const* op : ir::all_ops()) {
    if ((!op->vjp && !op->decompose) || ir::writes(*op)) continue;
    for (auto const& call : support::samples(*op, random)) try {
        auto const graph = support::graph_of(call);
        std::vector<support::Array> inputs;
        std::vector<int> wrt;
        for (auto const& operand : call.operands)
          if (operand.tensor) {
            if (operand.tensor->at.dtype == DType::f64) wrt.push_back(static_cast<int>(inputs.size()));
            inputs.push_back(support::converted(operand.tensor->at, operand.tensor->at.dtype));
          }
        bool const in_f64 = std::ranges::all_of(graph.outputs, [&](int y) {
          auto const type = graph.values[static_cast<std::size_t>(y)].meta->dtype;
          return type == DType::f64 || !base::is_real(type);
        });
        if (wrt.empty() || !in_f64) continue;
        auto const first = ir::joint_graph(graph, wrt);
        if (first.cotangents.empty()) continue;
        auto slopes = first.graph;
        slopes.outputs.erase(slopes.outputs.begin(), slopes.outputs.begin() + first.outputs);
        auto const second = ir::joint_graph(slopes, wrt);
        ir::verify(second.graph);
        auto const draw = [&](std::span<int const> which, Graph const& from) {
          for (int input : which) {
            auto const& meta = *from.values[static_cast<std::size_t>(from.inputs[static_cast<std::size_t>(input)])].meta;
            auto x = support::array(meta.dtype, ir::values(meta.sizes));
            for (std::int64_t i = 0; i < base::numel(x.at.sizes); ++i) x.at.set(i, std::uniform_real_distribution(-1.0, 1.0)(random));
            inputs.push_back(x);
          }
        };
        draw(first.cotangents, first.graph), draw(second.cotangents, second.graph);
        // <gradients, v> along one direction u, against <gradient of it, u>.
        double ours = 0;
        std::vector<support::Array> up = inputs, down = inputs;
        std::vector<ir::Strided> at;
        for (auto const& x : inputs) at.push_back(x.at);
        auto const curvature = support::run(second.graph, at);
        constexpr double h = 1e-5;
        for (std::size_t w = 0; w < wrt.size(); ++w) {
          auto const k = static_cast<std::size_t>(wrt[w]);
          up[k] = support::converted(inputs[k].at, DType::f64), down[k] = support::converted(inputs[k].at, DType::f64);
          auto const slope = support::reals(curvature.outputs[wrt.size() + w]);
          for (std::int64_t i = 0; i < std::ssize(slope); ++i) {
            double const u = std::uniform_real_distribution(-1.0, 1.0)(random);
            ours += slope[static_cast<std::size_t>(i)] * u;
            up[k].at.set(i, inputs[k].at.real(i) + h * u), down[k].at.set(i, inputs[k].at.real(i) - h * u);
          }
        }
        auto const weighted = [&](std::vector<support::Array> const& x) {
          std::vector<ir::Strided> place;
          for (std::size_t k = 0; k < first.graph.inputs.size(); ++k) place.push_back(x[k].at);
          auto const done = support::run(slopes, place);
          double total = 0;
          for (std::size_t w = 0; w < wrt.size(); ++w) {
            auto const gradient = support::reals(done.outputs[w]), v = support::reals(x[first.graph.inputs.size() + w].at);
            for (std::size_t i = 0; i < gradient.size(); ++i) total += gradient[i] * v[i];
          }
          return total;
        };
        double const theirs = (weighted(up) - weighted(down)) / (2 * h);
        CHECK_MESSAGE(std::fabs(ours - theirs) <= 1e-5 * std::max(1.0, std::fabs(theirs)), call.text << ": " << ours << " " << theirs);
        ++checked, flat += ours == 0;
      } catch (std::exception const& error) {
        FAIL_CHECK(call.text << ": " << std::string(error.what()));
      }
  }
  std::cout << std::format("second derivatives of {} calls, {} of them zero\n", checked, flat);
  CHECK(checked > 300);
}
