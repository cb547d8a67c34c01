// 2.1: a model as a graph of typed nodes.
//
// Run it:  ninja -C build && ./build/samples/s2_1_graph [--json[=FILE]]
//
// The article prints a small model as the graph that torch.fx makes of it, and says that calls and control flow become nodes, which passes can
// match and rewrite. Here the same models are captured from C++, printed in FX's form, and compared node for node with what PyTorch 2.11 prints.
import std;
import tenon;
#include "lesson.h"
using namespace tenon;

namespace {

// 0. Seeing a capture.
// A backend gets the graph that a call was captured as. This one keeps a copy and then computes as the reference does.
struct Captures {
  std::vector<ir::Graph> graphs;
  Options options(std::string name, bool fullgraph = true) {
    return {.fullgraph = fullgraph,
            .backend =
                [this](ir::Graph const& graph) {
                  graphs.push_back(graph);
                  return reference_backend(graph);
                },
            .name = std::move(name)};
  }
};
// Says whether a capture has the structure of a text that PyTorch printed: the same opcodes, targets and arguments, whatever nodes are called.
void compare(ir::FxGraph const& ours, std::string_view theirs, std::string_view what) {
  auto const gap = ir::difference(ours, ir::parse_fx(theirs));
  if (!gap.empty()) fail("{} differs from PyTorch's print at {}", what, gap);
  std::cout << std::format("\n{}: the same {} nodes as PyTorch's, names apart\n", what, ours.nodes.size());
}

// 1. One line, read both ways.
// In the article an operator is lost in print: relu(x ? x.T + 1.0). With + the two matrices are added; with @ they are multiplied, and since @
// binds tighter, 1.0 is added to their product. Both are legal for a square x, and both are four calls.
Tensor with_plus(Tensor const& x) { return relu(x + transpose(x, 0, 1) + 1.0); }
Tensor with_matmul(Tensor const& x) { return relu(matmul(x, transpose(x, 0, 1)) + 1.0); }

constexpr std::string_view pytorch_plus = R"(graph():
    %x : [num_users=2] = placeholder[target=x]
    %getattr_1 : [num_users=1] = call_function[target=builtins.getattr](args = (%x, T), kwargs = {})
    %add : [num_users=1] = call_function[target=operator.add](args = (%x, %getattr_1), kwargs = {})
    %add_1 : [num_users=1] = call_function[target=operator.add](args = (%add, 1.0), kwargs = {})
    %relu : [num_users=1] = call_function[target=torch.relu](args = (%add_1,), kwargs = {})
    return relu)";
constexpr std::string_view pytorch_plus_aten = R"(graph():
    %x : [num_users=2] = placeholder[target=x]
    %permute : [num_users=1] = call_function[target=torch.ops.aten.permute.default](args = (%x, [1, 0]), kwargs = {})
    %add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, %permute), kwargs = {})
    %add_1 : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%add, 1.0), kwargs = {})
    %relu : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%add_1,), kwargs = {})
    return (relu,))";
// By FX's rules; PyTorch's own print of this reading was not recorded.
constexpr std::string_view fx_matmul = R"(graph():
    %x : [num_users=2] = placeholder[target=x]
    %getattr_1 : [num_users=1] = call_function[target=builtins.getattr](args = (%x, T), kwargs = {})
    %matmul : [num_users=1] = call_function[target=operator.matmul](args = (%x, %getattr_1), kwargs = {})
    %add : [num_users=1] = call_function[target=operator.add](args = (%matmul, 1.0), kwargs = {})
    %relu : [num_users=1] = call_function[target=torch.relu](args = (%add,), kwargs = {})
    return relu)";

std::size_t one_line_two_readings() {
  heading("one line, read both ways");
  Captures captures;
  Tensor const x = tensor(std::array{1.0, -2.0, 0.5, -3.0}, {2, 2});
  Tensor const sum = compile(with_plus, captures.options("with_plus"))(x);
  Tensor const product = compile(with_matmul, captures.options("with_matmul"))(x);
  std::cout << "x + x.T + 1.0 under relu is " << sum.to_string() << "\nx @ x.T + 1.0 under relu is " << product.to_string() << "\n\n";
  auto const plus = ir::to_fx(captures.graphs.at(0)), matrix = ir::to_fx(captures.graphs.at(1));
  std::cout << ir::to_string(plus) << "\n";
  compare(plus, pytorch_plus, "x + x.T + 1.0");
  std::cout << "\nthe same in ATen's core, each node with its type:\n"
            << ir::to_string(ir::to_fx(captures.graphs[0], {.style = ir::FxStyle::aten, .types = true})) << "\n";
  compare(ir::to_fx(captures.graphs[0], {.style = ir::FxStyle::aten}), pytorch_plus_aten, "x + x.T + 1.0 in ATen");
  std::cout << "\n" << ir::to_string(matrix) << "\n";
  if (auto const gap = ir::difference(matrix, ir::parse_fx(fx_matmul)); !gap.empty()) fail("x @ x.T + 1.0 is not what FX's rules give: {}", gap);
  std::cout << "\nas generated code:" << ir::to_code(matrix) << "\n";
  return plus.nodes.size() + matrix.nodes.size();
}

