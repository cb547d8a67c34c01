// The training step as one graph: what s1_static_graph.cpp measures of it. Behind lesson.h, and behind Model and train there.
#pragma once

// 3. What is built in each step.
// Eager code calls its ops one by one, each looks up its kernel and makes its result, and a tape of them is built for backward and thrown away, in every
// step. A compiled function is recorded once. In later steps the body runs still, but an op only compares itself with the record: nothing is looked up,
// made or computed until the graph runs as a whole. Where even that is too much, `pure` skips the body (docs/tracer.md).
struct Executed final : Interpreter {  // meets every op that is about to run eagerly
  std::int64_t ops = 0;
  void bind(Call const& call, int below, std::span<Tensor> results) override { ++ops, dispatch(call, below, results); }
};
double seconds_of(auto const& act) {
  auto const start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}
Tensor some_tokens() {
  manual_seed(3);
  return randint(0, 16, DimList{4, 16});
}

Claim built_once() {
  heading("what is built in each step");
  constexpr int steps = 100;
  Tensor const tokens = some_tokens();
  std::vector<double> eager_times, compiled_times;
  Executed executed;
  double eager_loss = 0, compiled_loss = 0;
  manual_seed(1);
  Model eager;
  {
    Active const counting(Rank::capture, &executed);
    for (int step = 0; step < steps; ++step) eager_times.push_back(seconds_of([&] { eager_loss = train(eager, tokens).item(); }));
  }
  manual_seed(1);
  Model model;
  auto const fast = compile(train, {.name = "train"});
  std::vector<std::int64_t> graphs, recorded;
  for (int step = 0; step < steps; ++step) {
    compiled_times.push_back(seconds_of([&] { compiled_loss = fast(model, tokens).item(); }));
    auto const now = status(fast);
    graphs.push_back(now.graphs), recorded.push_back(describe(fast.state()).recorded_ops);
  }
  auto const report = describe(fast.state());
  double const first = compiled_times[0] * 1e3;
  std::cout << std::format("{} steps of a GPT with Adam{:>20} {:>12}\n", steps, "eager", "compiled");
  auto const row = [](std::string_view what, auto a, auto b) { std::cout << std::format("{:36} {:>9} {:>12}\n", what, a, b); };
  row("tapes or graphs built", steps, report.graphs);
  row("  of them after the second step", steps - 2, report.graphs - graphs[1]);
  row("ops executed one by one", executed.ops, report.eager_calls);
  row("ops recorded", 0, report.recorded_ops);
  row("ops compared with the record", 0, report.replayed_ops);
  row("graph runs", 0, report.launches);
  row("a step, ms (median)", std::format("{:.2f}", median(eager_times) * 1e3), std::format("{:.2f}", median(compiled_times) * 1e3));
  row("the first step, ms", std::format("{:.2f}", eager_times[0] * 1e3), std::format("{:.2f}", first));
  row("the loss at the end", std::format("{:.5f}", eager_loss), std::format("{:.5f}", compiled_loss));
  if (graphs.back() != graphs[1] || recorded.back() != recorded[1]) fail("a graph was built after the second step");
  if (report.launches < steps || report.eager_calls != 0) fail("{} runs of graphs and {} eager calls in {} steps", report.launches, report.eager_calls, steps);
  if (executed.ops < steps * 50) fail("only {} eager ops were met", executed.ops);
  if (!(std::abs(eager_loss - compiled_loss) < 1e-3)) fail("the losses differ: {} and {}", eager_loss, compiled_loss);
  return {.id = "1.a",
          .title = "a static graph is built once and reused",
          .article = "a dynamic graph is rebuilt every iteration; a static graph is compiled on the first and reused",
          .measured =
              std::format("{} steps: eager builds {} tapes and executes {} ops one by one; compiled builds {} graphs in the first two steps and none after, "
                          "executes no op by itself, runs a graph {} times. A step takes {:.2f} ms eagerly, {:.2f} ms compiled; the first one {:.0f} ms",
                          steps, steps, executed.ops, report.graphs, report.launches, median(eager_times) * 1e3, median(compiled_times) * 1e3, first),
          .verdict = "reproduced"};
}

