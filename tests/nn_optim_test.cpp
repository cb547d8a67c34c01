#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
import tenon.nn;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::caught;

namespace {
using Numbers = std::vector<double>;
Numbers numbers(Tensor const& x) { return x.to_vector<double>(); }
template <class Compiled>
int graphs(Compiled const& fn) {
  return describe(fn.state()).graphs;
}

// torch.optim's update of one number, in f64, as its documentation writes it.
struct SlowSgd {
  nn::SgdOptions options;
  std::optional<double> velocity{};
  double step(double parameter, double gradient) {
    gradient += options.weight_decay * parameter;
    if (options.momentum != 0) {
      velocity = velocity ? options.momentum * *velocity + (1 - options.dampening) * gradient : gradient;
      gradient = options.nesterov ? gradient + options.momentum * *velocity : *velocity;
    }
    return parameter - options.lr * gradient;
  }
};
struct SlowAdam {
  nn::AdamOptions options;
  double mean = 0, square = 0, largest = 0;
  int steps = 0;
  double step(double parameter, double gradient) {
    auto const& o = options;
    ++steps;
    if (o.decoupled)
      parameter -= o.lr * o.weight_decay * parameter;
    else
      gradient += o.weight_decay * parameter;
    mean = o.beta1 * mean + (1 - o.beta1) * gradient;
    square = o.beta2 * square + (1 - o.beta2) * gradient * gradient;
    largest = std::max(largest, square);
    double const corrected = (o.amsgrad ? largest : square) / (1 - std::pow(o.beta2, steps));
    return parameter - o.lr * (mean / (1 - std::pow(o.beta1, steps))) / (std::sqrt(corrected) + o.eps);
  }
};

// Two parameters of which the second has no gradient in every third step, against the slow twin, eagerly and compiled.
template <class Optimizer, class Slow, class Options>
void compare_with_slow(Options const& options) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal;
  std::array<std::vector<Tensor>, 2> parameters;
  std::vector<Slow> slow(6, Slow{options});
  Numbers expected(6);
  for (auto& x : expected) x = normal(random);
  for (auto& list : parameters)
    for (std::size_t const first : {0, 3}) list.push_back(tensor(std::span(expected).subspan(first, 3), 3, DType::f64).set_requires_grad());
  Optimizer eager(parameters[0], options), captured(parameters[1], options);
  auto const fast = compile([&](std::vector<Tensor>&) { captured.step(); }, {.fullgraph = true});
  for (int step = 0; step < 9; ++step) {
    for (std::size_t k = 0; k < 2; ++k) {
      Numbers gradient(3);
      for (auto& g : gradient) g = normal(random) * (step == 4 ? 30 : 1);
      bool const absent = k == 1 && step % 3 == 0;
      for (auto& list : parameters) list[k].set_grad(absent ? Tensor() : tensor(gradient, 3, DType::f64));
      for (std::size_t i = 0; i < 3 && !absent; ++i) expected[3 * k + i] = slow[3 * k + i].step(expected[3 * k + i], gradient[i]);
    }
    eager.step();
    fast(parameters[1]);
    for (std::size_t k = 0; k < 2; ++k) {
      auto const have = numbers(parameters[0][k]);
      for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(have[i] - expected[3 * k + i]) < 1e-12);
      CHECK(numbers(parameters[1][k]) == have);
    }
  }
}
struct Mlp {
  nn::Linear hidden{2, 16}, output{16, 2};
  Tensor operator()(Tensor const& x) const { return output(tanh(hidden(x))); }
  static void fields(auto& self, auto&& field) { field("hidden", self.hidden), field("output", self.output); }
};
}  // namespace

