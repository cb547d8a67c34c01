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

// 7. A size that is marked.
// Nobody has to wait for the second size: mark_dynamic says of a tensor that this size varies, and within which bounds. The first graph has a
// symbol then. Should the function need one size after all, that is an error at the line which needs it, not a graph for each size.
void marked_sizes() {
  heading("a size that is marked");
  auto const fast = compile([](Tensor const& x) { return sum(x * 2, {1}); }, {.name = "rows"});
  Tensor const first = ones({4, 3});
  mark_dynamic(first, 0, 2, 64);
  for (Tensor const& x : {first, ones({9, 3}), ones({64, 3}), ones({65, 3})}) {
    (void)fast(x);
    std::cout << std::format("{} rows: graphs so far {}\n", x.size(0), describe(fast.state()).graphs);
  }
  for (auto const& recompile : describe(fast.state()).recompiles) std::cout << "recompiled: " << recompile.reason.text << '\n';
  try {
    (void)compile([](Tensor const& x) { return x + ones({4, 3}); }, {.name = "four_rows"})(first);
  } catch (tenon::base::Error const& error) {
    std::cout << error.what() << '\n';
  }
}

// 8. A write into a view.
// A graph holds no writes: each value is computed once. What your function writes into a part of a tensor becomes a new value of the whole, every
// view is derived anew from it, and at the end it is copied back into the tensor that came in.
void write_into_a_view() {
  heading("a write into a view");
  auto const boost = [](Tensor const& x) {
    Tensor const columns = transpose(x, 0, 1);
    select(x, 0, 1).mul_(10);
    return columns + 0.5;
  };
  auto const fast = compile(boost, {.fullgraph = true, .name = "boost"});
  Tensor const a = reshape(arange(0.0, 4.0), {2, 2}), b = clone(a);
  std::cout << std::format("eager:    {}, x is {}\n", boost(a).to_string(), a.to_string());
  std::cout << std::format("compiled: {}, x is {}\n", fast(b).to_string(), b.to_string());
  std::cout << tenon::ir::to_string(describe(fast.state()).parts.at(0).graph);
}

// 9. Settings of the thread.
// What the thread has set decides what is recorded, so it is guarded like an argument: each setting has a graph of its own, and coming back to an
// earlier one is a hit.
void settings_as_guards() {
  heading("settings as guards");
  auto const fast = compile([](Tensor const& x) { return sum(x * x); }, {.name = "square"});
  Tensor const x = tensor({1, 2}).set_requires_grad();
  auto const call = [&](std::string_view what) {
    Tensor const y = fast(x);
    std::cout << std::format("{:22} graphs so far {}; the result wants a gradient: {}\n", what, describe(fast.state()).graphs, y.requires_grad());
  };
  call("as a thread begins");
  {
    NoGrad const off;
    call("without gradients");
  }
  call("as it began");
  {
    Settings careful = settings();
    careful.deterministic = true;
    SettingsScope const scope(careful);
    call("deterministic");
  }
  call("as it began");
  for (auto const& recompile : describe(fast.state()).recompiles) std::cout << "recompiled: " << recompile.reason.text << '\n';
}

// 10. A backend of your own.
// A backend is a function from a graph to something that runs it. This one lets the passes of tenon.ir simplify the graph before the reference
// evaluates it; one that generates code has the same type.
Runner simplifying(tenon::ir::Graph const& graph) {
  using namespace tenon::ir;
  auto const simple = std::make_shared<Graph>(eliminate_dead_code(simplify(graph)));
  std::cout << std::format("the backend got {} ops and keeps {}:\n{}", graph.nodes.size(), simple->nodes.size(), to_string(*simple));
  auto const lowered = std::make_shared<Graph>(decompose(*simple));
  return [lowered](std::span<Strided const> inputs, Bindings const& bindings) { return evaluate(*lowered, inputs, bindings); };
}
void own_backend() {
  heading("a backend of your own");
  auto const wasteful = [](Tensor const& x) { return transpose(transpose(x * 1, 0, 1), 0, 1) + (x - x) * 0 + relu(relu(x)); };
  auto const fast = compile(wasteful, {.backend = simplifying, .name = "wasteful"});
  Tensor const x = reshape(arange(-2, 2), {2, 2});
  std::cout << std::format("{} compiled, {} eager\n", fast(x).to_string(), wasteful(x).to_string());
}

// 11. What it does now.
// A report tells what was captured; status tells where a function stands, in a line that each step of a training can afford. A text is guarded by
// value, so a function that is called with another text each time makes a graph for each, up to its limit; from then on new ones run eagerly.
void standing() {
  heading("what it does now");
  auto const scaled = compile([](Tensor const& x, std::string const& by) { return by == "0" ? x : x * 2; }, {.recompile_limit = 3, .name = "scaled"});
  std::cout << status(scaled);
  for (int call = 1; call <= 5; ++call) {
    (void)scaled(ones({2}), std::format("{}", call));
    std::cout << status(scaled);
  }
}

// 12. What capture costs.
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
    marked_sizes();
    write_into_a_view();
    settings_as_guards();
    own_backend();
    standing();
    costs();
  });
}
