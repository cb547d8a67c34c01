// Captures in FX's form: layers become call_module by the paths of their tensors, as PyTorch prints the same models.
#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
import tenon.nn;
using namespace tenon;
using tracer::Tensor;

namespace {
using Strings = std::vector<std::string>;

/// A backend that keeps the graphs that it is given.
tracer::Options keeping(std::vector<ir::Graph>& graphs) {
  return {.fullgraph = true, .backend = [&graphs](ir::Graph const& graph) {
            graphs.push_back(graph);
            return tracer::reference_backend(graph);
          }};
}
std::vector<std::string> modules_of(ir::Graph const& graph) {
  std::vector<std::string> list;
  for (auto const& node : graph.nodes) list.emplace_back(node.module);
  return list;
}
std::vector<std::string> inputs_of(ir::Graph const& graph) {
  std::vector<std::string> list;
  for (int input : graph.inputs) list.push_back(graph.values[static_cast<std::size_t>(input)].name);
  return list;
}

Strings targets_of(ir::FxGraph const& fx) {
  Strings list;
  for (auto const& node : fx.nodes)
    if (node.code != ir::FxNode::Code::placeholder && node.code != ir::FxNode::Code::output) list.push_back(node.target);
  return list;
}

Tensor example(Tensor const& x) { return relu(x + transpose(x, 0, 1) + 1.0); }
struct Mlp {
  nn::Linear fc1{4, 8}, fc2{8, 3};
  Tensor operator()(Tensor const& x) const { return softmax(fc2(relu(fc1(x))), -1); }
  static void fields(auto& self, auto&& field) { field("fc1", self.fc1), field("fc2", self.fc2); }
};
Tensor call_mlp(Mlp const& model, Tensor const& x) { return model(x); }
struct Twice {
  nn::Linear fc{4, 4};
  Tensor operator()(Tensor const& x) const { return fc(fc(x)); }
  static void fields(auto& self, auto&& field) { field("fc", self.fc); }
};
}  // namespace

TEST_CASE("golden: our captures print in FX's form with the structure of PyTorch's") {
  auto const texts = golden::load("compile.json", "fx_text");
  if (!texts) return;
  golden::Tally tally{"compile.fx_text captured"};
  auto const check = [&](ir::Graph const& graph, std::string const& name) {
    for (auto const& [style, suffix] : {std::pair{ir::FxStyle::functional, ""}, {ir::FxStyle::aten, "_core_aten"}}) {
      auto const ours = ir::to_fx(graph, {.style = style});
      auto const theirs = ir::parse_fx((*texts)[name + suffix]["graph"].get<std::string>());
      CHECK_MESSAGE(ir::difference(ours, theirs) == "", ir::to_string(ours));
      ++tally.checked;
    }
  };
  for (bool const gradients : {false, true}) {
    tracer::GradMode const mode(gradients);
    std::vector<ir::Graph> graphs;
    (void)tracer::compile(example, keeping(graphs))(tracer::ones({3, 3}));
    REQUIRE(graphs.size() == 1);
    check(graphs[0], "article_example");
    graphs.clear();
    (void)tracer::compile(call_mlp, keeping(graphs))(Mlp(), tracer::ones({2, 4}));  // the model is an argument
    (void)tracer::compile(Mlp(), keeping(graphs))(tracer::ones({2, 4}));            // the model is the function
    REQUIRE(graphs.size() == 2);
    if (gradients) {  // the tape keeps relu's result too, and takes linear apart
      for (auto const& graph : graphs) CHECK(targets_of(ir::to_fx(graph)) == Strings{"fc1", "torch.relu", "fc2", "softmax"});
    } else {
      for (auto const& graph : graphs) check(graph, "mlp");
    }
  }
}

