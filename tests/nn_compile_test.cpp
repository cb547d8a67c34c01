// Models, eager against compiled, bit for bit: values, gradients, strides, what shares memory, and the weights after each update, with as much of a
// training step compiled as may be, in training and evaluation, over batches of several sizes.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
import tenon.nn;
#include "compared.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::exactly;
using support::graphs;
using support::same_memory;

namespace {
// B batch, C channels, T tokens.
struct Mlp {  // the tour's
  nn::Linear hidden{64, 32}, output{32, 10};
  Tensor operator()(Tensor const& x) const { return output(relu(hidden(x))); }
  static void fields(auto& self, auto&& field) { field("hidden", self.hidden), field("output", self.output); }
};
struct Dropped {  // behaves otherwise in training
  nn::Linear first{8, 16}, second{16, 4};
  nn::LayerNorm norm{16};
  bool training = true;
  Tensor operator()(Tensor const& x) const { return second(dropout(gelu(norm(first(x))), 0.25, training)); }
  static void fields(auto& self, auto&& field) {
    field("first", self.first), field("second", self.second), field("norm", self.norm), field("training", self.training);
  }
};
struct Cnn {
  nn::Conv2d first{1, 4, 3, {.padding = 1}}, second{4, 6, 3, {.stride = 2}};
  nn::Linear head{24, 5};
  Tensor operator()(Tensor const& x) const {  // [B, 1, 10, 10]
    Tensor const halved = max_pool2d(relu(first(x)), 2);
    return head(flatten(silu(second(avg_pool2d(halved, 2, 1, 1))), 1));
  }
  static void fields(auto& self, auto&& field) { field("first", self.first), field("second", self.second), field("head", self.head); }
};
struct Words {
  nn::Embedding table{12, 6};
  nn::Linear head{6, 3, false};
  Tensor operator()(Tensor const& tokens) const { return head(mean(table(tokens), {1})); }  // [B, T] i64
  static void fields(auto& self, auto&& field) { field("table", self.table), field("head", self.head); }
};

// What differs from model to model: a batch of n, and the scores [rows, classes] of which the loss is taken.
template <class Model>
struct Task;
template <>
struct Task<Mlp> {
  static std::pair<Tensor, Tensor> batch(int n) { return {rand({n, 64}), randint(0, 10, {n})}; }
};
template <>
struct Task<Dropped> {
  static std::pair<Tensor, Tensor> batch(int n) { return {randn({n, 8}), randint(0, 4, {n})}; }
};
template <>
struct Task<Cnn> {
  static std::pair<Tensor, Tensor> batch(int n) { return {randn({n, 1, 10, 10}), randint(0, 5, {n})}; }
};
template <>
struct Task<Words> {
  static std::pair<Tensor, Tensor> batch(int n) { return {randint(0, 12, {n, 5}), randint(0, 3, {n})}; }
};
template <>
struct Task<nn::Gpt> {
  static std::pair<Tensor, Tensor> batch(int n) { return {randint(0, 11, {n, 6}), randint(0, 11, {n, 6})}; }
};
template <class Model>
Model made() {
  manual_seed(7);
  if constexpr (std::is_same_v<Model, nn::Gpt>)
    return nn::Gpt({.vocabulary = 11, .context = 6, .layers = 2, .heads = 2, .features = 8});
  else
    return Model();
}
Tensor loss_of(Tensor const& scores, Tensor const& targets) {
  return scores.rank() == 3 ? cross_entropy(flatten(scores, 0, 1), flatten(targets)) : cross_entropy(scores, targets);
}

enum class Compile { nothing, forward, backward, step };
struct Trained {
  std::vector<std::string> log;  ///< per batch, everything that can be seen
  std::vector<int> graphs;       ///< after each batch
  Explanation report;
};

template <class Model>
Trained train(Compile what, auto const& make_optimizer, std::span<int const> batches) {
  Model model = made<Model>();
  auto optimizer = make_optimizer(nn::parameters(model));
  using Pair = std::pair<Tensor, Tensor>;
  auto const forward = [](Model const& net, Tensor const& x) { return net(x); };
  auto const backward = [](Model const& net, Tensor const& x, Tensor const& y) {
    Tensor const scores = net(x), loss = loss_of(scores, y);
    loss.backward();
    return Pair(scores.detach(), loss.detach());
  };
  auto const step = [&](Model const& net, Tensor const& x, Tensor const& y) {
    optimizer.zero_grad();
    auto both = backward(net, x, y);
    optimizer.step();
    return both;
  };
  auto const fast_forward = compile(forward);
  auto const fast_backward = compile(backward);
  auto const fast_step = compile(step);
  auto const& state = what == Compile::step ? fast_step.state() : what == Compile::backward ? fast_backward.state() : fast_forward.state();
  auto const update = [&](Model const& net, Tensor const& x, Tensor const& y) {
    if (what == Compile::nothing) return step(net, x, y);
    if (what == Compile::step) return fast_step(net, x, y);
    optimizer.zero_grad();
    Pair both;
    if (what == Compile::backward) {
      both = fast_backward(net, x, y);
    } else {
      Tensor const scores = fast_forward(net, x), loss = loss_of(scores, y);
      loss.backward();
      both = {scores.detach(), loss.detach()};
    }
    optimizer.step();
    return both;
  };
  Trained trained;
  int number = 0;
  for (int const n : batches) {
    manual_seed(static_cast<std::uint64_t>(100 + number++));
    auto const [x, y] = Task<Model>::batch(n);
    auto text = exactly(update(model, x, y));
    for (auto const& [name, parameter] : nn::named_parameters(model))
      text += std::format("{}: {}\n  grad {}\n", name, exactly(parameter), exactly(parameter.grad()));
    trained.log.push_back(std::move(text));
    trained.graphs.push_back(describe(const_cast<State&>(state)).graphs);
  }
  trained.report = describe(const_cast<State&>(state));
  return trained;
}

auto const sgd = [](std::vector<Tensor> p) { return nn::Sgd(std::move(p), {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}); };
auto const adam = [](std::vector<Tensor> p) { return nn::adamw(std::move(p), {.lr = 0.01, .weight_decay = 0.1, .amsgrad = true}); };

template <class Model>
void agree(auto const& make_optimizer, std::vector<int> const& graphs_of_step) {
  std::array const batches{4, 4, 3, 5, 1, 4};
  auto const eager = train<Model>(Compile::nothing, make_optimizer, batches);
  for (auto const what : {Compile::forward, Compile::backward, Compile::step}) {
    auto const fast = train<Model>(what, make_optimizer, batches);
    for (std::size_t k = 0; k < eager.log.size(); ++k) REQUIRE_MESSAGE(fast.log[k] == eager.log[k], "compiled ", static_cast<int>(what), ", batch ", k);
    CHECK(fast.report.breaks.empty());
    CHECK(fast.report.eager_calls == 0);
    auto const expected = what == Compile::step ? graphs_of_step : std::vector{1, 1, 2, 2, 3, 3};
    CHECK_MESSAGE(fast.graphs == expected, to_string(fast.report));
  }
}
}  // namespace

