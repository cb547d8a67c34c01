// 2.1: a model as a graph of typed nodes.
//
// Run it:  ninja -C build && ./build/samples/s2_1_graph [--json[=FILE]]
//
// The article prints a small model as the graph that torch.fx makes of it, and says that calls and control flow become nodes, which passes can
// match and rewrite; backends then make code of it, up to packages for deployment. Here the same models are captured from C++, printed in FX's form,
// compared node for node with what PyTorch 2.11 prints, and one of them becomes a library of C that a program without Tenon runs.
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

// 5. Code, and a package of it.
// The graph's kernels are printed as C, which the system's compiler turns into machine code; that is how every compiled function runs on the CPU.
// package() writes the same code to files instead: a header, a source that stands alone, the library made of it, and the weights. package_main.c
// knows nothing but the header. It is compiled here by the same C compiler and runs as a process of its own.
struct Classifier {
  Linear fc1{64, 96}, fc2{96, 10};
  Tensor operator()(Tensor const& pixels) const { return softmax(fc2(gelu(fc1(pixels))), -1); }
  static void fields(auto& self, auto&& field) { field("fc1", self.fc1), field("fc2", self.fc2); }
};
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / std::format("tenon-s2_1-{:08x}", std::random_device()());
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
};
std::string text_of(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void system_call(std::string const& command) {
  if (int const status = std::system(command.c_str()); status != 0) fail("'{}' ended with status {}", command, status);
}
// From `first` to the line `last`.
std::string passage(std::string const& text, std::string_view first, std::string_view last) {
  auto const begin = text.find(first);
  if (begin == std::string::npos) fail("the package has no '{}'", first);
  return text.substr(begin, text.find(last, begin) + last.size() - begin);
}
struct Packaging {
  Package made;
  std::size_t lines, library_bytes;
  int batches;
  double gap;
};
Packaging packaging() {
  heading("code, and a package of it");
  NoGrad const off;
  manual_seed(5);
  Classifier const model;
  constexpr int batches = 100;
  std::vector<Tensor> inputs;
  for (int k = 0; k < batches; ++k) inputs.push_back(randn({16, 64}));

  Folder const folder;
  Packaging done{.made = package(model, {.folder = folder.path, .name = "classifier", .inputs = {"pixels"}, .outputs = {"scores"}}, inputs[0]),
                 .batches = batches};
  std::string const source = text_of(done.made.source), header = text_of(done.made.header);
  std::cout << passage(header, "// What runs read", "#define classifier_weights 4\n") << "...\n"
            << passage(header, "// A model with", "classifier_destroy(classifier *model);\n");
  std::cout << "\nA kernel, as it stands in classifier.c:\n"
            << passage(source, "void tn_kernel", "\n}\n") << "\nThe run, written out:\n"
            << passage(source, "  char *const v", "  return 0;\n");
  done.lines = static_cast<std::size_t>(std::ranges::count(source, '\n')), done.library_bytes = std::filesystem::file_size(done.made.library);
  std::cout << std::format("{} lines of C make a library of {} bytes for weights of {}: {} kernels, {} launches a run; compiled in {:.2f} s\n", done.lines,
                           done.library_bytes, done.made.weight_bytes, done.made.kernels, done.made.launches, done.made.compile_seconds);

  auto const in = folder.path / "pixels", out = folder.path / "scores", program = folder.path / "classify";
  {
    std::ofstream file(in, std::ios::binary);
    for (auto const& x : inputs) file.write(reinterpret_cast<char const*>(x.host().data), x.numel() * 4);
  }
  auto const& compiler = device::toolchain();
  if (!compiler) fail("there is no C compiler");
  system_call(std::format("{} -O2 {}/samples/package_main.c -I{} -o {} {}", compiler->path, TENON_SOURCE_ROOT, folder.path.string(), program.string(),
                          done.made.library.string()));
  system_call(std::format("env -i {} {} <{} >{}", program.string(), done.made.weights.string(), in.string(), out.string()));

  auto const fast = compile(model, {.fullgraph = true});
  std::string const bytes = text_of(out);
  if (bytes.size() != std::size_t{batches} * 160 * sizeof(float)) fail("{} bytes came back, not {}", bytes.size(), batches * 160 * sizeof(float));
  std::size_t at = 0;
  for (auto const& x : inputs)
    for (float const score : fast(x).to_vector<float>()) {
      float theirs = 0;
      std::memcpy(&theirs, bytes.data() + 4 * at++, 4);
      done.gap = std::max(done.gap, std::abs(static_cast<double>(theirs) - score));
    }
  std::cout << std::format("{} batches of 16 through a process of its own: the largest difference from the compiled function is {:.1e}\n", batches, done.gap);
  if (!(done.gap < 1e-6)) fail("the package differs by {}", done.gap);
  return done;
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
  auto const made = packaging();
  Claim const code{.id = "2.1.c",
                   .title = "code and packages come out of the graph; on the CPU, as C",
                   .article = "Triton tunes GPU kernels and emits PTX or HSACO; AOTInductor emits C++ or CUDA source for deployment on CPU and GPU",
                   .measured = std::format(
                       "CPU: {} lines of C for {} kernels, a library of {} bytes made in {:.2f} s; a C program that knows only the header ran {} batches, "
                       "largest difference from the compiled function {:.0e}. Code for GPUs is not part of this row yet",
                       made.lines, made.made.kernels, made.library_bytes, made.made.compile_seconds, made.batches, made.gap),
                   .verdict = "reproduced with a difference",
                   .seconds = seconds() - typed.seconds - open.seconds};
  heading("verdicts");
  for (auto const& claim : {typed, open, code}) std::cout << std::format("{} {}: {}\n", claim.id, claim.verdict, claim.measured);
  return {typed, open, code};
}

}  // namespace

int main(int argc, char** argv) { return run_lesson("s2_1_graph", argc, argv, lesson); }
