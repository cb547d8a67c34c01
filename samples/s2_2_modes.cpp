// 2.2: the settings of a compiled function, and what each of them is good for.
//
// Run it:  ninja -C build && ./build/samples/s2_2_modes [--json[=FILE]]
//
// The article recommends settings by workload and gives reasons: fullgraph = true makes one forward and backward graph without branch jumps, and
// results that repeat; dynamic = true suits inputs of varying length but costs tracing and recompilation. Each reason is measured here by itself.
import std;
import tenon;
#include "lesson.h"
using namespace tenon;

namespace {

// The dtype, the sizes and every element's bits.
std::string bits(Tensor const& x) {
  std::string text = ir::to_string(x.meta());
  for (double const element : x.to_vector<double>()) text += std::format(" {:x}", std::bit_cast<std::uint64_t>(element));
  return text;
}
#include "s2_2_presets.h"

std::string_view name_of(bool fullgraph) { return fullgraph ? "fullgraph" : "free"; }

// ---- 2.2.b: fullgraph ----

// 1. What may jump.
// A choice by an element needs the element, and no graph has it while it is recorded: the graph ends there. where() computes both ways and chooses
// element by element, so nothing jumps. A choice by a C++ value is no jump of the graph at all: each value has a graph of its own.
Tensor by_element(Tensor const& x) {
  if (sum(x) > 0) return relu(x);
  return x * 2.0;
}
Tensor by_where(Tensor const& x) { return where(sum(x) > 0, relu(x), x * 2.0); }
Tensor by_value(Tensor const& x, bool up) { return up ? relu(x) : x * 2.0; }

struct Jumps {
  int graphs = 0, breaks = 0;
  std::string error{};
};
template <class... Flag>
Jumps jumps(std::string_view name, Tensor (*function)(Tensor const&, Flag...), bool fullgraph) {
  auto const fast = compile(function, {.fullgraph = fullgraph, .name = std::string(name)});
  Jumps found;
  try {
    for (double const value : {1.5, -1.5, 0.25, -8.0}) {
      Tensor const x = full(3, value);
      if (auto const compiled = bits(fast(x, Flag(value < 1)...)), eager = bits(function(x, Flag(value < 1)...)); compiled != eager)
        fail("{} of {}: {} compiled, {} eager", name, value, compiled, eager);
    }
  } catch (Error const& error) {
    if (!fullgraph) throw;
    found.error = error.what();
  }
  auto const report = describe(fast.state());
  found.graphs = report.graphs, found.breaks = static_cast<int>(report.breaks.size());
  std::cout << std::format("{:12} {:10} {:>6} {:>6}  {}\n", name, name_of(fullgraph), found.graphs, found.breaks,
                           found.error.empty() ? "4 calls, equal to eager bit for bit" : "an error");
  return found;
}
std::array<Jumps, 2> branches() {
  heading("fullgraph and jumps");
  std::cout << std::format("{:12} {:10} {:>6} {:>6}\n", "", "", "graphs", "breaks");
  std::array const elements{jumps("by_element", by_element, false), jumps("by_element", by_element, true)};
  std::array const choices{jumps("by_where", by_where, false), jumps("by_where", by_where, true)};
  std::array const values{jumps("by_value", by_value, false), jumps("by_value", by_value, true)};
  std::cout << elements[1].error << '\n';
  for (auto const& [jump, graphs, breaks] :
       {std::tuple(elements[0], 3, 1), {elements[1], 0, 0}, {choices[0], 1, 0}, {choices[1], 1, 0}, {values[0], 2, 0}, {values[1], 2, 0}})
    if (jump.graphs != graphs || jump.breaks != breaks) fail("{} graphs and {} breaks were due, not {} and {}", graphs, breaks, jump.graphs, jump.breaks);
  if (elements[0].error.empty() == elements[1].error.empty()) fail("only with fullgraph should a choice by an element be an error");
  return elements;
}

// 2. How many graphs a step has.
// Loss and backward are calls like any other, so a function that holds the whole step becomes one graph, with fullgraph and without. PyTorch keeps
// two: asked for an MLP of two layers, it made a graph of 8 calls for forward and one of 18 for backward.
struct Mlp {
  Linear fc1{4, 8}, fc2{8, 3};
  Tensor operator()(Tensor const& x) const { return fc2(relu(fc1(x))); }
  static void fields(auto& self, auto&& field) { field("fc1", self.fc1), field("fc2", self.fc2); }
};
Tensor loss_of(Mlp const& model, Tensor const& x, Tensor const& target) { return mse_loss(model(x), target); }
Tensor step(Mlp const& model, Tensor const& x, Tensor const& target) {
  Tensor loss = loss_of(model, x, target);
  loss.backward();
  return loss;
}
struct Batch {
  Tensor x, target;
};
Batch some_batch() {
  manual_seed(1);
  return {randn({16, 4}), randn({16, 3})};
}
struct Whole {
  int graphs = 0, forward = 0, ops = 0;
};
Whole whole_step() {
  heading("forward, loss and backward");
  auto const [x, target] = some_batch();
  Mlp const model;
  auto const forward = explain(loss_of, {.fullgraph = true, .name = "loss"})(model, x, target);
  auto const captured = [&](bool fullgraph) {
    for (Tensor parameter : parameters(model)) parameter.set_grad({});
    return explain(step, {.fullgraph = fullgraph, .name = "step"})(model, x, target);
  };
  auto const free = captured(false), whole = captured(true);
  auto const text_of = [](Explanation const& report) { return ir::to_string(report.parts.at(0).graph); };
  std::cout << text_of(whole);
  std::cout << std::format("{} graph of {} ops, {} of them forward and loss; without fullgraph {}, and its text is {}\n", whole.graphs, whole.ops, forward.ops,
                           free.graphs, text_of(free) == text_of(whole) ? "the same" : "another one");
  if (whole.graphs != 1 || text_of(free) != text_of(whole) || whole.ops <= forward.ops)
    fail("one graph, with fullgraph and without, was due, not {} and {}", whole.graphs, free.graphs);
  return {whole.graphs, forward.ops, whole.ops};
}

// 3. What repeats.
// A hundred runs of a step, and the number of different results among them: loss and gradients, bit for bit. What decides is whether random numbers
// are drawn and whether the generator is started anew, not how the step is compiled. `deterministic` is the setting that is made for this: it is
// guarded, so another graph is compiled, in which a backend may only take algorithms that repeat. Fused kernels have no others:
// partial results are added in an order that follows from sizes alone.
Tensor noisy_step(Mlp const& model, Tensor const& x, Tensor const& target) { return step(model, dropout(x, 0.5), target); }
enum class Draws { nothing, onwards, anew };
std::size_t different(Draws draws, bool fullgraph, bool deterministic) {
  constexpr int runs = 100;
  auto const [x, target] = some_batch();
  manual_seed(2);
  Mlp const model;
  auto const fast = compile(draws == Draws::nothing ? step : noisy_step, {.fullgraph = fullgraph});
  Settings wanted = settings();
  wanted.deterministic = deterministic;
  SettingsScope const scope(wanted);
  std::set<std::string> results;
  for (int run = 0; run < runs; ++run) {
    if (draws == Draws::anew) manual_seed(3);
    for (Tensor parameter : parameters(model)) parameter.set_grad({});
    std::string result = bits(fast(model, x, target));
    for (Tensor const& parameter : parameters(model)) result += bits(parameter.grad());
    results.insert(std::move(result));
  }
  if (auto const report = describe(fast.state()); report.calls != runs || !report.breaks.empty()) fail("{} runs without a break were due", runs);
  return results.size();
}
void repeats() {
  heading("what repeats");
  std::cout << "different results in 100 runs of a step\n" << std::format("{:40} {:>9} {:>9}\n", "", "free", "fullgraph");
  for (auto const& [what, draws, deterministic, due] : {std::tuple("no random numbers", Draws::nothing, false, 1),
                                                        {"dropout, the generator runs on", Draws::onwards, false, 100},
                                                        {"dropout, the generator is started anew", Draws::anew, false, 1},
                                                        {"no random numbers, deterministic is on", Draws::nothing, true, 1},
                                                        {"dropout runs on, deterministic is on", Draws::onwards, true, 100}}) {
    std::size_t const free = different(draws, false, deterministic), whole = different(draws, true, deterministic);
    std::cout << std::format("{:40} {:9} {:9}\n", what, free, whole);
    if (std::cmp_not_equal(free, due) || std::cmp_not_equal(whole, due)) fail("{}: {} different results were due, not {} and {}", what, due, free, whole);
  }
}

Claim fullgraph() {
  auto const elements = branches();
  auto const whole = whole_step();
  repeats();
  return {
      .id = "2.2.b",
      .title = "fullgraph gives one graph, no jumps, determinism",
      .article = "fullgraph = true: one forward + backward graph, no branch jumps, determinism",
      .measured = std::format("a step with loss and backward is {} graph of {} ops, the same with fullgraph and without (PyTorch keeps two); a choice by an "
                              "element makes {} graphs and {} break, and with fullgraph an error at the line; 100 runs of a step give 1 result, with dropout "
                              "100, both independent of fullgraph: determinism is another switch",
                              whole.graphs, whole.ops, elements[0].graphs, elements[0].breaks),
      .verdict = "reproduced with a difference"};
}

// ---- 2.2.c: dynamic ----

// 4. Sizes and graphs.
// `never` keeps each size as a number and makes a graph for each. `automatic` does so at first and makes what has changed a symbol. `always` begins
// with symbols. Two things bring another graph even then: the sizes 0 and 1, for which sums and broadcasts mean something else, and a choice that
// the function makes by a size. The rows that PyTorch 2.11 was seen to make are compared.
constexpr std::array dynamics{std::pair("never", Dynamic::never), std::pair("automatic", Dynamic::automatic), std::pair("always", Dynamic::always)};
Tensor relu_plus(Tensor const& x) { return relu(x + 1); }
Tensor doubled(Tensor const& x) { return x * 2; }
Tensor by_size(Tensor const& x) { return x.size(0) > 5 ? x * 2 : x + 1; }
struct Sequence {
  std::string_view name;
  Tensor (*function)(Tensor const&);
  std::vector<DimList> sizes;
  std::array<std::vector<int>, 3> pytorch{};  ///< as in `dynamics`; empty where it was not recorded
};
using Row = std::vector<int>;
Row graphs_after(Sequence const& sequence, Dynamic dynamic) {
  auto const fast = compile(sequence.function, {.dynamic = dynamic});
  Row row;
  for (auto const& sizes : sequence.sizes) {
    Tensor const x = full(sizes, -2.0);
    if (bits(fast(x)) != bits(sequence.function(x))) fail("{}: compiled differs from eager", sequence.name);
    row.push_back(describe(fast.state()).graphs);
  }
  return row;
}
std::map<std::string_view, std::array<Row, 3>> graphs_by_size() {
  heading("sizes and graphs");
  std::vector<Sequence> const sequences{
      {"equal sizes: relu(x + 1)", relu_plus, {{3, 4}, {3, 4}, {3, 4}, {3, 4}}, {Row{}, Row{1, 1}, Row{}}},
      {"four lengths: relu(x + 1)", relu_plus, {{3, 4}, {5, 4}, {7, 4}, {9, 4}}, {Row{1, 2, 3, 4}, Row{1, 2, 2, 2}, Row{1, 1, 1, 1}}},
      {"sizes 0 and 1: x * 2", doubled, {4, 1, 0, 5, 1}, {Row{}, Row{}, Row{1, 2, 3, 3, 3}}},
      {"a choice by size: size > 5 ? x * 2 : x + 1", by_size, {3, 4, 8, 9, 2}, {Row{}, Row{}, Row{1, 1, 2, 2, 2}}}};
  std::map<std::string_view, std::array<Row, 3>> all;
  for (auto const& sequence : sequences) {
    std::cout << sequence.name << "\n  graphs after  ";
    for (auto const& sizes : sequence.sizes) {
      std::string text;
      for (Dim const size : sizes) text += std::format("{}{}", text.empty() ? "[" : ", ", size.value);
      std::cout << std::format("{:>8}", text + "]");
    }
    std::cout << '\n';
    for (std::size_t k = 0; k < dynamics.size(); ++k) {
      auto const& row = all[sequence.name][k] = graphs_after(sequence, dynamics[k].second);
      auto const& theirs = sequence.pytorch[k];
      std::cout << std::format("  {:14}", dynamics[k].first);
      for (int const graphs : row) std::cout << std::format("{:8}", graphs);
      std::cout << (theirs.empty() ? "\n" : "   as PyTorch\n");
      if (!std::ranges::equal(row | std::views::take(theirs.size()), theirs)) fail("{}, {}: PyTorch made other graphs", sequence.name, dynamics[k].first);
    }
  }
  return all;
}

// 5. What recording costs.
// A GPT reads windows of four lengths. Each setting records them anew, 15 times, and the median counts: the time in the recorder, and that in the
// backend's lowering, which takes kernels that it knows from the compile cache. A recording with symbols costs more than one without, for inference
// reasons about expressions; but there are fewer of them.
struct Reader {
  Gpt gpt{GptConfig{.vocabulary = 32, .context = 64, .layers = 2, .heads = 2, .features = 16}};
  Tensor operator()(Tensor const& tokens) const { return gpt(tokens); }
  static void fields(auto& self, auto&& field) { field("gpt", self.gpt); }
};
Tensor window(std::int64_t length) {
  manual_seed(static_cast<std::uint64_t>(length));
  return randint(0, 32, {2, length});
}
struct Cost {
  int graphs = 0;
  std::int64_t ops = 0;                ///< recorded
  double recording = 0, lowering = 0;  ///< µs
  double a_graph() const { return recording / graphs; }
};
std::array<Cost, 3> recording_costs(Reader const& reader) {
  heading("what recording costs");
  NoGrad const off;
  std::array<Cost, 3> costs;
  std::array<std::vector<double>, 3> recording, lowering;
  for (int round = 0; round < 15; ++round)
    for (std::size_t k = 0; k < dynamics.size(); ++k) {
      auto const fast = compile(reader, {.dynamic = dynamics[k].second});
      for (int const length : {8, 12, 16, 24}) (void)fast(window(length));
      auto const report = describe(fast.state());
      costs[k] = {report.graphs, report.recorded_ops};
      recording[k].push_back(report.record_seconds * 1e6), lowering[k].push_back(report.compile_seconds * 1e6);
    }
  std::cout << std::format("a GPT, windows of 8, 12, 16 and 24 tokens\n{:12} {:>7} {:>13} {:>12} {:>11} {:>11}\n", "", "graphs", "ops recorded", "recording µs",
                           "a graph", "lowering µs");
  for (std::size_t k = 0; k < dynamics.size(); ++k) {
    costs[k].recording = median(recording[k]), costs[k].lowering = median(lowering[k]);
    std::cout << std::format("{:12} {:7} {:13} {:12.0f} {:11.0f} {:11.0f}\n", dynamics[k].first, costs[k].graphs, costs[k].ops, costs[k].recording,
                             costs[k].a_graph(), costs[k].lowering);
  }
  std::cout << std::format("a recording with symbols costs {:.1f} times one without; all recordings of never cost {:.1f} times the one of always\n",
                           costs[2].a_graph() / costs[0].a_graph(), costs[0].recording / costs[2].recording);
  if (costs[0].graphs != 4 || costs[1].graphs != 2 || costs[2].graphs != 1)
    fail("4, 2 and 1 graphs were due, not {}, {} and {}", costs[0].graphs, costs[1].graphs, costs[2].graphs);
  return costs;
}

// 6. What running costs.
// Both graphs get the same windows, in turn, so that whatever else runs on the machine meets both; processor time, the median of the ratios.
// Kernels of the dynamic graph are compiled for any size, so the compiler cannot unroll and drop loops as it does for sizes that it knows: the less
// there is to compute, the more that shows.
double running_cost(Reader const& reader) {
  heading("what running costs");
  NoGrad const off;
  auto const fixed = compile(reader, {.dynamic = Dynamic::never}), open = compile(reader, {.dynamic = Dynamic::always});
  auto const microseconds = [](auto const& fast, Tensor const& x, int times) {
    std::clock_t const start = std::clock();
    for (int k = 0; k < times; ++k) (void)fast(x);
    return static_cast<double>(std::clock() - start) / times;  // std::clock counts microseconds
  };
  double worst = 0;
  for (auto const& [length, times] : {std::pair(4, 8), {16, 4}, {64, 1}}) {
    Tensor const x = window(length);
    if (double const apart = amax(abs(fixed(x) - open(x))).item().value; !(apart <= 1e-5)) fail("the dynamic graph of {} tokens is {:.1e} away", length, apart);
    std::vector<double> ratios, static_times;
    for (int round = 0; round < 21; ++round) {
      double const one = microseconds(fixed, x, times), other = microseconds(open, x, times);
      static_times.push_back(one), ratios.push_back(other / one);
    }
    std::cout << std::format("{:3} tokens: static {:7.0f} µs a call, dynamic {:.2f} times that\n", length, median(static_times), median(ratios));
    worst = std::max(worst, median(ratios));
  }
  if (describe(open.state()).graphs != 1 || describe(fixed.state()).graphs != 3) fail("3 static graphs and 1 dynamic graph were due");
  return worst;
}

Claim dynamic_sizes() {
  auto const rows = graphs_by_size();
  manual_seed(4);
  Reader const reader;
  auto const costs = recording_costs(reader);
  double const ratio = running_cost(reader);
  auto const& lengths = rows.at("four lengths: relu(x + 1)");
  return {
      .id = "2.2.c",
      .title = "dynamic sizes cost tracing and recompiles",
      .article = "dynamic = false for training, true for variable length; true costs tracing and recompilation",
      .measured = std::format(
          "four lengths make {} graphs with false, {} automatically, {} with true, as in PyTorch; true makes more only at the sizes 0 and 1 and where the "
          "function asks for a size. A GPT over four lengths records {}, {} and {} ops. True costs the fewest recompiles; its one recording costs {} than a "
          "static one, and on equal sizes its graph runs {}",
          lengths[0].back(), lengths[1].back(), lengths[2].back(), costs[0].ops, costs[1].ops, costs[2].ops,
          costs[2].a_graph() > 1.1 * costs[0].a_graph() ? "more" : "no more", ratio < 1.5 ? "less than 1.5 times as long" : "more than 1.5 times as long"),
      .verdict = "reproduced with a difference"};
}

std::vector<Claim> lesson() { return claims_of({presets, fullgraph, dynamic_sizes}); }

}  // namespace

int main(int argc, char** argv) { return run_lesson("s2_2_modes", argc, argv, lesson); }