// A batch of another size is one more graph, a batch of 1 another; Adam's step number is one more the first time that it changes.
TEST_CASE("models: the tour's MLP, eager and compiled") {
  agree<Mlp>(sgd, {1, 1, 2, 2, 3, 3});
  agree<Mlp>(adam, {1, 2, 3, 3, 4, 4});
}
TEST_CASE("models: with a norm and dropout, eager and compiled") {
  agree<Dropped>(sgd, {1, 1, 2, 2, 3, 3});
  agree<Dropped>(adam, {1, 2, 3, 3, 4, 4});
}
TEST_CASE("models: convolutions and pools, eager and compiled") {
  agree<Cnn>(sgd, {1, 1, 2, 2, 3, 3});
  agree<Cnn>(adam, {1, 2, 3, 3, 4, 4});
}
TEST_CASE("models: embeddings, eager and compiled") {
  agree<Words>(sgd, {1, 1, 2, 2, 3, 3});
  agree<Words>(adam, {1, 2, 3, 3, 4, 4});
}
TEST_CASE("models: GPT, eager and compiled") {
  agree<nn::Gpt>(sgd, {1, 1, 2, 2, 3, 3});
  agree<nn::Gpt>(adam, {1, 2, 3, 3, 4, 4});
}

TEST_CASE("training and evaluation alternate on one compiled model: two graphs, each as eagerly") {
  Dropped eager = made<Dropped>(), fast = made<Dropped>();
  auto const forward = compile([](Dropped const& net, Tensor const& x) { return net(x); });
  for (int k = 0; k < 8; ++k) {
    Tensor const x = full({4, 8}, 0.1 * k);
    for (Dropped* const net : {&eager, &fast}) net->training = k % 2 == 0;
    GradMode const mode(k % 2 == 0);
    manual_seed(static_cast<std::uint64_t>(k));
    Tensor const want = eager(x);
    manual_seed(static_cast<std::uint64_t>(k));
    Tensor const got = forward(fast, x);
    CHECK(exactly(got) == exactly(want));
    CHECK(got.requires_grad() == (k % 2 == 0));
  }
  CHECK(graphs(forward) == 2);
  CHECK(describe(forward.state()).recompiles.size() == 1);
}