TEST_CASE("a node carries the path of the layer that called it, and passes keep it") {
  tracer::NoGrad const off;
  std::vector<ir::Graph> graphs;
  (void)tracer::compile(Mlp(), keeping(graphs))(tracer::ones({2, 4}));
  auto const& graph = graphs.at(0);
  CHECK(modules_of(graph) == Strings{"fc1", "", "fc2", ""});
  CHECK(inputs_of(graph) == Strings{"args[0]", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"});
  CHECK(ir::to_string(graph).find("  @ fc1\n") != std::string::npos);
  CHECK(ir::equal(ir::parse_graph(ir::to_string(graph)), graph));
  CHECK(modules_of(ir::parse_graph(ir::to_string(graph))) == modules_of(graph));
  auto const plain = ir::merge_common(ir::eliminate_dead_code(ir::decompose(graph)));
  auto const modules = modules_of(plain);
  REQUIRE(modules.size() > 4);
  CHECK(modules.front() == "fc1");
  CHECK(modules.back() == "");
  CHECK(std::ranges::count(modules, "fc1") == std::ranges::count(modules, "fc2"));
  CHECK(ir::difference(ir::to_fx(ir::decompose(graph, [](ir::OpDef const& op) { return &op != &ir::ops::linear; })), ir::to_fx(graph)) == "");

  auto scalar = graph;
  scalar.outputs = {scalar.add(ir::ops::sum, {{scalar.outputs[0], {}}}, ir::default_attrs(ir::ops::sum))};
  auto const joint = ir::with_gradients(scalar, std::array{1});
  CHECK(std::ranges::count(modules_of(joint), "fc2") > 1);
}

TEST_CASE("paths go through containers, nested layers and two models") {
  tracer::NoGrad const off;
  std::vector<ir::Graph> graphs;
  tracer::manual_seed(1);
  nn::Gpt const gpt({.vocabulary = 8, .context = 4, .layers = 2, .heads = 2, .features = 4});
  (void)tracer::compile([](nn::Gpt const& model, Tensor const& x) { return model(x); }, keeping(graphs))(
      gpt, tracer::index_tensor(std::array<std::int64_t, 3>{1, 2, 3}, {1, 3}));
  auto const modules = modules_of(graphs.at(0));
  for (std::string const path : {"tokens", "blocks.0", "blocks.0.norm1", "blocks.0.qkv", "blocks.1", "blocks.1.down", "norm"})
    CHECK_MESSAGE(std::ranges::count(modules, path) > 0, path);
  auto const text = ir::to_string(ir::to_fx(graphs[0]));
  for (std::string const part : {"= call_module[target=tokens](args = (%args_1,), kwargs = {})", "= call_module[target=blocks.1.down](args = (",
                                 "= get_attr[target=positions.weight]", "call_method[target=permute]"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part << "\n" << text);

  graphs.clear();
  (void)tracer::compile([](Mlp const& a, Mlp const& b, Tensor const& x) { return a(x) + b(x); }, keeping(graphs))(Mlp(), Mlp(), tracer::ones({2, 4}));
  CHECK(modules_of(graphs.at(0)) == Strings{"args.0.fc1", "", "args.0.fc2", "", "args.1.fc1", "", "args.1.fc2", "", ""});
  auto const both = ir::to_string(ir::to_fx(graphs[0]));
  CHECK_MESSAGE(both.find("call_module[target=args.1.fc2](args = (%relu_1,), kwargs = {})") != std::string::npos, both);
}

TEST_CASE("a layer that is called twice gives two call_module nodes") {
  tracer::NoGrad const off;
  std::vector<ir::Graph> graphs;
  (void)tracer::compile(Twice(), keeping(graphs))(tracer::ones({2, 4}));
  CHECK(modules_of(graphs.at(0)) == Strings{"fc", "fc@1"});
  CHECK(ir::to_string(ir::to_fx(graphs[0])) == R"(graph():
    %args_0 : [num_users=1] = placeholder[target=args_0]
    %fc : [num_users=1] = call_module[target=fc](args = (%args_0,), kwargs = {})
    %fc_1 : [num_users=1] = call_module[target=fc](args = (%fc,), kwargs = {})
    return fc_1)");
}

TEST_CASE("a prefix that is recorded again keeps its layers") {
  tracer::NoGrad const off;
  std::vector<ir::Graph> graphs;
  auto options = keeping(graphs);
  options.fullgraph = false;
  Mlp const model;
  auto const fast = tracer::compile(
      [&](Mlp const& m, Tensor const& x, double const& way) {
        Tensor const y = m.fc1(x);
        return way > 0 ? relu(y) : sigmoid(m.fc2(y));
      },
      options);
  (void)fast(model, tracer::ones({2, 4}), 1.0);
  (void)fast(model, tracer::ones({2, 4}), -1.0);
  REQUIRE(graphs.size() == 2);
  CHECK(modules_of(graphs[0]) == Strings{"fc1", ""});
  CHECK(modules_of(graphs[1]) == Strings{"fc1", "fc2", ""});
}
