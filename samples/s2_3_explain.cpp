// 2.3: why did it break, why did it compile again, what would have helped.
//
// Run it:  ninja -C build && ./build/samples/s2_3_explain [--json[=FILE]]
//
// The article calls explain() on a compiled function and names two failures, tensor device and shape mutation, that are said to throw a function
// back to eager mode. Here each is provoked. The second device is sim:0: host memory that dispatches as another device does.
import std;
import tenon;
#include "lesson.h"
using namespace tenon;

namespace {

template <class F>
std::string error_of(F const& act) {
  try {
    act();
  } catch (Error const& error) {
    return error.what();
  }
  return "no error";
}
Tensor on_device(Tensor const& x, std::string_view device) { return to(x, base::device_of(device)); }

// 1. The line.
// explain is called on the compiled function itself and reports all of its calls. Three things are kept apart that the article mixes: a *break*
// ends a graph at a line of yours and costs a launch; a failed *guard* makes one more graph; only beyond the limit of 8 graphs does a new
// state run eagerly, and that is counted.
Tensor normalised(Tensor const& x, std::string const& mode) {
  Tensor const y = x - mean(x);
  double const spread = sum(y * y).item();
  return mode == "double" ? y * (2 / spread) : y / spread;
}
constexpr std::uint32_t line_of_item = std::source_location::current().line() - 3;

struct Line {
  Explanation report;
  Status now;
};
Line the_line() {
  heading("the line");
  auto const fast = compile(normalised, {.name = "normalised"});
  for (int state = 0; state < 12; ++state) (void)fast(tensor({1, 2, 3}), std::format("mode {}", state));
  auto const report = explain(fast)(tensor({1, 2, 3}), std::string("mode 0"));
  auto const& cause = report.breaks.at(0);
  std::cout << std::format("{} calls, 12 texts as argument: {} breaks at {} place, which is line {}:\n{}", report.calls, cause.times, report.breaks.size(),
                           cause.at.line, base::caret(cause.at));
  std::cout << "the last recompile: " << report.recompiles.back().reason.text << "\nwhat it does now:\n" << status(fast);
  if (report.breaks.size() != 1 || cause.at.line != line_of_item)
    fail("one break at line {} was due, not {} with the first at {}", line_of_item, report.breaks.size(), cause.at.line);
  return {report, status(fast)};
}

// 2. x + randn(1).
// The article says that this line breaks the guards ("tensor device mismatch", "shape mutation"). A random op is an op: its size and device are
// known, its elements are drawn in the graph, new ones on each call.
Tensor noisy(Tensor const& x) { return x + randn({1}); }
struct Noise {
  Explanation report;
  std::size_t different;
  std::string eager, compiled;
};
Noise noise() {
  heading("x + randn(1)");
  manual_seed(1);
  auto const fast = compile(noisy, {.fullgraph = true, .name = "noisy"});
  std::set<float> drawn;
  for (int call = 0; call < 5; ++call) drawn.insert(fast(ones({2})).to_vector<float>()[0]);
  auto const report = describe(fast.state());
  std::cout << std::format("with fullgraph, {} calls: {} graph, {} breaks, {} recompiles, {} hits, {} different results\n", report.calls, report.graphs,
                           report.breaks.size(), report.recompiles.size(), report.hits, drawn.size());
  Tensor const there = on_device(ones({2}), "sim:0");
  auto const eager = error_of([&] { (void)noisy(there); }), compiled = error_of([&] { (void)compile(noisy)(there); });
  std::cout << "with x on sim:0, eagerly:  " << eager << "\nand compiled:            " << compiled << "\n";
  if (report.graphs != 1 || !report.breaks.empty() || !report.recompiles.empty() || drawn.size() != 5)
    fail("1 graph, 0 breaks, 0 recompiles and 5 results were due, not {}, {}, {} and {}", report.graphs, report.breaks.size(), report.recompiles.size(),
         drawn.size());
  if (eager == "no error" || compiled != eager) fail("the same error was due eagerly and compiled, not '{}' and '{}'", eager, compiled);
  return {report, drawn.size(), eager, compiled};
}

// 3. What explain returns.
// PyTorch's returns breaks, ops and guards; why a guard failed stands in another log. Ours holds for each recompile the guard, both values and the
// counterfactual: what would have made this call a hit. Advice can be tested, so the same calls are made again with it taken.
Tensor layer(Tensor const& x, Tensor const& w, double scale) { return relu(matmul(x, w)) * scale; }
struct Advice {
  Explanation before;
  std::size_t after, json, html;
};
Advice advice() {
  heading("what explain returns");
  Tensor const w = ones({3, 2});
  auto const calls = [&](auto const& fast, auto const& scale) {
    for (int const rows : {4, 6, 9}) (void)fast(ones({rows, 3}), w, scale(rows));
    return describe(fast.state());
  };
  auto const before = calls(compile(layer, {.name = "layer"}), [](int rows) { return 1.0 / rows; });
  std::cout << before;
  auto const changed = [](Tensor const& x, Tensor const& m, Tensor const& scale) { return relu(matmul(x, m)) * scale; };
  auto const after = calls(compile(changed, {.dynamic = Dynamic::always, .name = "layer"}), [](int rows) { return full({}, 1.0 / rows); });
  std::cout << std::format("\nthe same calls, sizes as symbols from the start and the number in a tensor: {} graph, {} recompiles\n", after.graphs,
                           after.recompiles.size());
  auto const json = to_json(before), html = to_html(before);
  std::cout << std::format("the same report is {} bytes of JSON, and a page of {} bytes that needs no other file\n", json.size(), html.size());
  if (before.recompiles.empty() || !after.recompiles.empty())
    fail("the advice did not help: {} recompiles, then {}", before.recompiles.size(), after.recompiles.size());
  for (auto const& recompile : before.recompiles)
    if (recompile.counterfactual.empty() || recompile.reason.text.empty()) fail("a recompile has no reason or no advice");
  return {before, after.recompiles.size(), json.size(), html.size()};
}

// 4. Devices.
// Operands on two devices are the user's mistake, named with both of them, eagerly and compiled alike. Calls that alternate between devices are
// none: a second graph is made, and from then on both hit.
struct Devices {
  std::string mixed;
  Explanation alternating, one;
};
Devices devices() {
  heading("devices");
  auto const sum_of = [](Tensor const& a, Tensor const& b) { return a + b; };
  Tensor const here = ones({2}), there = on_device(here, "sim:0");
  auto const mixed = error_of([&] { (void)compile(sum_of)(here, there); });
  std::cout << "mixed: " << mixed << "\n";
  auto const doubled = [](Tensor const& x) { return x * 2.0; };
  auto const fast = compile(doubled, {.name = "doubled"}), moved = compile(doubled, {.name = "doubled"});
  for (int call = 0; call < 6; ++call) {
    (void)fast(call % 2 ? there : here);
    (void)moved(on_device(call % 2 ? there : here, "cpu"));
  }
  auto const alternating = describe(fast.state()), one = describe(moved.state());
  std::cout << std::format("alternating, 6 calls: {} graphs, {} hits, {} run eagerly\n  {}\n  a hit with: {}\nall moved to one device: {} graph, {} hits\n",
                           alternating.graphs, alternating.hits, alternating.eager_calls, alternating.recompiles.at(0).reason.text,
                           alternating.recompiles[0].counterfactual, one.graphs, one.hits);
  if (mixed == "no error" || alternating.graphs != 2 || alternating.eager_calls != 0 || alternating.hits != 4 || one.graphs != 1)
    fail("an error, 2 graphs with 4 hits and 1 graph were due, not '{}', {} with {} and {}", mixed, alternating.graphs, alternating.hits, one.graphs);
  return {mixed, alternating, one};
}

// 5. resize_.
// It changes a tensor's sizes in place, so the graph ends there. Taking the part that is wanted as a view needs no break.
Tensor shortened_in_place(Tensor const& x) {
  Tensor y = x * 2.0;
  y.resize_({2});
  return y + 1.0;
}
Tensor shortened(Tensor const& x) { return slice(x * 2.0, 0, 0, 2) + 1.0; }
struct Resized {
  Explanation broken, fixed;
  std::string error;
};
Resized resized() {
  heading("resize_");
  Tensor const x = tensor({1, 2, 3});
  auto const broken = explain(shortened_in_place, {.name = "shortened_in_place"})(x), fixed = explain(shortened, {.fullgraph = true, .name = "shortened"})(x);
  auto const error = error_of([&] { (void)compile(shortened_in_place, {.fullgraph = true, .name = "shortened_in_place"})(x); });
  std::cout << broken << "with fullgraph: " << error << "\nwith a view instead: " << fixed;
  bool const equal = compile(shortened_in_place)(x).to_vector<float>() == compile(shortened)(x).to_vector<float>();
  if (broken.breaks.size() != 1 || !fixed.breaks.empty() || !fixed.error.empty() || error == "no error" || !equal)
    fail("1 break, then 0 with the same elements, and an error with fullgraph were due, not {}, {} and '{}'", broken.breaks.size(), fixed.breaks.size(), error);
  return {broken, fixed, error};
}

std::vector<Claim> lesson() {
  auto const start = std::chrono::steady_clock::now();
  double told = 0;
  auto const seconds = [&] {
    double const now = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return now - std::exchange(told, now);
  };
  std::vector<Claim> claims;
  auto const [line, now] = the_line();
  claims.push_back(
      {.id = "2.3.a",
       .title = "explain() on a compiled function finds the line",
       .article = "repeated fallback goes with repeated guard failures; explain() on the compiled function pinpoints the line",
       .measured = std::format("the break is found at its line, {} calls of it counted; 12 states gave {} recompiles, and only beyond the limit of 8 "
                               "graphs {} calls ran eagerly: a failed guard compiles, it does not fall back",
                               line.breaks[0].times, line.recompiles.size(), now.eager_calls),
       .verdict = "reproduced with a difference",
       .seconds = seconds()});
  auto const random = noise();
  claims.push_back(
      {.id = "2.3.b",
       .title = "x + randn(1) breaks no guard",
       .article = "x + randn(1) breaks the guards (tensor device mismatch, shape mutation) and forces fallback",
       .measured = std::format("{} graph, {} breaks, {} recompiles in {} calls with fullgraph, {} different results; with x on another device it is "
                               "the same error eagerly and compiled",
                               random.report.graphs, random.report.breaks.size(), random.report.recompiles.size(), random.report.calls, random.different),
       .verdict = "contradicted",
       .seconds = seconds()});
  auto const told_so = advice();
  claims.push_back(
      {.id = "2.3.c",
       .title = "explain gives breaks, ops and guards with reasons",
       .article = "explain returns graph breaks, ops and guards; guards list each condition and its reason of failure",
       .measured = std::format("{} graphs, {} ops, {} recompiles, each with guard, both values and what would have been a hit; with the advice taken "
                               "{} recompiles; as text, {} bytes of JSON, {} bytes of HTML",
                               told_so.before.graphs, told_so.before.ops, told_so.before.recompiles.size(), told_so.after, told_so.json, told_so.html),
       .verdict = "reproduced",
       .seconds = seconds()});
  auto const device = devices();
  claims.push_back(
      {.id = "2.3.d",
       .title = "devices: mixed operands are an error, alternating calls two graphs",
       .article = "calls with mixed CPU and accelerator tensors fail the guard on the tensor's device; fix: one device",
       .measured = std::format("mixed operands: an error that names both; 6 alternating calls: {} graphs, {} hits, {} run eagerly; on one device {} graph",
                               device.alternating.graphs, device.alternating.hits, device.alternating.eager_calls, device.one.graphs),
       .verdict = "reproduced with a difference",
       .seconds = seconds()});
  auto const sizes = resized();
  claims.push_back({.id = "2.3.e",
                    .title = "resize_ breaks the graph",
                    .article = "in-place resize_ is a shape mutation that breaks capture; fix: static shapes or no in-place resize",
                    .measured = std::format("{} break with reason and hint, an error with fullgraph; with a view instead {} breaks and the same elements",
                                            sizes.broken.breaks.size(), sizes.fixed.breaks.size()),
                    .verdict = "reproduced",
                    .seconds = seconds()});
  heading("verdicts");
  for (auto const& claim : claims) std::cout << std::format("{} {}: {}\n", claim.id, claim.verdict, claim.measured);
  return claims;
}

}  // namespace

int main(int argc, char** argv) { return run_lesson("s2_3_explain", argc, argv, lesson); }
