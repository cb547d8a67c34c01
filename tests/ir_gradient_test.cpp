// Gradients of every op against central differences in f64, on the sample calls.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using support::Call;

namespace {

/// Whether gradients flow through the op in a graph: by a rule of its own or through its body. A write has a rule for the tape, and stands in no graph.
bool differentiable(ir::OpDef const& op) { return (op.vjp || op.decompose) && !ir::writes(op); }

double weighted(ir::Evaluated const& forward, std::vector<std::vector<double>> const& cotangents) {
  double total = 0;
  for (std::size_t k = 0; k < forward.outputs.size(); ++k) {
    if (!base::is_real(forward.outputs[k].dtype)) continue;
    auto const values = support::reals(forward.outputs[k]);
    for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * cotangents[k][i];
  }
  return total;
}

void check_gradients(Call const& call, std::mt19937& random) {
  auto const graph = support::graph_of(call);
  auto const plain = ir::decompose(graph);
  auto const inputs = support::inputs_of(call);
  std::vector<int> wrt;
  for (std::size_t k = 0; k < inputs.size(); ++k)
    if (inputs[k].dtype == DType::f64) wrt.push_back(static_cast<int>(k));
  auto const forward = ir::evaluate(plain, inputs);
  if (wrt.empty() || std::ranges::none_of(forward.outputs, [](auto const& y) { return y.dtype == DType::f64; })) return;
  std::vector<std::vector<double>> cotangents(forward.outputs.size());
  std::vector<support::Array> held;
  for (std::size_t k = 0; k < forward.outputs.size(); ++k) {
    auto const& y = forward.outputs[k];
    if (!base::is_real(y.dtype)) continue;
    for (std::int64_t i = 0; i < base::numel(y.sizes); ++i) cotangents[k].push_back(std::uniform_real_distribution(-1.0, 1.0)(random));
    held.push_back(support::array(y.dtype, y.sizes, cotangents[k]));
  }
  auto all = inputs;
  for (auto const& cotangent : held) all.push_back(cotangent.at);
  auto const joint = support::gradient_graph(graph, wrt);
  ir::verify(joint);
  auto const backward = support::run(joint, all);
  for (std::size_t w = 0; w < wrt.size(); ++w) {
    auto const& x = inputs[static_cast<std::size_t>(wrt[w])];
    auto const ours = support::reals(backward.outputs[w + 1]);
    CHECK_MESSAGE(backward.outputs[w + 1].sizes == x.sizes, call.text);
    CHECK_MESSAGE(backward.outputs[w + 1].dtype == x.dtype, call.text);
    std::vector<double> theirs;
    constexpr double h = 1e-6;
    for (std::int64_t i = 0; i < base::numel(x.sizes); ++i) {
      double const before = x.real(i);
      x.set(i, before + h);
      double const up = weighted(ir::evaluate(plain, inputs), cotangents);
      x.set(i, before - h);
      double const down = weighted(ir::evaluate(plain, inputs), cotangents);
      x.set(i, before);
      theirs.push_back((up - down) / (2 * h));
    }
    double const gap = support::distance(ours, theirs);
    if (!(gap <= 1e-6 * support::scale_of(theirs))) {
      std::string row;
      for (std::size_t i = 0; i < std::min<std::size_t>(ours.size(), 8); ++i) row += std::format(" {:.6g}/{:.6g}", ours[i], theirs[i]);
      FAIL_CHECK(call.text << ": gradient of tensor " << wrt[w] << " differs by " << gap << ":" << row);
    }
  }
}
}  // namespace

TEST_CASE("every op has sample calls, and their gradients agree with central differences") {
  std::mt19937 random(1);
  int checked = 0;
  for (auto const* op : ir::all_ops()) {
    auto const calls = support::samples(*op, random);
    CHECK_MESSAGE((!calls.empty() || op->measured), std::string(op->name) << " has no sample call in tests/op_samples.cpp");
    for (auto const& call : calls) try {
        ir::verify(support::graph_of(call));
        if (differentiable(*op)) check_gradients(call, random), ++checked;
      } catch (std::exception const& error) {
        FAIL_CHECK(call.text << ": " << std::string(error.what()));
      }
  }
  CHECK(checked > 100);
}

TEST_CASE("of several results, those that a loss reads give gradients") {
  ir::Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f64, {}, {5}));
  ir::Attrs const pairs = ir::Attrs{}.with(std::array{ir::Dim(2)}).with(ir::Dim(0));
  int const parts = graph.add(ir::ops::split, {{x, {}}}, pairs, {});
  CHECK(graph.nodes.back().results == 3);
  int const square = graph.add(ir::ops::mul, {{parts + 1, {}}, {parts + 1, {}}}, {}, {});
  graph.outputs = {graph.add(ir::ops::sum, {{square, {}}}, ir::default_attrs(ir::ops::sum), {})};
  std::array const values{1.0, 2.0, 3.0, 4.0, 5.0};
  auto const input = support::array(DType::f64, {5}, values);
  std::array const inputs{input.at};
  auto const done = support::run(ir::with_gradients(graph, std::array{0}), inputs);
  CHECK(support::reals(done.outputs[1]) == std::vector{0.0, 0.0, 6.0, 8.0, 0.0});
}