// 2. Layers.
// A layer's call is one node, call_module, with the path of the layer; its parameters stay inside. Nothing was registered: the path is that of
// the layer's tensors among the fields of the model that was compiled. In ATen's form the parameters are inputs.
struct Mlp {
  Linear fc1{4, 8}, fc2{8, 3};
  Tensor operator()(Tensor const& x) const { return softmax(fc2(relu(fc1(x))), -1); }
  static void fields(auto& self, auto&& field) { field("fc1", self.fc1), field("fc2", self.fc2); }
};
constexpr std::string_view pytorch_mlp = R"(graph():
    %x : [num_users=1] = placeholder[target=x]
    %fc1 : [num_users=1] = call_module[target=fc1](args = (%x,), kwargs = {})
    %relu : [num_users=1] = call_function[target=torch.relu](args = (%fc1,), kwargs = {})
    %fc2 : [num_users=1] = call_module[target=fc2](args = (%relu,), kwargs = {})
    %softmax : [num_users=1] = call_method[target=softmax](args = (%fc2, -1), kwargs = {})
    return softmax)";
constexpr std::string_view pytorch_mlp_aten = R"(graph():
    %p_fc1_weight : [num_users=1] = placeholder[target=p_fc1_weight]
    %p_fc1_bias : [num_users=1] = placeholder[target=p_fc1_bias]
    %p_fc2_weight : [num_users=1] = placeholder[target=p_fc2_weight]
    %p_fc2_bias : [num_users=1] = placeholder[target=p_fc2_bias]
    %x : [num_users=1] = placeholder[target=x]
    %permute : [num_users=1] = call_function[target=torch.ops.aten.permute.default](args = (%p_fc1_weight, [1, 0]), kwargs = {})
    %addmm : [num_users=1] = call_function[target=torch.ops.aten.addmm.default](args = (%p_fc1_bias, %x, %permute), kwargs = {})
    %relu : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%addmm,), kwargs = {})
    %permute_1 : [num_users=1] = call_function[target=torch.ops.aten.permute.default](args = (%p_fc2_weight, [1, 0]), kwargs = {})
    %addmm_1 : [num_users=1] = call_function[target=torch.ops.aten.addmm.default](args = (%p_fc2_bias, %relu, %permute_1), kwargs = {})
    %_softmax : [num_users=1] = call_function[target=torch.ops.aten._softmax.default](args = (%addmm_1, -1, False), kwargs = {})
    return (_softmax,))";

std::size_t layers() {
  heading("layers");
  NoGrad const off;  // or what the gradient reads would be returned as well
  Captures captures;
  (void)compile(Mlp(), captures.options("mlp"))(ones({2, 4}));
  auto const folded = ir::to_fx(captures.graphs.at(0));
  std::cout << ir::to_string(folded) << "\n";
  compare(folded, pytorch_mlp, "the MLP");
  compare(ir::to_fx(captures.graphs[0], {.style = ir::FxStyle::aten}), pytorch_mlp_aten, "the MLP in ATen");
  return folded.nodes.size();
}

// 3. A rewrite, checked.
// Two small graphs make a rule: where x w + b stands, one call of addmm shall stand. Their inputs are wildcards. What the rule made is then
// evaluated beside the original on random inputs.
Tensor two_layers(Tensor const& x, Tensor const& w1, Tensor const& b1, Tensor const& w2, Tensor const& b2) { return matmul(relu(matmul(x, w1) + b1), w2) + b2; }
ir::Rewrite const matmul_add{
    .pattern = ir::parse_graph("graph p(%0 x: f32[], %1 w: f32[], %2 b: f32[]) { %3 = matmul(%0, %1): f32[] %4 = add(%3, %2): f32[] return %4 }"),
    .replacement = ir::parse_graph("graph r(%0 x: f32[], %1 w: f32[], %2 b: f32[]) { %3 = addmm(%2, %0, %1): f32[] return %3 }")};
