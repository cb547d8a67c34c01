#pragma once
// Training steps of models as graphs: what planned memory and counts of kernels are asserted of. Include behind the imports of base, ir, tracer and nn;
// it includes nothing.

namespace support {
using namespace tenon::tracer;
namespace nn = tenon::nn;

/// Three layers of 512 with gelu between them.
struct Mlp {
  nn::Linear first{256, 512}, second{512, 512}, last{512, 10};
  Tensor operator()(Tensor const& x) const { return last(gelu(second(gelu(first(x))))); }
  static void fields(auto& self, auto&& field) { field("first", self.first), field("second", self.second), field("last", self.last); }
};
/// Two convolutions with relu and max pools, and a linear layer, for images [B, 3, 16, 16].
struct Cnn {
  nn::Conv2d first{3, 16, 3, {.padding = 1}}, second{16, 32, 3, {.padding = 1}};
  nn::Linear last{32 * 4 * 4, 10};
  Tensor operator()(Tensor const& x) const { return last(flatten(max_pool2d(relu(second(max_pool2d(relu(first(x)), 2))), 2), 1)); }
  static void fields(auto& self, auto&& field) { field("first", self.first), field("second", self.second), field("last", self.last); }
};

/// The graphs that a backend is given while `body` runs compiled.
template <class Body>
std::vector<tenon::ir::Graph> captured(Body const& body) {
  std::vector<tenon::ir::Graph> graphs;
  body([&graphs](tenon::ir::Graph const& graph) -> Runner {
    graphs.push_back(graph);
    return reference_backend(graph);
  });
  return graphs;
}
/// Forward, backward and an update by Sgd with momentum: the graph of later steps, when the optimizer's state is there.
template <class Model>
tenon::ir::Graph training_step(Model model, Tensor const& x, Tensor const& y) {
  return captured([&](Backend const& backend) {
           nn::Sgd optimizer(nn::parameters(model), {.lr = 0.01, .momentum = 0.9});
           auto const step = compile(
               [&optimizer](Model& net, Tensor const& inputs, Tensor const& targets) {
                 auto const logits = net(inputs);
                 Tensor loss = logits.shape().size() == 3 ? cross_entropy(flatten(logits, 0, 1), flatten(targets)) : cross_entropy(logits, targets);
                 loss.backward();
                 optimizer.step();
                 optimizer.zero_grad();
                 return loss.detach();
               },
               {.fullgraph = true, .backend = backend, .name = "step"});
           for (int k = 0; k < 4; ++k) (void)step(model, x, y);
         })
      .back();
}
/// The graphs by name.
inline std::vector<std::pair<std::string, tenon::ir::Graph>> training_steps() {
  manual_seed(1);
  std::vector<std::pair<std::string, tenon::ir::Graph>> list;
  list.emplace_back("MLP", training_step(Mlp(), randn({256, 256}), randint(0, 10, {256})));
  list.emplace_back("CNN", training_step(Cnn(), randn({16, 3, 16, 16}), randint(0, 10, {16})));
  list.emplace_back("GPT", training_step(nn::Gpt({.vocabulary = 64, .context = 64, .layers = 3, .heads = 4, .features = 32}), randint(0, 64, {8, 64}),
                                         randint(0, 64, {8, 64})));
  return list;
}

}  // namespace support
