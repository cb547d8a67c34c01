// tracer: tensors that run at once, and functions that are captured by running them.
//
// Run it:  ninja -C build && ./build/samples/m_tracer
//
// Nothing rewrites your function here. A compiled function's body runs on every call; what differs is who listens. On the first call a
// recorder writes down each op, later calls are compared with that record, and the work itself is done by the recorded graph at the end.
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
#include "lesson.h"
using namespace tenon::tracer;

namespace {

// 1. Eager.
// Each op runs when it is called, with PyTorch's rules: sizes broadcast, dtypes promote, and a plain number never makes a tensor wider.
void eager() {
  heading("eager");
  Tensor const a = tensor({1, 2, 3}), b = index_tensor(std::vector<std::int64_t>{10, 20, 30}, {3});
  std::cout << "a           " << a.to_string() << '\n';
  std::cout << "a + b       " << (a + b).to_string() << '\n';
  std::cout << "b * 2       " << (b * 2).to_string() << '\n';
  std::cout << "outer       " << (unsqueeze(a, 1) * a).to_string() << '\n';
  try {
    (void)(a + ones({2}));
  } catch (tenon::base::Error const& error) {
    std::cout << "a + ones(2) " << error.what() << '\n';
  }
}

// 2. Views.
// A view is other sizes and strides over the same memory: nothing is copied, and a write through one handle is seen through all.
void views() {
  heading("views");
  Tensor const m = reshape(arange(0, 6), {2, 3});
  Tensor const t = transpose(m, 0, 1);
  Tensor row = select(m, 0, 1);
  row.mul_(10);
  std::cout << "m after row 1 was multiplied by 10: " << m.to_string() << '\n';
  std::cout << "its transpose, made before:         " << t.to_string() << '\n';
}

// 3. Gradients.
// A tape keeps, of each call that a gradient flows through, what its rule reads. backward() walks it from the end and adds into the leaves.
void gradients_of_a_polynomial() {
  heading("gradients");
  Tensor x = tensor({1, 2, 3}).set_requires_grad();
  sum(x * x * x).backward();
  std::cout << "x³ has the slope 3x²:  " << x.grad().to_string() << '\n';
  auto const slope = [](Tensor const& at) { return sum(gradients(sum(at * at * at), std::array{at}, {}, {.create_graph = true})[0]); };
  std::cout << "and the curvature 6x:  " << gradients(slope(x), std::array{x})[0].to_string() << '\n';
}

// 4. Capture.
// The first call records a graph, the others replay it. Every node carries the line and column that it came from.
void capture() {
  heading("capture");
  manual_seed(1);
  Tensor const w = randn({3, 2});
  auto const layer = [w](Tensor const& x) { return relu(matmul(x, w) + 1); };
  auto const fast = compile(layer, {.name = "layer"});
  bool equal = true;
  for (int call = 0; call < 3; ++call) {
    Tensor const x = randn({4, 3});
    equal = equal && fast(x).to_vector<float>() == layer(x).to_vector<float>();
  }
  auto const report = describe(fast.state());
  std::cout << tenon::ir::to_string(report.parts[0].graph)
            << std::format("3 calls: {} ops recorded, {} replayed; results equal eager's: {}\n", report.recorded_ops, report.replayed_ops, equal);
}

// 5. A break.
// Where C++ needs a number to choose its way, the graph must end: what was recorded so far runs, the number comes back, and the next graph
// starts at that place. Each path behind it is compiled once, however often the loop turns.
void graph_break_at_a_condition() {
  heading("a break");
  auto const halve = [](Tensor x) {
    while (sum(x) > 1) x = x * 0.5;
    return x;
  };
  auto const fast = compile(halve, {.name = "halve"});
  for (double const start : {3.0, 100.0, 12345.0}) std::cout << std::format("from {:5}: {}\n", start, fast(tensor({start})).to_string());
  std::cout << describe(fast.state());
  try {
    (void)compile(halve, {.fullgraph = true, .name = "halve"})(tensor({3}));
  } catch (tenon::base::Error const& error) {
    std::cout << "with fullgraph it is an error:\n" << error.what() << '\n';
  }
}

// 6. A recompile.
// Another size fails a guard. The second recording keeps that size open as a symbol, so a third size needs no third graph.
void recompile() {
  heading("a recompile");
  auto const fast = compile([](Tensor const& x) { return sum(x * 2, {1}); }, {.name = "rows"});
  for (int const rows : {4, 4, 3, 5, 6}) {
    (void)fast(ones({rows, 3}));
    std::cout << std::format("{} rows: graphs so far {}\n", rows, describe(fast.state()).graphs);
  }
  std::cout << describe(fast.state());
}

// 7. What capture costs.
// A backend that computes nothing leaves only the capture: a chain of additions is recorded or replayed, and the difference between a long
// chain and a short one, over the ops between them, is the price of an op. A median of fifteen; your machine's figures differ.
Runner idle(tenon::ir::Graph const& graph) {
  std::vector<tenon::ir::Strided> outputs;
  std::vector<tenon::base::Ref<tenon::base::Buffer>> storage;
  for (int const value : graph.outputs) {
    auto const& meta = *graph.values[static_cast<std::size_t>(value)].meta;
    storage.push_back(tenon::base::make_ref<tenon::base::Buffer>(64));
    outputs.push_back({storage.back()->data(), meta.dtype, tenon::ir::values(meta.sizes), tenon::ir::values(meta.strides)});
  }
  return [=](auto const&, auto const&) { return tenon::ir::Evaluated{outputs, storage}; };
}
// Processor time (std::clock counts microseconds), so that what else runs on the machine hardly counts.
template <class F>
double nanoseconds(int times, F f) {
  std::vector<double> runs;
  for (int run = 0; run < 15; ++run) {
    std::clock_t const start = std::clock();
    for (int k = 0; k < times; ++k) f();
    runs.push_back(static_cast<double>(std::clock() - start) * 1000 / times);
  }
  std::ranges::sort(runs);
  return runs[runs.size() / 2];
}
void costs() {
  heading("what capture costs");
  auto const chain = [](int length) {
    return [length](Tensor x) {
      for (int k = 0; k < length; ++k) x = x + 1;
      return x;
    };
  };
  Options const options{.backend = idle};
  Tensor const plain = ones({4}), leaf = ones({4}).set_requires_grad();
  auto const per_op = [&](auto const& time) { return (time(chain(300)) - time(chain(100))) / 200; };
  auto const eagerly = [](Tensor const& x) { return [&x](auto body) { return nanoseconds(30, [&] { (void)body(x); }); }; };
  auto const recorded = [&options](Tensor const& x) { return [&](auto body) { return nanoseconds(20, [&] { (void)compile(body, options)(x); }); }; };
  auto const replayed = [&options](Tensor const& x) {
    return [&](auto body) {
      auto const fast = compile(body, options);
      (void)fast(x);
      return nanoseconds(100, [&] { (void)fast(x); });
    };
  };
  std::cout << std::format("{:28} {:>10} {:>14}\n", "ns an op", "no gradient", "with the tape");
  std::cout << std::format("{:28} {:10.0f} {:14.0f}\n", "eager, 4 elements", per_op(eagerly(plain)), per_op(eagerly(leaf)));
  std::cout << std::format("{:28} {:10.0f} {:14.0f}\n", "recorded", per_op(recorded(plain)), per_op(recorded(leaf)));
  std::cout << std::format("{:28} {:10.0f} {:14.0f}\n", "replayed", per_op(replayed(plain)), per_op(replayed(leaf)));
  auto const one = compile(chain(1), options);
  (void)one(plain);
  std::cout << std::format("a whole call of one op, replayed, its graph idle: {:.0f} ns\n", nanoseconds(2000, [&] { (void)one(plain); }));
}

}  // namespace

int main(int argc, char** argv) {
  return run_lesson("m_tracer", argc, argv, [] {
    eager();
    views();
    gradients_of_a_polynomial();
    capture();
    graph_break_at_a_condition();
    recompile();
    costs();
  });
}
