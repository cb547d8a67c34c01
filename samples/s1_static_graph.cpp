// 1: static graphs under code that stays as it was.
//
// Run it:  ninja -C build && ./build/samples/s1_static_graph [--json[=FILE]]
//
// The article promises that a graph which is built once makes steps cheaper, in time and in memory, and that a compiled model keeps the feel of eager
// code: the model's code does not change, and subgraphs are captured safely while it runs. All of it is measured here, by running one function both ways:
// what is built and launched in a step (s1_step.h), and all that a caller can see, bit for bit.
import std;
import tenon;
#include "lesson.h"
using namespace tenon;

namespace {

// 0. What a caller can see.
// Dtype, sizes, strides and whether a gradient is wanted; every element's bits, so that −0 is not 0 and one NaN equals itself; and the gradient.
std::string seen(Tensor const& x) {
  if (!x.defined()) return "undefined";
  std::string text = ir::to_string(x.meta()) + (x.requires_grad() ? " requires_grad" : "");
  for (double const element : x.to_vector<double>()) text += std::format(" {:x}", std::bit_cast<std::uint64_t>(element));
  if (x.requires_grad() && x.grad().defined()) text += " grad " + seen(x.grad());
  return text;
}
std::string seen(std::span<Tensor const> tensors) {
  std::string text;
  for (auto const& x : tensors) text += seen(x) + '\n';
  return text;
}
// The first line that differs between two such texts.
std::string first_difference(std::string_view a, std::string_view b) {
  std::size_t const from = a.rfind('\n', static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin())) + 1;
  auto const line = [&](std::string_view text) { return text.substr(from, text.find('\n', from) - from); };
  return std::format("'{}' eager, '{}' compiled", line(a), line(b));
}
// Runs `call` and says what came of it: its result, or the error that it ended in.
std::string outcome(auto const& call) {
  try {
    return seen(call());
  } catch (std::exception const& error) {
    return std::format("an error: {}", error.what());
  }
}

// 1. One function, run both ways.
// Each function below is ordinary code on tensors. It is called as it is, and it is given to compile() as it is; there is no second version and
// no annotation. Its first argument is the world that it may change, and each way of running has a world of its own. `fields` is what optimizers
// and files walk; compile() uses it to name tensors in its reports, and captures those of a struct without it all the same.
struct Model {
  Gpt gpt{GptConfig{.vocabulary = 16, .context = 16, .layers = 2, .heads = 2, .features = 16}};
  Adam optimizer{parameters(gpt), {.lr = 1e-2}};
  static void fields(auto& self, auto&& field) { field("gpt", self.gpt); }
};
Tensor forward(Model& model, Tensor const& tokens) {
  NoGrad const off;
  return model.gpt(tokens);
}
Tensor train(Model& model, Tensor const& tokens) {
  Dim const last = tokens.dim(1) - 1;
  Tensor const logits = model.gpt(slice(tokens, 1, 0, last));
  Tensor loss = cross_entropy(flatten(logits, 0, 1), flatten(slice(tokens, 1, 1)));
  loss.backward();
  model.optimizer.step();
  model.optimizer.zero_grad();
  return loss;
}

// Plain C++ on the way: a number that is kept between calls, a tensor that is put in another's place, a loop whose end an element decides.
struct Memory {
  Tensor average = zeros(3);
  int calls = 0;
  static void fields(auto& self, auto&& field) { field("average", self.average); }
};
Tensor remember(Memory& memory, Tensor const& x) {
  ++memory.calls;
  memory.average = memory.average * 0.5 + x / memory.calls;
  return memory.average - x;
}
Tensor shrink(Memory& memory, Tensor const& start) {
  Tensor x = start;
  while (sum(abs(x)) > 1) x = x * 0.5, ++memory.calls;
  return x;
}
// It writes into its argument, and every third call gives up in the middle: what was written before must be there, what stands behind must not.
Tensor give_up(Memory& memory, Tensor const& x) {
  Tensor(x).add_(memory.average + 1);
  if (++memory.calls % 3 == 0) throw std::runtime_error(std::format("call {} gives up", memory.calls));
  memory.average = x * 2;
  return memory.average;
}
// An error in the use of the library itself: in some calls the sizes do not fit.
Tensor misuse(Memory& memory, Tensor const& x) { return matmul(memory.average, reshape(x, {3, -1})) + ones(1); }