TEST_CASE("evaluation draws nothing, training draws as many numbers compiled as eagerly") {
  Dropped model = made<Dropped>();
  auto const forward = compile([](Dropped const& net, Tensor const& x) { return net(x); });
  for (bool const training : {true, false, true, false})
    for (bool const compiled : {false, true}) {
      model.training = training;
      manual_seed(3);
      auto const before = generator_state().offset;
      (void)(compiled ? forward(model, ones({2, 8})) : model(ones({2, 8})));
      CHECK(generator_state().offset - before == (training ? 1 : 0));
    }
}

TEST_CASE("a learning rate that changes each step, with clipping: no graph more") {
  std::array<std::vector<std::string>, 2> logs;
  for (bool const compiled : {false, true}) {
    Mlp model = made<Mlp>();
    nn::Sgd optimizer(nn::parameters(model), {.lr = 0.1, .momentum = 0.9});
    auto const schedule = nn::warmup(0.5, 3, nn::cosine(0.5, 10, 0.01));
    auto const step = [&](Mlp const& net, Tensor const& x, Tensor const& y) {
      optimizer.zero_grad();
      Tensor const loss = cross_entropy(net(x), y);
      loss.backward();
      Tensor const norm = nn::clip_grad_norm(nn::parameters(net), 0.5);
      optimizer.step();
      return std::pair(loss.detach(), norm);
    };
    auto const fast = compile(step, {.fullgraph = true});
    for (int k = 0; k < 10; ++k) {
      manual_seed(static_cast<std::uint64_t>(k));
      auto const [x, y] = Task<Mlp>::batch(4);
      optimizer.options.lr = schedule(k);
      logs[compiled].push_back(exactly(compiled ? fast(model, x, y) : step(model, x, y)) + exactly(model));
    }
    if (compiled) CHECK(graphs(fast) == 2);
  }
  CHECK(logs[0] == logs[1]);
}