TEST_CASE("optimizers agree with a slow twin, eagerly and compiled, also where a gradient is absent") {
  for (double const momentum : {0.0, 0.9})
    for (double const dampening : {0.0, 0.3})
      for (double const decay : {0.0, 0.1}) {
        compare_with_slow<nn::Sgd, SlowSgd>(nn::SgdOptions{.lr = 0.1, .momentum = momentum, .dampening = dampening, .weight_decay = decay});
        if (momentum > 0 && dampening == 0)
          compare_with_slow<nn::Sgd, SlowSgd>(nn::SgdOptions{.lr = 0.1, .momentum = momentum, .weight_decay = decay, .nesterov = true});
      }
  for (bool const amsgrad : {false, true})
    for (bool const decoupled : {false, true})
      for (double const decay : {0.0, 0.1})
        compare_with_slow<nn::Adam, SlowAdam>(
            nn::AdamOptions{.lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = decay, .amsgrad = amsgrad, .decoupled = decoupled});
}

TEST_CASE("a number of the host that varies costs one recompile: step number, dampening, learning rate") {
  auto const counts = [](auto& optimizer, Tensor& parameter, nn::Schedule const& schedule) {
    auto const fast = compile(
        [&](Tensor& p) {
          sum(p * p).backward();
          optimizer.step();
          optimizer.zero_grad();
        },
        {.fullgraph = true});
    std::vector<int> list;
    for (int step = 0; step < 6; ++step) {
      optimizer.options.lr = schedule(step);
      fast(parameter);
      list.push_back(graphs(fast));
    }
    return list;
  };
  Tensor p = ones(3).set_requires_grad();
  nn::Adam adam({p}, {});
  CHECK(counts(adam, p, nn::constant(0.1)) == std::vector{1, 2, 2, 2, 2, 2});
  nn::Adam decayed = nn::adamw({p});
  CHECK(counts(decayed, p, nn::warmup(0.1, 3, nn::cosine(0.1, 3))) == std::vector{1, 2, 2, 2, 2, 2});
  nn::Sgd sgd({p}, {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
  CHECK(counts(sgd, p, nn::constant(0.1)) == std::vector{1, 2, 2, 2, 2, 2});
  nn::Sgd plain({p}, {.lr = 0.1});
  CHECK(counts(plain, p, nn::constant(0.1)) == std::vector{1, 1, 1, 1, 1, 1});
}

TEST_CASE("clip_grad_norm scales all gradients together, and only down") {
  Tensor a = ones(2).set_requires_grad(), b = ones({2, 1}).set_requires_grad(), none = ones(2).set_requires_grad();
  std::vector<Tensor> const list{a, none, b};
  auto const set = [&] { a.set_grad(tensor({3, 0})), b.set_grad(reshape(tensor({0, 4}), {2, 1})); };
  set();
  CHECK(nn::clip_grad_norm(list, 10).item() == 5);
  CHECK(numbers(a.grad()) == Numbers{3, 0});
  CHECK(nn::clip_grad_norm(list, 1).item() == 5);
  CHECK(std::abs(numbers(a.grad())[0] - 0.6) < 1e-6);
  CHECK(std::abs(numbers(b.grad())[1] - 0.8) < 1e-6);
  CHECK_FALSE(none.grad().defined());
  auto const fast = compile([](std::vector<Tensor> const& parameters) { return nn::clip_grad_norm(parameters, 1); }, {.fullgraph = true});
  for (double const scale : {1.0, 0.01, 7.0}) {  // over and under the bound: one graph
    set();
    a.grad().mul_(scale);
    Numbers const before = numbers(a.grad());
    double const norm = fast(list).item();
    CHECK(std::abs(norm - std::hypot(3 * scale, 4)) < 1e-5);
    CHECK(std::abs(numbers(a.grad())[0] - before[0] * std::min(1.0, 1 / (norm + 1e-6))) < 1e-6);
  }
  CHECK(graphs(fast) == 1);
  CHECK(nn::clip_grad_norm(std::array{none}, 1).item() == 0);
  Tensor small = ones(4, DType::f16).set_requires_grad();  // squares beyond f16's 65504
  small.set_grad(full(4, 500.0, DType::f16));
  CHECK(nn::clip_grad_norm(std::array{small}, 1).item() == 1000);
  CHECK(small.grad().dtype() == DType::f16);
  CHECK(std::abs(numbers(small.grad())[0] - 0.5) < 1e-3);
}

TEST_CASE("schedules by hand") {
  auto const values = [](nn::Schedule const& schedule, std::initializer_list<int> steps) {
    Numbers list;
    for (int step : steps) list.push_back(schedule(step));
    return list;
  };
  CHECK(values(nn::constant(0.5), {0, 1, 1000}) == Numbers{0.5, 0.5, 0.5});
  CHECK(values(nn::warmup(1, 4, nn::constant(1)), {0, 1, 2, 3, 4, 9}) == Numbers{0, 0.25, 0.5, 0.75, 1, 1});
  CHECK(values(nn::warmup(1, 0, nn::constant(3)), {0, 1}) == Numbers{3, 3});
  auto const half = values(nn::cosine(1, 4, 0.2), {0, 1, 2, 3, 4, 100});
  Numbers const expected{1, 0.6 + 0.4 * std::numbers::sqrt2 / 2, 0.6, 0.6 - 0.4 * std::numbers::sqrt2 / 2, 0.2, 0.2};
  for (std::size_t k = 0; k < half.size(); ++k) CHECK(std::abs(half[k] - expected[k]) < 1e-15);
  CHECK(values(nn::cosine(1, 0), {0, 1}) == Numbers{0, 0});
  auto const both = nn::warmup(2, 2, nn::cosine(2, 2));
  CHECK(values(both, {0, 1, 2}) == Numbers{0, 1, 2});
  CHECK(std::abs(both(3) - 1) < 1e-15);
  CHECK(both(4) == 0);
  CHECK(caught([] { nn::warmup(1, -1, nn::constant(1)); }) == "warmup: the number of steps must not be negative, but is -1");
  CHECK(caught([] { nn::warmup(1, 1, {}); }) == "warmup: no schedule is given for what comes after");
  CHECK(caught([] { nn::cosine(1, -2); }) == "cosine: the number of steps must not be negative, but is -2");
}

TEST_CASE("what an optimizer refuses") {
  Tensor const p = ones(2).set_requires_grad();
  CHECK(caught([] { nn::Sgd({}, {}); }) == "sgd: no parameters are given");
  CHECK(caught([&] { nn::Adam({p, {}}, {}); }) == "adam: parameter 1 is undefined");
  CHECK(caught([&] { nn::Adam({p, p}, {}); }) == "adam: parameters 0 and 1 are the same tensor");
  CHECK(caught([&] { nn::Sgd({p}, {.lr = -1}); }) == "sgd: lr must lie in [0, inf), not -1");
  CHECK(caught([&] { nn::Sgd({p}, {.nesterov = true}); }) == "sgd: nesterov needs a momentum and no dampening, not momentum 0 and dampening 0");
  CHECK(caught([&] { nn::Adam({p}, {.beta2 = 1}); }) == "adam: beta2 must lie in [0, 1), not 1");
  CHECK(caught([&] { nn::Adam({p}, {.eps = std::nan("")}); }) == "adam: eps must lie in [0, inf), not nan");
}

TEST_CASE("a small network learns exclusive or, eagerly and compiled alike") {
  Tensor const x = reshape(tensor({0, 0, 0, 1, 1, 0, 1, 1}), {4, 2}), y = index_tensor(std::array<std::int64_t, 4>{0, 1, 1, 0}, {4});
  auto const train = [&](bool compiled) {
    manual_seed(3);
    Mlp model;
    nn::Adam optimizer(nn::parameters(model), {.lr = 0.05});
    auto const step = [&](Mlp& net, Tensor const& inputs, Tensor const& targets) {
      Tensor loss = cross_entropy(net(inputs), targets);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      return loss.detach();
    };
    auto const fast = compile(step, {.fullgraph = true});
    Numbers losses;
    for (int k = 0; k < 150; ++k) losses.push_back(compiled ? fast(model, x, y).item() : step(model, x, y).item());
    CHECK(numbers(argmax(model(x), 1)) == Numbers{0, 1, 1, 0});
    if (compiled) CHECK(graphs(fast) == 2);
    return losses;
  };
  auto const eager = train(false);
  CHECK(eager.front() > 0.5);
  CHECK(eager.back() < 0.02);
  CHECK(train(true) == eager);
}