// Both ways see equal inputs in the same order; after each call the results (or errors), the inputs and the worlds are compared.
struct Row {
  int calls = 0, errors = 0, differences = 0;
};
template <class World>
Row both_ways(std::string_view name, Tensor (*function)(World&, Tensor const&), std::span<Tensor const> inputs) {
  manual_seed(1);
  World eager;
  manual_seed(1);
  World compiled;
  auto const fast =
      compile(function, {.backend = reference_backend, .name = std::string(name)});  // the kernels that eager calls run: a difference is capture's doing
  if (fast.function() != function) fail("{}: compile() did not keep the function", name);
  Row row;
  for (auto const& input : inputs) {
    Tensor const a = clone(input), b = clone(input);
    std::string const plain = outcome([&] { return function(eager, a); }), graph = outcome([&] { return fast(compiled, b); });
    ++row.calls;
    row.errors += plain.starts_with("an error");
    row.differences += plain != graph || seen(a) != seen(b) || seen(tensors_of(eager)) != seen(tensors_of(compiled));
    if constexpr (requires { eager.calls; }) row.differences += eager.calls != compiled.calls;
  }
  auto const report = describe(fast.state());
  std::cout << std::format("{:10} {:6} {:7} {:7} {:13} {:7} {:12}\n", name, row.calls, report.graphs, report.breaks.size(), report.replayed_ops, row.errors,
                           row.differences);
  if (report.replayed_ops == 0) fail("{}: no call was replayed, so nothing was compared", name);
  return row;
}

Claim same_code() {
  heading("the model's code stays as it is");
  manual_seed(0);
  std::vector<Tensor> tokens, points, ragged;
  for (auto const& [rows, length] : {std::pair(2, 8), {2, 8}, {2, 12}, {3, 16}, {3, 9}, {1, 8}, {2, 8}, {2, 8}})
    tokens.push_back(randint(0, 16, DimList{rows, length}));
  for (int call = 0; call < 8; ++call) points.push_back(randn(3) * (call % 2 ? 9 : 0.3));
  for (int const size : {3, 6, 4, 3, 9, 5, 6, 3}) ragged.push_back(randn(size));
  std::cout << std::format("{:10} {:>6} {:>7} {:>7} {:>13} {:>7} {:>12}\n", "function", "calls", "graphs", "breaks", "ops replayed", "errors", "differences");
  std::array const rows{both_ways("forward", forward, tokens), both_ways("train", train, tokens),     both_ways("remember", remember, points),
                        both_ways("shrink", shrink, points),   both_ways("give_up", give_up, points), both_ways("misuse", misuse, ragged)};
  Row total;
  for (auto const& row : rows) total = {total.calls + row.calls, total.errors + row.errors, total.differences + row.differences};
  std::cout << "Lines that differ between the two: 0, for compile() was given the very function that ran eagerly; its address is checked.\n";
  if (total.differences != 0) fail("{} of {} calls differ between eager and compiled", total.differences, total.calls);
  if (total.errors != 4) fail("2 calls that give up and 2 with sizes that do not fit should have ended in errors, not {}", total.errors);
  return {.id = "1.g",
          .title = "the model's code stays as it is",
          .article = "eager feel kept: the model's code does not change",
          .measured = std::format("{} functions (a GPT, its training step, state on the host, a break, exceptions, illegal calls), {} calls both ways: 0 lines "
                                  "differ, {} of {} errors equal, {} differences in any bit of results, inputs, state and gradients",
                                  rows.size(), total.calls, total.errors, total.errors, total.differences),
          .verdict = "reproduced"};
}

