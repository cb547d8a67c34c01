// nn: layers, optimizers, schedules, data — a model is a struct, training is a loop that you write.
//
// Run it:  ninja -C build && ./build/samples/m_nn
//
// Nothing here is a framework: no trainer calls you back, no base class asks to be derived from. Each piece is a value or a function over tensors,
// so the same lines run eagerly and captured as one graph, and they give the same bits.
import std;
import tenon.base;
import tenon.tracer;
import tenon.nn;
#include "lesson.h"
using namespace tenon::tracer;
using namespace tenon::nn;

namespace {

// Two spirals that wind round each other: 2 features, 2 classes.
struct Spirals {
  Tensor x, y;
};
Spirals spirals(std::int64_t points) {
  std::vector<double> x;
  std::vector<std::int64_t> y;
  for (std::int64_t k = 0; k < points; ++k) {
    std::int64_t const side = k % 2, along = k - side;
    double const radius = std::sqrt(static_cast<double>(along) / static_cast<double>(points)), angle = 6 * radius, sign = side == 0 ? -1 : 1;
    x.push_back(sign * radius * std::cos(angle)), x.push_back(sign * radius * std::sin(angle));
    y.push_back(side);
  }
  return {tensor(x, {points, 2}), index_tensor(y, points)};
}

// 1. A model is a struct.
// Its members are layers, a layer's members are tensors, and `fields` names them. That one list is all that optimizers, captures and files need.
struct Mlp {
  Linear first{2, 32}, second{32, 32}, last{32, 2};
  Tensor operator()(Tensor const& x) const { return last(tanh(second(tanh(first(x))))); }
  static void fields(auto& self, auto&& field) { field("first", self.first), field("second", self.second), field("last", self.last); }
};
void models() {
  heading("a model is a struct");
  manual_seed(1);
  Mlp model;
  for (auto const& [name, parameter] : named_parameters(model)) std::cout << std::format("{:14} {:5} numbers\n", name, parameter.numel());
  std::cout << "A layer draws its weights when it is made: first.bias[0..2] =";
  for (double const value : slice(model.first.bias, 0, 0, 3).to_vector<double>()) std::cout << std::format(" {:+.4f}", value);
  std::cout << '\n';
}

// 2. A training step is four lines, and so is its compiled form.
// Forward, backward, update, forget. `compile` records them once, the backward pass and the optimizer among them, and later calls run the graph.
// Adam divides by numbers that depend on the step: when the second call brings other ones, they become parameters of a second graph.
std::vector<double> train(bool compiled, int steps) {
  manual_seed(2);
  auto const [x, y] = spirals(200);
  Mlp model;
  Adam optimizer(parameters(model), {.lr = 0.01});
  auto const step = [&](Mlp& net, Tensor const& inputs, Tensor const& targets) {
    Tensor loss = cross_entropy(net(inputs), targets);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    return loss.detach();
  };
  auto const fast = compile(step, {.fullgraph = true, .name = "step"});
  std::vector<double> losses;
  for (int k = 0; k < steps; ++k) losses.push_back(compiled ? fast(model, x, y).item() : step(model, x, y).item());
  if (compiled) {
    auto const report = describe(fast.state());
    std::cout << std::format("{} graphs of {} and {} ops in {} calls\n", report.graphs, report.parts.front().ops.size(), report.parts.back().ops.size(),
                             report.calls);
    for (auto const& recompile : report.recompiles) std::cout << "recompiled once: " << recompile.reason.text << '\n';
  } else {
    double const right = mean(to(eq(argmax(model(x), 1), y), DType::f32)).item();
    std::cout << std::format("after {} steps {:.1f} % of the points are told apart\n", steps, 100 * right);
  }
  return losses;
}
void training() {
  heading("eager and compiled");
  auto const eager = train(false, 300), compiled = train(true, 300);
  for (std::size_t const k : {0, 1, 2, 100, 299}) std::cout << std::format("loss {:3}: eager {:.6f}, compiled {:.6f}\n", k, eager[k], compiled[k]);
  std::cout << (eager == compiled ? "All 300 losses are equal bit for bit.\n" : "The losses differ.\n");
}

// 3. Optimizers in a narrow valley.
// f(a, b) = a² / 2 + 25 b² is steep across and flat along. Plain descent has to be slow along for it must not overshoot across; momentum builds up
// speed where the slope keeps its sign; Adam measures each direction in its own size.
void optimizers() {
  heading("optimizers in a narrow valley");
  auto const walk = [](std::string_view name, auto make) {
    Tensor place = tensor({4, 1}).set_requires_grad();
    Tensor const slope = tensor({0.5, 25});
    auto optimizer = make(std::vector{place});
    std::cout << std::format("{:22}", name);
    for (int step = 0; step <= 60; ++step) {
      Tensor const height = sum(place * place * slope);
      if (step % 20 == 0) std::cout << std::format("  f after {:2}: {:9.2e}", step, static_cast<double>(height.item()));
      height.backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    std::cout << '\n';
  };
  walk("SGD", [](auto const& list) { return Sgd(list, {.lr = 0.02}); });
  walk("SGD, momentum 0.8", [](auto const& list) { return Sgd(list, {.lr = 0.02, .momentum = 0.8}); });
  walk("the same, Nesterov", [](auto const& list) { return Sgd(list, {.lr = 0.02, .momentum = 0.8, .nesterov = true}); });
  walk("Adam", [](auto const& list) { return Adam(list, {.lr = 0.2}); });
}

// 4. A schedule is a function of the step.
void schedules() {
  heading("warm-up, then half a cosine");
  auto const schedule = warmup(1.0, 4, cosine(1.0, 12, 0.1));
  for (int step = 0; step < 20; step += 2)
    std::cout << std::format("step {:2}  {:.3f} {}\n", step, schedule(step), std::string(static_cast<std::size_t>(schedule(step) * 40), '#'));
  std::cout << "Set optimizer.options.lr before a step; a compiled step takes it as a number that varies.\n";
}

// 5. Batches.
// A thread prepares batches ahead. Their order is a function of seed and epoch, so a run can be repeated, or resumed at any epoch.
void batches() {
  heading("batches");
  DataLoader loader({arange(0, 10)}, {.batch = 4, .seed = 7});
  auto const doubled = compile([](Tensor const& x) { return x * 2; }, {.name = "doubled"});
  for (int const epoch : {0, 1, 0}) {
    std::cout << "epoch " << epoch << ':';
    loader.start(epoch);
    while (auto const batch = loader.next()) std::cout << ' ' << (*batch)[0].to_string(), (void)doubled((*batch)[0]);
    std::cout << '\n';
  }
  for (auto const& recompile : describe(doubled.state()).recompiles) std::cout << "The last batch is ragged: " << recompile.reason.text << '\n';
}

// 6. Data that is wrong says where.
void errors(std::filesystem::path const& folder) {
  heading("errors");
  std::filesystem::current_path(folder);
  std::ofstream("digits.csv") << "0,0,5,13\n0,0,O,12\n";
  std::ofstream("short.csv") << "0,0,5,13\n0,0,";
  for (auto const* const file : {"digits.csv", "short.csv", "none.csv"}) try {
      read_csv(file);
    } catch (tenon::base::Error const& error) {
      std::cout << error.what() << '\n';
    }
}

// 7. A transformer that learns a sentence by heart.
// Characters in, a guess of the next one out. Gradients are clipped to a joint length of 1, the rate warms up and falls. The whole step, clipping
// and AdamW included, is one captured function; afterwards the model writes by itself, one most likely character at a time.
void transformer(std::filesystem::path const& folder) {
  heading("a character model");
  std::ofstream(folder / "text") << "a tenon fits a mortise; a mortise holds a tenon. ";
  auto const text = read_characters(folder / "text");
  auto const length = std::ssize(text.tokens);
  std::int64_t const window = 16;
  std::vector<std::int64_t> inputs, targets;
  for (std::int64_t start = 0; start < length; ++start)
    for (std::int64_t k = 0; k < window; ++k) {
      inputs.push_back(text.tokens[static_cast<std::size_t>((start + k) % length)]);
      targets.push_back(text.tokens[static_cast<std::size_t>((start + k + 1) % length)]);
    }
  manual_seed(3);
  Gpt model({.vocabulary = std::ssize(text.vocabulary), .context = window, .layers = 2, .heads = 2, .features = 32});
  Adam optimizer = adamw(parameters(model), {.lr = 0.01, .weight_decay = 0.01});
  auto const step = compile(
      [&](Gpt& net, Tensor const& x, Tensor const& y) {
        Tensor loss = cross_entropy(flatten(net(x), 0, 1), flatten(y));
        loss.backward();
        Tensor norm = clip_grad_norm(parameters(net), 1);
        optimizer.step();
        optimizer.zero_grad();
        return std::pair(loss.detach(), norm);
      },
      {.fullgraph = true, .name = "gpt_step"});
  DataLoader loader({index_tensor(inputs, {length, window}), index_tensor(targets, {length, window})}, {.batch = 16, .drop_last = true});
  auto const rate = warmup(0.01, 10, cosine(0.01, 80, 0.001));
  int steps = 0;
  for (int epoch = 0; epoch < 30; ++epoch) {
    loader.start(epoch);
    while (auto const batch = loader.next()) {
      optimizer.options.lr = rate(steps);
      auto const [loss, norm] = step(model, (*batch)[0], (*batch)[1]);
      if (steps++ % 15 == 0)
        std::cout << std::format("step {:2}: loss {:.3f}, norm of the gradients {:.2f}\n", steps - 1, static_cast<double>(loss.item()),
                                 static_cast<double>(norm.item()));
    }
  }
  auto const report = describe(step.state());
  std::cout << std::format("{} steps, {} graphs; the last one has {} ops\n", steps, report.graphs, report.parts.back().ops.size());
  NoGrad const off;
  std::vector<std::int64_t> written(text.tokens.begin(), text.tokens.begin() + 8);
  while (std::ssize(written) < 60) {
    auto const last = std::span(written).last(std::min<std::size_t>(written.size(), window));
    Tensor const logits = model(index_tensor(last, {1, static_cast<std::int64_t>(last.size())}));
    written.push_back(static_cast<std::int64_t>(argmax(select(logits, 1, -1), 1).item()));
  }
  std::cout << "It writes: ";
  for (auto const token : written) std::cout << text.vocabulary[static_cast<std::size_t>(token)];
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  return run_lesson("m_nn", argc, argv, [] {
    auto const folder = std::filesystem::temp_directory_path() / "tenon_m_nn";
    std::filesystem::create_directories(folder);
    models();
    training();
    optimizers();
    schedules();
    batches();
    errors(folder);
    transformer(folder);
    std::filesystem::remove_all(folder);
  });
}