TEST_CASE("gradients over several batches accumulate before one update, part compiled, part not") {
  std::array<std::string, 2> ends;
  for (bool const compiled : {false, true}) {
    Cnn model = made<Cnn>();
    nn::Adam optimizer(nn::parameters(model), {.lr = 0.01});
    auto const backward = [](Cnn const& net, Tensor const& x, Tensor const& y, double share) { (cross_entropy(net(x), y) * share).backward(); };
    auto const fast = compile(backward);
    auto const update = compile([&] {
      optimizer.step();
      optimizer.zero_grad();
    });
    for (int k = 0; k < 12; ++k) {
      manual_seed(static_cast<std::uint64_t>(k));
      auto const [x, y] = Task<Cnn>::batch(k % 3 + 1);
      if (compiled)
        fast(model, x, y, 1.0 / (1 + k % 3));
      else
        backward(model, x, y, 1.0 / (1 + k % 3));
      if (k % 3 != 2) continue;
      if (compiled)
        update();
      else
        update.function()();
    }
    ends[compiled] = exactly(model);
  }
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("models in other dtypes: f64, bf16 and f16 weights") {
  for (auto const dtype : {DType::f64, DType::bf16, DType::f16}) {
    std::array<std::string, 2> logs;
    for (bool const compiled : {false, true}) {
      Dropped model = made<Dropped>();
      for (Tensor* const p : {&model.first.weight, &model.first.bias, &model.second.weight, &model.second.bias, &model.norm.weight, &model.norm.bias})
        *p = to(p->detach(), dtype).set_requires_grad();
      nn::Sgd optimizer(nn::parameters(model), {.lr = 0.1});
      auto const step = [&](Dropped const& net, Tensor const& x, Tensor const& y) {
        Tensor const scores = net(x), loss = cross_entropy(scores, y);
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        return std::pair(scores.detach(), loss.detach());
      };
      auto const fast = compile(step);
      for (int const n : {3, 3, 5, 2}) {
        manual_seed(static_cast<std::uint64_t>(n));
        auto const [x, y] = Task<Dropped>::batch(n);
        logs[compiled] += exactly(compiled ? fast(model, to(x, dtype), y) : step(model, to(x, dtype), y)) + exactly(model);
      }
    }
    CHECK(logs[0] == logs[1]);
  }
}

namespace {
// Everything in a list that shares memory, by number, with the distance of the starts.
std::string shared(std::vector<Tensor> const& list) {
  std::string text;
  for (std::size_t a = 0; a < list.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (same_memory(list[a], list[b])) text += std::format("{} in {} at {}\n", a, b, list[a].impl()->offset - list[b].impl()->offset);
  return text;
}
}  // namespace

TEST_CASE("what a model gives away beside its scores: inputs, weights, views and hidden values share memory as eagerly") {
  auto const forward = [](Mlp const& net, Tensor const& x) {
    Tensor const hidden = relu(net.hidden(x)), scores = net.output(hidden);
    return std::vector{x,
                       flatten(unsqueeze(x, 1), 1),
                       slice(x, 0, 1),
                       net.hidden.weight,
                       transpose(net.output.weight, 0, 1),
                       select(net.output.bias, 0, 3),
                       hidden,
                       reshape(hidden, {2, -1}),
                       scores,
                       transpose(scores, 0, 1),
                       contiguous(scores),
                       scores.detach(),
                       clone(scores)};
  };
  Mlp const model = made<Mlp>();
  auto const fast = compile(forward);
  for (int const n : {4, 4, 6, 2}) {
    Tensor const x = rand({n, 64});
    auto want = forward(model, x), got = fast(model, x);
    CHECK(exactly(got) == exactly(want));
    auto const parameters = nn::parameters(model);
    for (auto* const list : {&want, &got}) list->insert(list->end(), parameters.begin(), parameters.end()), list->push_back(x);
    CHECK(shared(got) == shared(want));
    CHECK(got[0].impl() == x.impl());
    CHECK(got[3].impl() == model.hidden.weight.impl());
  }
  CHECK(graphs(fast) == 2);
}

TEST_CASE("inputs of other strides give the same values, gradients and strides: transposed, channels last, sliced, expanded") {
  Cnn const model = made<Cnn>();
  auto const forward = [](Cnn const& net, Tensor const& x) {
    Tensor const scores = net(x), loss = sum(scores * scores);
    return std::pair(scores, gradients(loss, std::array{x, net.first.weight, net.head.bias}));
  };
  auto const fast = compile(forward);
  for (int turn = 0; turn < 2; ++turn)
    for (int const n : {3, 2}) {
      std::array const inputs{randn({n, 1, 10, 10}), transpose(randn({n, 1, 10, 10}), 2, 3), permute(randn({n, 10, 10, 1}), {0, 3, 1, 2}),
                              slice(randn({n, 1, 10, 20}), 3, 0, 20, 2), expand(randn({1, 1, 10, 10}), {n, 1, 10, 10})};
      for (auto const& input : inputs) {
        Tensor x = input.detach();
        x.set_requires_grad();
        CHECK(exactly(fast(model, x)) == exactly(forward(model, x)));
      }
    }
  CHECK(describe(fast.state()).eager_calls == 0);
}

TEST_CASE("weights that are loaded, shared or exchanged between calls are never stale") {
  nn::Gpt model = made<nn::Gpt>();
  auto const fast = compile([](nn::Gpt const& net, Tensor const& x) { return net(x); });
  Tensor const x = index_tensor(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, {2, 3});
  auto const check = [&] { CHECK(exactly(fast(model, x)) == exactly(model(x))); };
  check();
  {
    NoGrad const off;
    for (auto& parameter : nn::parameters(model)) parameter.mul_(1.5);
  }
  check();
  manual_seed(99);
  model.blocks[1] = nn::GptBlock(model.config);
  check();
  std::swap(model.blocks[0], model.blocks[1]);
  check();
  CHECK(graphs(fast) == 1);
  model.blocks[1] = model.blocks[0];  // one layer twice
  check();
  model.blocks.pop_back();
  check();
  model.blocks.emplace_back(model.config);
  check();
}
