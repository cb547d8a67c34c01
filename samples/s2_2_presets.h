// The modes and the article's two presets: the first part of s2_2_modes.cpp. Behind lesson.h and `bits`.
#pragma once

// ---- 2.2.a: modes and presets ----

// A. What a mode is.
// `normal` fuses by a fixed rule. `reduce_overhead` keeps launches prepared between calls, so that little but the kernels is left of a call; it matters
// where kernels are short. `max_autotune` times candidates on this machine: how far to fuse, how each kernel walks its rows, who computes each product.
// A backend decides what to do with a mode; this one counts launches as well, and gives the search less time than the 2 s that it has by default.
constexpr double search_seconds = 0.25;
struct Modes {
  std::size_t launches = 0;  ///< of one run of the last graph
  Backend backend(Mode mode) {
    return [this, mode](ir::Graph const& graph) -> Runner {
      fusion::LowerOptions how{.mode = mode == Mode::reduce_overhead ? fusion::Mode::reduce_overhead
                                       : mode == Mode::max_autotune  ? fusion::Mode::max_autotune
                                                                     : fusion::Mode::normal,
                               .tune_seconds = search_seconds};
      if (mode == Mode::max_autotune) how.choices = fusion::tune(graph, how);
      auto program = fusion::plan(graph, how);
      launches = program.launches.size();
      return fusion::runner(std::move(program));
    };
  }
};
struct Preset {
  std::string_view name;
  Mode mode;
  bool fullgraph;
  Dynamic dynamic;
  Options options(Modes& modes) const { return {.mode = mode, .fullgraph = fullgraph, .dynamic = dynamic, .backend = modes.backend(mode)}; }
};