// 4. Forward and backward as one graph.
// The step's graph holds forward, loss, backward and the optimizer. Passes simplify it, and grouping makes kernels of what is left: across the border of
// forward and backward too, for there is none. A backend that keeps the graph is all that it takes to look.
struct Kept {
  std::vector<ir::Graph> graphs{};
  Backend backend(fusion::LowerOptions const& options = {}) {
    return [this, options](ir::Graph const& graph) -> Runner { return graphs.push_back(graph), fusion::lower(graph, options); };
  }
};
double step_seconds(Tensor const& tokens, Backend const& backend) {
  manual_seed(1);
  Model model;
  auto const fast = compile(train, {.backend = backend});
  std::vector<double> times;
  for (int step = 0; step < 40; ++step) times.push_back(seconds_of([&] { (void)fast(model, tokens); }));
  return std::ranges::min(times);
}
Claim one_graph() {
  heading("forward and backward as one graph");
  Tensor const tokens = some_tokens();
  Kept forward_graph, whole, separate;
  {
    Model model;
    (void)compile(forward, {.backend = forward_graph.backend()})(model, tokens);
  }
  double const fused = step_seconds(tokens, whole.backend()), unfused = step_seconds(tokens, separate.backend({.group = {.fuse = false}}));
  double const reference = step_seconds(tokens, reference_backend);
  auto const& graph = whole.graphs.back();
  auto const plan = fusion::plan(graph), apart = fusion::plan(graph, {.group = {.fuse = false}});
  auto const calls = static_cast<std::size_t>(std::ranges::count_if(plan.launches, [](auto const& launch) { return launch.node >= 0; }));
  auto const row = [](std::string_view what, auto figure) { std::cout << std::format("{:64} {:>7}\n", what, figure); };
  row("ops of forward alone, as recorded", forward_graph.graphs.back().nodes.size());
  row("ops of the whole step, as recorded", graph.nodes.size());
  row("the same in primitive ops, without what is dead or double", plan.grouping.graph.nodes.size());
  row("launches with a kernel or call for each op that computes", apart.launches.size());
  row("launches of the fused step", plan.launches.size());
  row("  of them calls of a library", calls);
  row("  of them kernels, of which different ones: " + std::to_string(plan.kernels.size()), plan.launches.size() - calls);
  row("ms a step, the fastest of 40: reference evaluator", std::format("{:.2f}", reference * 1e3));
  row("ms a step, the fastest of 40: compiled, one by one", std::format("{:.2f}", unfused * 1e3));
  row("ms a step, the fastest of 40: fused", std::format("{:.2f}", fused * 1e3));
  if (graph.nodes.size() <= forward_graph.graphs.back().nodes.size()) fail("the step's graph holds no backward");
  if (2 * plan.launches.size() > apart.launches.size()) fail("{} of {} launches are left", plan.launches.size(), apart.launches.size());
  return {
      .id = "1.b",
      .title = "forward and backward become one optimized graph",
      .article = "forward and backward become one optimized graph, raising throughput on several GPUs and nodes",
      .measured = std::format("one graph of {} ops holds forward ({}), backward and optimizer; {} primitive ones, {} launches a step one by one, {} fused ({} "
                              "library calls, {} kernels). One rank on the CPU: {:.2f} ms a step by the reference evaluator, {:.2f} ms compiled one by one, "
                              "{:.2f} ms fused. PyTorch makes two graphs of it. Several GPUs are not measured yet",
                              graph.nodes.size(), forward_graph.graphs.back().nodes.size(), plan.grouping.graph.nodes.size(), apart.launches.size(),
                              plan.launches.size(), calls, plan.launches.size() - calls, reference * 1e3, unfused * 1e3, fused * 1e3),
      .verdict = "reproduced with a difference"};
}