// 2. Random programs.
// What a person would not think of is found by chance. A program is a list of steps on a growing list of tensors; it runs eagerly and compiled,
// on equal inputs, several times, while sizes, host numbers and the sharing of inputs change. After each call all is compared; then every output
// is written to and all is compared again, which finds memory that is shared where it should not be, or not shared where it should.
struct Dice {
  std::uint64_t seed, rolls = 0;
  int operator()(int sides) { return static_cast<int>(uniform(seed, 0, rolls++) * sides); }
};
struct Host {  // what differs from call to call
  double scale;
  int cut;
  bool raises;
};
struct Surroundings {  // what a program may change
  std::vector<Tensor> inputs;
  Tensor kept = ones({2, 3});
};
struct Machine {
  Surroundings& around;
  Host host;
  std::vector<Tensor> tensors = around.inputs;
  Tensor x{}, y{};  ///< the operands of this step
  int c = 0;        ///< its choice
  bool fits() const { return x.shape() == y.shape(); }
  Tensor view() const {
    if (c % 5 == 0) return reshape(x, {-1});
    if (c % 5 == 1) return unsqueeze(x, 0);
    if (x.rank() < 1 || x.size(0) < 1) return x;
    return c % 5 == 2 ? slice(x, 0, 0, host.cut) : c % 5 == 3 ? select(x, 0, 0) : transpose(x, 0, x.rank() - 1);
  }
  Tensor repeated() const {
    Tensor total = x;
    for (int turn = 0; turn < c % 4; ++turn) total = total + turn;
    return total;
  }
};
// A step changes the machine, or gives a tensor that joins the list.
using Change = void (*)(Machine&);
using Make = Tensor (*)(Machine&);
std::vector<std::variant<Change, Make>> const steps{
    +[](Machine& m) { return m.fits() ? m.c % 2 ? m.x + m.y : m.x * m.y : m.x - 0.5; },
    +[](Machine& m) { return m.x * m.host.scale; },
    +[](Machine& m) { return m.c % 2 ? relu(m.x) : tanh(m.x); },
    +[](Machine& m) { return m.view(); },
    +[](Machine& m) { return m.view().add_(full({}, 1)); },
    +[](Machine& m) { return m.repeated(); },
    +[](Machine& m) { return sum(m.x) > 0.1 ? m.x - 1 : m.x * 2; },
    +[](Machine& m) { return m.y * tanh(sum(m.x)).item(); },
    +[](Machine& m) { return m.x + rand(DimList(m.x.shape())); },
    +[](Machine& m) { return m.x.rank() > 0 ? sum(m.x, {0}) : m.x; },
    +[](Machine& m) { return m.around.kept + 1; },
    +[](Machine& m) { m.fits() && m.c % 2 ? m.x.copy_(m.y) : m.x.mul_(m.host.scale); },
    +[](Machine& m) { m.around.kept.add_(full({}, 1)); },
    +[](Machine& m) { m.around.kept = m.x; },
    +[](Machine&) { graph_break(); },
    +[](Machine& m) { m.host.raises ? throw std::runtime_error("the program gives up") : void(); },
};
struct Line {
  int step, a, b, c;
};
std::vector<Tensor> perform(std::span<Line const> program, Surroundings& around, Host const& host) {
  Machine m{.around = around, .host = host};
  for (auto const& [step, a, b, c] : program) {
    m.x = m.tensors[static_cast<std::size_t>(a) % m.tensors.size()], m.y = m.tensors[static_cast<std::size_t>(b) % m.tensors.size()], m.c = c;
    auto const& what = steps[static_cast<std::size_t>(step)];
    if (auto const* const make = std::get_if<Make>(&what))
      m.tensors.push_back((*make)(m));
    else
      std::get<Change>(what)(m);
  }
  return {m.tensors.end() - 3, m.tensors.end()};
}
// Equal inputs for each way: three tensors, of which two are sometimes one, or one a view of another or transposed in memory.
std::vector<Tensor> inputs_of(std::uint64_t seed, int rows, int sharing) {
  manual_seed(seed);
  std::vector<Tensor> inputs{randn({rows, 3}), randn({rows, 3}), randn({rows, 3})};
  if (sharing == 1) inputs[1] = inputs[0];
  if (sharing == 2) inputs[2] = slice(inputs[0], 0, 0, 1);
  if (sharing == 3) inputs[1] = transpose(randn({3, rows}), 0, 1);
  return inputs;
}

