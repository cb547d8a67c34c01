// ir: ops as rows of facts, graphs of calls, and what follows from the two.
//
// Run it:  ninja -C build && ./build/samples/m_ir
//
// Nothing here executes a model by itself. A graph is a list of calls; shapes, gradients, costs and texts are read off the rows of its ops, and
// a slow reference evaluator says what every faster engine has to compute. Letters: B batch, C classes; m, k, n of a matrix product.
import std;
import tenon.base;
import tenon.ir;
#include "lesson.h"
using namespace tenon;
using namespace tenon::ir;
using base::DType;

namespace {

/// Row-major f64 elements that own their memory.
struct Elements {
  base::Ref<base::Buffer> storage;
  Strided at;
};
Elements elements(base::Shape const& sizes, std::span<double const> values) {
  Elements made{base::make_ref<base::Buffer>(base::numel(sizes) * 8), {}};
  made.at = {made.storage->data(), DType::f64, sizes, base::contiguous_strides(sizes)};
  for (std::size_t i = 0; i < values.size(); ++i) made.at.set(static_cast<std::int64_t>(i), values[i]);
  return made;
}
std::string row_major(Strided const& x) {
  std::string text;
  walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { text += std::format("{}{:.4f}", text.empty() ? "" : " ", x.real(at[0])); });
  return text;
}

// 1. A graph is a list of calls.
// `input` names what comes from outside, `add` appends a call and infers its result from the op's row. Each call remembers the line that made it.
Graph classifier() {
  Graph graph;
  graph.name = "classifier";
  int const x = graph.input(contiguous_meta(DType::f64, {}, Dims{2, 3}), "x"), w = graph.input(contiguous_meta(DType::f64, {}, Dims{3, 2}), "w");
  int const scores = graph.add(ops::matmul, {{x, {}}, {w, {}}});
  int const p = graph.add(ops::softmax, {{scores, {}}}, Attrs{}.with(1).with(Dim(absent)));
  int const spread = graph.add(ops::var, {{p, {}}}, default_attrs(ops::var));
  graph.outputs = {spread};
  return graph;
}
void building(Graph const& graph) {
  heading("a graph and its text");
  std::cout << to_string(graph);
  std::cout << "Reading the text gives the same graph: " << std::boolalpha << equal(parse_graph(to_string(graph)), graph) << '\n';
}

// The same graph as torch.fx prints it, as generated code, and in ATen's words with types; parse_fx and from_fx read them back.
void foreign_texts(Graph const& graph) {
  heading("the same graph in FX's texts");
  std::cout << to_string(to_fx(graph)) << '\n' << to_code(to_fx(graph)) << '\n';
  FxGraph const aten = to_fx(graph, {.style = FxStyle::aten, .types = true});
  std::cout << to_string(aten) << '\n';
  Graph const back = from_fx(parse_fx(to_string(aten)));
  std::cout << "Read back: " << back.nodes.size() << " calls; in FX again the same structure: " << same_structure(to_fx(back), to_fx(graph)) << '\n';
}

// 2. What a call means is decided before it runs.
// A shape that does not fit is refused where the call is made, in one line with both numbers. A malformed text is refused where it is wrong.
void refusals() {
  heading("what is refused");
  auto const shown = [](auto act) {
    try {
      act();
    } catch (base::Error const& error) {
      std::cout << error.what() << '\n';
    }
  };
  shown([] {
    Graph graph;
    int const a = graph.input(contiguous_meta(DType::f32, {}, Dims{2, 3})), b = graph.input(contiguous_meta(DType::f32, {}, Dims{4, 5}));
    graph.add(ops::matmul, {{a, {}}, {b, {}}});
  });
  shown([] { parse_graph("graph g(%0: f32[2]) {\n  %1 = tahn(%0): f32[2]\n  return %1\n}"); });
}

// 3. The reference evaluator.
// Composite ops (softmax here) have a body instead of a kernel: decompose replaces them, evaluate runs what is left.
void running(Graph const& graph, Elements const& x, Elements const& w) {
  heading("evaluation");
  Graph const plain = decompose(graph);
  std::cout << to_string(plain);
  std::cout << "spread = " << row_major(evaluate(plain, std::array{x.at, w.at}).outputs[0]) << '\n';
}

// 4. Gradients.
// with_gradients walks the graph backwards and lets each row write its part; the result is an ordinary graph, so the ordinary passes tidy it.
void differentiating(Graph const& graph, Elements const& x, Elements const& w) {
  heading("the joint graph");
  Graph const joint = with_gradients(graph, std::array{1});
  Graph const tidy = eliminate_dead_code(merge_common(decompose(joint)));
  verify(tidy);
  std::cout << to_string(joint) << "\nafter decompose, merge_common and eliminate_dead_code:\n" << to_string(tidy);
  auto const done = evaluate(tidy, std::array{x.at, w.at});
  std::cout << "d spread / d w     = " << row_major(done.outputs[1]) << '\n';
  std::cout << "by differences     =";
  Graph const plain = decompose(graph);
  for (std::int64_t i = 0; i < base::numel(w.at.sizes); ++i) {
    double const here = w.at.real(i), h = 1e-6;
    auto const spread = [&](double value) {
      w.at.set(i, value);
      return evaluate(plain, std::array{x.at, w.at}).outputs[0].real(0);
    };
    std::cout << std::format(" {:.4f}", (spread(here + h) - spread(here - h)) / (2 * h));
    w.at.set(i, here);
  }
  std::cout << '\n';
}