// 5. Peak memory.
// Bytes that a step needs beyond parameters, optimizer state and inputs, at its worst moment, as counted by the allocator of tensors. Fusion keeps values
// in registers, and the planner lets what lives at different times share a place. The bound is what the step's kernels can't do without: their operands
// and results that are alive at once. The optimizer is SGD with momentum, for with Adam the first step has a graph of its own, whose arena stays as well.
struct Perceptron {
  Linear fc1{128, 256}, fc2{256, 256}, fc3{256, 10};
  Tensor operator()(Tensor const& x) const { return fc3(gelu(fc2(gelu(fc1(x))))); }
  static void fields(auto& self, auto&& field) { field("fc1", self.fc1), field("fc2", self.fc2), field("fc3", self.fc3); }
};
struct Convolutional {
  Conv2d first{3, 16, 3, {.padding = {1}}}, second{16, 32, 3, {.stride = {2}, .padding = {1}}};
  Linear last{2048, 10};
  Tensor operator()(Tensor const& x) const { return last(flatten(relu(second(relu(first(x)))), 1)); }
  static void fields(auto& self, auto&& field) { field("first", self.first), field("second", self.second), field("last", self.last); }
};
struct Transformer {
  Gpt gpt{GptConfig{.vocabulary = 64, .context = 32, .layers = 2, .heads = 4, .features = 64}};
  Tensor operator()(Tensor const& tokens) const { return flatten(gpt(tokens), 0, 1); }
  static void fields(auto& self, auto&& field) { field("gpt", self.gpt); }
};
template <class Net>
struct Learner {
  Net net{};
  Sgd optimizer{parameters(net), {.lr = 1e-3, .momentum = 0.9}};
  static void fields(auto& self, auto&& field) { field("net", self.net); }
};
template <class Net>
Tensor learn(Learner<Net>& learner, Tensor const& x, Tensor const& target) {
  Tensor loss = cross_entropy(learner.net(x), target);
  loss.backward();
  learner.optimizer.step();
  learner.optimizer.zero_grad();
  return loss.detach();
}
std::int64_t bound_of(fusion::Program const& program) {
  auto const bytes = [&](int v) {
    auto const& meta = *program.grouping.graph.values[static_cast<std::size_t>(v)].meta;
    return base::numel(ir::values(meta.sizes)) * base::bytes_of(meta.dtype);
  };
  std::int64_t most = 0;
  for (int l = 0; std::cmp_less(l, program.launches.size()); ++l) {
    std::int64_t now = 0;
    for (int v = 0; std::cmp_less(v, program.homes.size()); ++v) {
      auto const kind = program.homes[static_cast<std::size_t>(v)].kind;
      int const first = program.first[static_cast<std::size_t>(v)], last = program.last[static_cast<std::size_t>(v)];
      if (kind == fusion::Home::Kind::output ? first <= l : kind == fusion::Home::Kind::arena && first <= l && l <= last) now += bytes(v);
    }
    for (auto const& [old, fresh] : program.reuse)
      if (program.first[static_cast<std::size_t>(fresh)] == l) now -= bytes(fresh);
    most = std::max(most, now);
  }
  return most;
}
struct Peaks {
  std::string_view name;
  std::int64_t eager = 0, compiled = 0, bound = 0;
  double fall() const { return 100 * (1 - static_cast<double>(compiled) / static_cast<double>(eager)); }
};
template <class Net>
Peaks peaks_of(std::string_view name, Tensor const& x, Tensor const& target) {
  Peaks peaks{.name = name};
  Kept kept;
  auto const fast = compile(learn<Net>, {.backend = kept.backend()});
  for (bool const compiled : {false, true}) {
    Learner<Net> learner;
    (void)learn(learner, x, target);  // the optimizer's state is there from now on
    std::int64_t const before = base::memory_counters().live;
    auto const step = [&] { compiled ? (void)fast(learner, x, target) : (void)learn(learner, x, target); };
    for (int k = 0; k < 3; ++k) step();
    base::reset_peak();
    step();
    (compiled ? peaks.compiled : peaks.eager) = base::memory_counters().peak - before;
  }
  peaks.bound = bound_of(fusion::plan(kept.graphs.back()));
  std::cout << std::format("{:5} {:12} {:12} {:12} {:9.1f} %\n", name, peaks.eager, peaks.compiled, peaks.bound, peaks.fall());
  return peaks;
}
Claim peak_memory() {
  heading("peak memory");
  manual_seed(2);
  std::cout << std::format("{:5} {:>12} {:>12} {:>12} {:>11}\n", "bytes", "eager", "compiled", "its bound", "less by");
  std::array const all{peaks_of<Perceptron>("MLP", randn({128, 128}), randint(0, 10, {128})),
                       peaks_of<Convolutional>("CNN", randn({16, 3, 16, 16}), randint(0, 10, {16})),
                       peaks_of<Transformer>("GPT", randint(0, 64, {4, 32}), randint(0, 64, {128}))};
  std::string measured;
  for (auto const& p : all) measured += std::format("{}{} {} → {} bytes ({:+.0f} %)", measured.empty() ? "" : ", ", p.name, p.eager, p.compiled, -p.fall());
  return {.id = "1.e",
          .title = "peak memory falls through planning and fusion",
          .article = "peak memory −22 % by memory planning and in-graph fusion",
          .measured = "compiling alone, one rank, beyond parameters, state and inputs: " + measured + ". DDP and FSDP are not measured yet",
          .verdict = std::ranges::all_of(all, [](Peaks const& p) { return p.compiled < p.eager; }) ? "reproduced with a difference" : "contradicted"};
}