struct Tally {
  int programs = 0, calls = 0, raised = 0, differ = 0;
  std::int64_t graphs = 0, recompiles = 0, breaks = 0, beyond = 0, replayed = 0;
  std::string first{};  ///< the first difference
};
void try_program(std::uint64_t seed, Backend const& backend, Tally& tally) {
  Dice dice{seed};
  std::vector<Line> program(static_cast<std::size_t>(2 + dice(13)));
  for (auto& line : program) line = {dice(static_cast<int>(steps.size())), dice(100), dice(100), dice(100)};
  auto const body = [&program](Surroundings& around, Host const& host, std::vector<Tensor> const&) { return perform(program, around, host); };
  constexpr std::array settings{Dynamic::automatic, Dynamic::automatic, Dynamic::always, Dynamic::never};
  auto const fast = compile(body, {.dynamic = settings[static_cast<std::size_t>(dice(4))], .backend = backend});
  Surroundings eager, compiled;
  int rows = 2 + dice(3);
  bool same = true;
  for (int call = 0; call < 5 && same; ++call) {
    if (dice(3) == 0) rows = 1 + dice(6);
    int const sharing = dice(6);
    Host const host{.scale = dice(2) ? 0.5 : 0.25 * dice(8), .cut = 1 + dice(4), .raises = dice(3) == 0};
    std::array<std::string, 2> looks;
    for (bool const graph : {false, true}) {
      Surroundings& around = graph ? compiled : eager;
      std::string& look = looks[graph];
      around.inputs = inputs_of(seed * 100 + static_cast<std::uint64_t>(call), rows, sharing);
      std::vector<Tensor> outputs;
      try {
        outputs = graph ? fast(around, host, around.inputs) : body(around, host, around.inputs);
      } catch (std::runtime_error const& error) {
        look = std::format("{}\n", error.what());
      }
      look += seen(outputs) + seen(around.inputs) + seen(around.kept) + '\n';
      for (std::size_t k = 0; k < outputs.size(); ++k) outputs[k].add_(full({}, static_cast<double>(k + 1)));
      look += seen(outputs) + seen(around.inputs) + seen(around.kept);
    }
    ++tally.calls;
    tally.raised += looks[0].starts_with("the program gives up");
    same = looks[0] == looks[1];
    if (!same && tally.first.empty()) tally.first = std::format("program {}, call {}: {}", seed, call, first_difference(looks[0], looks[1]));
  }
  auto const report = describe(fast.state());
  ++tally.programs;
  tally.differ += !same;
  tally.graphs += report.graphs, tally.recompiles += std::ssize(report.recompiles), tally.breaks += std::ssize(report.breaks);
  tally.beyond += report.eager_calls, tally.replayed += report.replayed_ops;
}
// A capture that is wrong on purpose, to see that the comparison finds it: where the graph adds, this backend subtracts.
Runner subtracting(ir::Graph const& graph) {
  ir::Graph wrong = graph;
  for (auto& node : wrong.nodes)
    if (node.op == &ir::ops::add) node.op = &ir::ops::sub;
  return reference_backend(wrong);
}

Claim random_programs() {
  heading("random programs");
  Tally tally, wrong;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) try_program(seed, reference_backend, tally), try_program(seed, subtracting, wrong);
  auto const row = [](std::string_view what, auto figure) { std::cout << std::format("{:44} {:6}\n", what, figure); };
  row("programs", tally.programs), row("calls, each eager and compiled", tally.calls), row("calls that ended in an exception", tally.raised);
  row("graphs", tally.graphs), row("recompiles", tally.recompiles), row("places of breaks", tally.breaks), row("ops replayed", tally.replayed);
  row("times that the rest of a call ran eagerly", tally.beyond), row("programs that differ", tally.differ);
  row("programs that differ if add becomes sub", wrong.differ);
  std::cout << "Equal after each call and after a write into each output. tests/tracer_fuzz_test.cpp does this with more kinds of steps and with\n"
               "gradients, 1,000 programs in each run of the tests and 24,000 in the full one. PyTorch rewrites Python's bytecode to capture a\n"
               "subgraph; here the function runs on every call, and what it does is recorded, or compared with the record.\n";
  if (tally.differ != 0) fail("{} of {} programs differ; {}", tally.differ, tally.programs, tally.first);
  if (wrong.differ < 100) fail("only {} of {} programs notice that add has become sub", wrong.differ, wrong.programs);
  return {.id = "1.h",
          .title = "subgraphs are captured safely at run time",
          .article = "subgraphs are captured safely at run time",
          .measured = std::format("{} random programs, {} calls ({} end in an exception), {} graphs, {} recompiles, {} places of breaks: {} programs differ "
                                  "after a call or after a write into each output; with an op made wrong on purpose {} do",
                                  tally.programs, tally.calls, tally.raised, tally.graphs, tally.recompiles, tally.breaks, tally.differ, wrong.differ),
          .verdict = "reproduced"};
}

#include "s1_step.h"

std::vector<Claim> lesson() { return claims_of({built_once, one_graph, peak_memory, same_code, random_programs}); }

}  // namespace

int main(int argc, char** argv) { return run_lesson("s1_static_graph", argc, argv, lesson); }