// 5. Facts.
// An equation names each dim by a letter; a letter that vanishes is combined by the row's monoid. From this one line come the result's sizes,
// the cost, and (in modules above) how the call may be cut across devices.
void facts() {
  heading("equations and costs");
  auto const show = [](OpDef const& op, std::vector<Meta> const& metas, Attrs const& attrs) {
    std::vector<Meta const*> in;
    for (auto const& meta : metas) in.push_back(&meta);
    std::vector<Scalar> const none(in.size());
    auto const out = infer(op, in, none, attrs);
    auto const spent = cost(op, in, out, attrs);
    std::string operands;
    for (auto const& meta : metas) operands += (operands.empty() ? "" : ", ") + to_string(meta);
    std::cout << std::format("{}({}) -> {}\n    equation {}, {:.0f} FLOPs, {:.0f} bytes\n", op.name, operands, to_string(out[0]), equation_of(op, attrs, in),
                             spent.flops, spent.bytes);
  };
  auto const f32 = [](Dims const& sizes) { return contiguous_meta(DType::f32, {}, sizes); };
  show(ops::matmul, {f32({8, 16}), f32({16, 4})}, {});
  show(ops::matmul, {f32({5, 8, 16}), f32({16, 4})}, {});
  show(ops::sum, {f32({8, 16})}, default_attrs(ops::sum));
  show(ops::softmax, {f32({8, 16})}, Attrs{}.with(1).with(Dim(absent)));
  show(ops::permute, {f32({8, 16})}, Attrs{}.with(Dims{1, 0}));
}

// 6. Sizes that may vary.
// A symbol stands for a size. Inference computes with it, and keeps every decision that another value could change as a constraint.
void symbols() {
  heading("symbolic sizes");
  Graph graph;
  graph.name = "any_batch";
  Symbols::Scope const scope(&graph.symbols);
  Dim const batch = graph.symbols.symbol(4), other = graph.symbols.symbol(4);
  int const a = graph.input(contiguous_meta(DType::f64, {}, Dims{batch, 3}), "a"), b = graph.input(contiguous_meta(DType::f64, {}, Dims{other, 3}), "b");
  int const sum = graph.add(ops::add, {{a, {}}, {b, {}}}, default_attrs(ops::add));
  graph.outputs = {graph.add(ops::reshape, {{sum, {}}}, Attrs{}.with(Dims{-1}))};
  std::cout << to_string(graph);
}

// 7. An op of your own.
// A row is enough: no registration, no class. x * sigmoid(slope * x) with its gradient, the C text for generated kernels, and what the gradient
// reads (operand 0).
// clang-format off
constinit OpDef const swish{.name = "mine.swish", .kind = Kind::pointwise, .signature = "Tensor input, float slope=1", .terms = "-", .mono = ".",
    .types = Types::real, .precision = Precision::wide, .cost = 12,
    .element = {[](double const* x, double const* a) { return x[0] / (1 + std::exp(-a[0] * x[0])); }}, .source = "({0} / (1 + exp(-{a0} * {0})))",
    .vjp = [](Vjp& v) {
      Var const x = v.x(), slope = num(v.attrs.nums[0]), gate = call(ops::sigmoid, {x * slope});
      v.grad(0) = v.g() * (gate + x * slope * gate * (-gate + 1.0));
    }, .saves = 1};
// clang-format on
void own_op() {
  heading("an op of your own");
  Graph graph;
  graph.name = "mine";
  int const x = graph.input(contiguous_meta(DType::f64, {}, Dims{3}), "x");
  int const y = graph.add(swish, {{x, {}}}, Attrs{}.with_num(2.0));
  graph.outputs = {graph.add(ops::sum, {{y, {}}}, default_attrs(ops::sum))};
  Graph const joint = eliminate_dead_code(with_gradients(graph, std::array{0}));
  std::cout << to_string(joint);
  auto const values = elements({3}, std::array{-1.0, 0.0, 2.0});
  auto const done = evaluate(joint, std::array{values.at});
  std::cout << "sum = " << row_major(done.outputs[0]) << ", gradient = " << row_major(done.outputs[1]) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  return run_lesson("m_ir", argc, argv, [] {
    auto const x = elements({2, 3}, std::array{1.0, 2.0, 3.0, -1.0, 0.5, 0.0}), w = elements({3, 2}, std::array{0.5, -0.2, 0.3, 0.1, -0.6, 0.4});
    Graph const graph = classifier();
    building(graph);
    foreign_texts(graph);
    refusals();
    running(graph, x, w);
    differentiating(graph, x, w);
    facts();
    symbols();
    own_op();
  });
}