// B. Two workloads.
// Training makes the same step again and again. Serving answers texts of any length: here windows of 8 to 24 tokens, one at a time. The optimizer is SGD
// with momentum, and that is no accident: Adam's correction is a number that differs in every step, and dynamic = false makes numbers part of the graph.
template <class Optimizer>
struct Trained {
  Gpt gpt;
  Optimizer optimizer;
  static void fields(auto& self, auto&& field) { field("gpt", self.gpt); }
};
using Model = Trained<Sgd>;
Model some_model() {
  manual_seed(6);
  Gpt const gpt(GptConfig{.vocabulary = 32, .context = 32, .layers = 1, .heads = 2, .features = 32});
  return {gpt, Sgd(parameters(gpt), {.lr = 1e-2, .momentum = 0.9})};
}
template <class Optimizer>
Tensor train(Trained<Optimizer>& trained, Tensor const& tokens, Tensor const& next) {
  Tensor loss = cross_entropy(flatten(trained.gpt(tokens), 0, 1), next);
  loss.backward();
  trained.optimizer.step();
  trained.optimizer.zero_grad();
  return loss.detach();
}
// How many steps Adam takes with the preset for training, and the error that ends them.
std::pair<int, std::string> adam_with_fixed_numbers(Tensor const& tokens, Tensor const& next) {
  Gpt const gpt = some_model().gpt;
  Trained<Adam> trained{gpt, Adam(parameters(gpt), {})};
  auto const fast = compile(train<Adam>, {.fullgraph = true, .dynamic = Dynamic::never, .backend = reference_backend, .name = "train"});
  for (int step = 0; step < 20; ++step) try {
      (void)fast(trained, tokens, next);
    } catch (Error const& error) {
      return {step, error.what()};
    }
  fail("20 steps of Adam fit in 8 graphs");
}
Tensor serve(Model& trained, Tensor const& tokens) {
  NoGrad const off;
  return trained.gpt(tokens);
}
double worst_gap(Tensor const& a, Tensor const& b) {
  auto const x = a.to_vector<double>(), y = b.to_vector<double>();
  if (x.size() != y.size()) fail("{} elements and {} are no equal results", x.size(), y.size());
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}
double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}
double milliseconds(auto const& act) {
  auto const start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

struct Outcome {
  std::string name;
  int graphs = 0;
  std::size_t launches = 0;       ///< of one run of the last graph
  double first = 0, warming = 0;  ///< ms: the first call, and all calls of the first round
  double later = 0;               ///< ms: the fastest of 40 later calls
  std::int64_t peak = 0;          ///< bytes beyond what was there before
};
// The first round meets every size once.
Outcome measure(std::string_view workload, Preset const& preset) {
  Outcome outcome{.name = std::format("{}: {}", workload, preset.name)};
  Modes modes;
  Model eager = some_model(), trained = some_model();
  Tensor const tokens = randint(0, 32, DimList{4, 16}), next = randint(0, 32, DimList{64});
  std::vector<Tensor> windows;
  for (int const length : {8, 12, 16, 24}) windows.push_back(randint(0, 32, DimList{1, length}));
  if (workload == "training")
    for (int k = 0; k < 2; ++k) (void)train(eager, tokens, next), (void)train(trained, tokens, next);  // the optimizer's state is there from now on
  std::int64_t const before = base::memory_counters().live;
  auto const step = compile(train<Sgd>, preset.options(modes));
  auto const answer = compile(serve, preset.options(modes));
  auto const turn = [&](std::size_t k) {
    double const bound = 1e-4;
    Tensor result;
    double const time = milliseconds([&] { result = workload == "training" ? step(trained, tokens, next) : answer(trained, windows[k % 4]); });
    double const gap = worst_gap(result, workload == "training" ? train(eager, tokens, next) : serve(eager, windows[k % 4]));
    if (!(gap < bound)) fail("{}: call {} differs from eager by {}", outcome.name, k, gap);
    return time;
  };
  outcome.first = outcome.warming = turn(0);
  for (std::size_t k = 1; k < 4; ++k) outcome.warming += turn(k);
  base::reset_peak();
  std::vector<double> times;
  for (std::size_t k = 0; k < 40; ++k) times.push_back(turn(k));
  outcome.later = std::ranges::min(times);
  outcome.peak = base::memory_counters().peak - before;
  outcome.graphs = static_cast<int>(status(workload == "training" ? step.state() : answer.state()).graphs);
  outcome.launches = modes.launches;
  std::cout << std::format("{:34} {:6} {:9} {:10.1f} {:10.1f} {:9.3f} {:9}\n", outcome.name, outcome.graphs, outcome.launches, outcome.first, outcome.warming,
                           outcome.later, outcome.peak);
  return outcome;
}
void table_head(std::string_view what) {
  std::cout << std::format("{:34} {:>6} {:>9} {:>10} {:>10} {:>9} {:>9}\n", what, "graphs", "launches", "first, ms", "round, ms", "later, ms", "bytes");
}

// C. Each mode on each workload, then the presets. The article's table gives serving fullgraph, its example does not: both are run.
Claim presets() {
  heading("modes");
  table_head("everything else as it is");
  std::map<std::string, Outcome> all;
  for (std::string_view const workload : {"training", "serving"})
    for (auto const& preset : {Preset{"normal", Mode::normal, false, Dynamic::automatic},
                               {"reduce_overhead", Mode::reduce_overhead, false, Dynamic::automatic},
                               {"max_autotune", Mode::max_autotune, false, Dynamic::automatic}}) {
      auto const outcome = measure(workload, preset);
      all[outcome.name] = outcome;
    }
  heading("presets");
  table_head("workload: preset");
  for (std::string_view const workload : {"training", "serving"})
    for (auto const& preset : {Preset{"preset for training", Mode::max_autotune, true, Dynamic::never},
                               {"preset for serving", Mode::reduce_overhead, false, Dynamic::always},
                               {"the same with fullgraph", Mode::reduce_overhead, true, Dynamic::always}}) {
      auto const outcome = measure(workload, preset);
      all[outcome.name] = outcome;
    }
  std::cout << "All calls were compared with eager ones. 'round' is the first four calls: of training the same step, of serving four lengths.\n"
               "'later' is the fastest of 40 calls, of serving with the shortest text. The bytes are the most that were held beyond\n"
               "what stood before the function was compiled. Kernels may come from the cache on disk.\n";
  auto const [steps, error] = adam_with_fixed_numbers(randint(0, 32, DimList{4, 16}), randint(0, 32, DimList{64}));
  std::cout << std::format("\nAdam with dynamic = false and fullgraph ends after {} steps: {}\n", steps, error);
  auto const& own = all.at("serving: preset for serving");
  auto const& other = all.at("serving: preset for training");
  auto const& whole = all.at("serving: the same with fullgraph");
  if (own.graphs != 1 || other.graphs != 4 || whole.graphs != 1)
    fail("serving should make 1, 4 and 1 graphs, not {}, {} and {}", own.graphs, other.graphs, whole.graphs);
  auto const& trained = all.at("training: preset for training");
  auto const& served = all.at("training: preset for serving");
  return {
      .id = "2.2.a",
      .title = "modes, and presets for training and serving",
      .article =
          "max-autotune explores fusion strategies; training = {max-autotune, fullgraph, dynamic false}, serving = {reduce-overhead, fullgraph false, "
          "dynamic true}",
      .measured = std::format("a GPT's training step: {:.2f} ms with the preset for training, {:.2f} with that for serving, {:.2f} with neither. Serving four "
                              "lengths: {} graphs and {:.0f} ms for the first round with the preset for training, {} and {:.0f} ms with its own; a later call "
                              "takes {:.3f} and {:.3f} ms. With fullgraph (the article's table has it, its example not) serving makes the same {} graph",
                              trained.later, served.later, all.at("training: normal").later, other.graphs, other.warming, own.graphs, own.warming, other.later,
                              own.later, whole.graphs, steps),
      .verdict = "reproduced with a difference"};
}