struct Rewriting {
  std::size_t matches, before, after;
  double gap;
};
Rewriting rewriting() {
  heading("a rewrite, checked");
  Captures captures;
  (void)compile(two_layers, captures.options("two_layers"))(ones({2, 4}), ones({4, 8}), ones(8), ones({8, 3}), ones(3));
  ir::Graph const& graph = captures.graphs.at(0);
  auto const done = ir::rewrite(graph, matmul_add);
  ir::verify(done.graph);
  double const gap = ir::largest_difference(graph, done.graph);
  std::cout << ir::to_string(ir::to_fx(graph)) << "\n\nmatmul and add become addmm, in " << done.matches.size() << " places:\n\n"
            << ir::to_string(ir::to_fx(done.graph)) << "\n\nthe largest difference on random inputs: " << gap << "\n";
  if (done.matches.size() != 2 || graph.nodes.size() != 5 || done.graph.nodes.size() != 3)
    fail("two matches should leave 3 of 5 calls, not {} matches {} of {}", done.matches.size(), done.graph.nodes.size(), graph.nodes.size());
  if (!(gap <= 1e-5)) fail("the rewritten graph differs by {}", gap);
  return {done.matches.size(), graph.nodes.size(), done.graph.nodes.size(), gap};
}

// 4. What control flow becomes.
// No node. C++ runs the loop, and each turn leaves its calls: it is unrolled. A choice by a C++ value leaves the way that was taken, and another
// value brings another graph. A choice by an element of a tensor can't be known while recording: the graph ends there, and explain says where.
Tensor loop(Tensor x) {
  for (int k = 0; k < 3; ++k) x = relu(x + 1.0);
  return x;
}
Tensor choice(Tensor const& x, bool up) { return up ? x + 1.0 : x * 2.0; }
Tensor by_element(Tensor const& x) {
  Tensor const total = sum(x);
  if (total > 0) return relu(x);
  return x * 2.0;
}
struct Flow {
  std::size_t unrolled, segments;
  int breaks;
};
Flow control_flow() {
  heading("what control flow becomes");
  Captures captures;
  (void)compile(loop, captures.options("loop"))(ones(2));
  std::cout << "a loop of three turns, two calls each:\n" << ir::to_string(ir::to_fx(captures.graphs.at(0))) << "\n";
  std::size_t const unrolled = captures.graphs[0].nodes.size();

  auto const way = compile(choice, captures.options("choice"));
  for (bool const up : {true, false, true}) (void)way(ones(2), up);
  auto const ways = describe(way.state());
  std::cout << std::format("\na choice by a C++ value, three calls, two values: {} graphs; {}\n", ways.graphs, ways.recompiles.at(0).reason.text);

  auto const element = explain(by_element, captures.options("by_element", false))(ones(2));
  std::cout << "\na choice by an element:\n" << element;
  try {
    (void)compile(by_element, captures.options("by_element"))(ones(2));
    fail("a break under fullgraph was not refused");
  } catch (Error const& error) {
    std::cout << "with fullgraph: " << error.what() << "\n";
  }
  if (unrolled != 6 || ways.graphs != 2 || element.breaks.size() != 1)
    fail("6 calls, 2 graphs and 1 break were due, not {}, {} and {}", unrolled, ways.graphs, element.breaks.size());
  return {unrolled, static_cast<std::size_t>(ways.graphs), static_cast<int>(element.breaks.size())};
}

std::vector<Claim> lesson() {
  auto const start = std::chrono::steady_clock::now();
  auto const seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  std::size_t const nodes = one_line_two_readings(), mlp = layers();
  Claim const typed{.id = "2.1.a",
                    .title = "a model becomes a graph of typed nodes",
                    .article = "a model becomes a graph of typed nodes; the printed example lost an operator",
                    .measured = std::format("both readings printed ({} nodes together) and an MLP ({} nodes); those that PyTorch 2.11 printed are the same "
                                            "node for node, in torch's and in ATen's words",
                                            nodes, mlp),
                    .verdict = "reproduced",
                    .seconds = seconds()};
  auto const rewritten = rewriting();
  auto const flow = control_flow();
  Claim const open{
      .id = "2.1.b",
      .title = "calls become nodes open to rewriting; control flow does not",
      .article = "control flow and calls become call_function / call_module nodes, open to pattern matching and optimization",
      .measured = std::format(
          "{} matches leave {} of {} calls, largest difference {:.1e}; a loop of 3 turns is unrolled to {} calls, a choice by a C++ value makes {} graphs, "
          "one by an element {} break",
          rewritten.matches, rewritten.after, rewritten.before, rewritten.gap, flow.unrolled, flow.segments, flow.breaks),
      .verdict = "reproduced with a difference",
      .seconds = seconds() - typed.seconds};
  heading("verdicts");
  for (auto const& claim : {typed, open}) std::cout << std::format("{} {}: {}\n", claim.id, claim.verdict, claim.measured);
  return {typed, open};
}

}  // namespace

int main(int argc, char** argv) { return run_lesson("s2_1_graph", argc, argv, lesson); }
