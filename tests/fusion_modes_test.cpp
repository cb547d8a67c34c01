// Modes: what tuning may choose and how that is held to, what a prepared launch costs, runners called from several threads.
#include <doctest/doctest.h>
#include <time.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_support.hpp"

namespace ir = tenon::ir;
namespace fusion = tenon::fusion;
using fusion::Choices;
using support::Array;
using Numbers = std::vector<double>;

namespace {
Array wave(tenon::base::Shape const& sizes, double step) {
  Numbers values;
  for (std::int64_t i = 0; i < tenon::base::numel(sizes); ++i) values.push_back(std::sin(step * static_cast<double>(i + 1)));
  return support::array(tenon::base::DType::f32, sizes, values);
}
// A product with a kernel behind it, a softmax, and a sum over few long rows.
constexpr std::string_view text = R"(graph mixed(%0: f32[64, 48], %1: f32[48, 32], %2: f32[32], %3: f32[3, 40000]) {
  %4 = matmul(%0, %1): f32[64, 32]
  %5 = add(%4, %2): f32[64, 32]
  %6 = gelu(%5): f32[64, 32]
  %7 = softmax(%6, dim=1): f32[64, 32]
  %8 = exp(%3): f32[3, 40000]
  %9 = sum(%8, dim=[1]): f32[3]
  return %6, %7, %9
}
)";
struct Mixed {
  ir::Graph graph = ir::parse_graph(text);
  std::array<Array, 4> held{wave({64, 48}, 0.7), wave({48, 32}, 1.3), wave({32}, 2.1), wave({3, 40000}, 0.01)};
  std::array<ir::Strided, 4> in{held[0].at, held[1].at, held[2].at, held[3].at};
  // Values within rounding of the evaluator's, as bytes.
  std::vector<Numbers> results(Choices const& choices, fusion::Mode mode = fusion::Mode::normal) const {
    auto const done = fusion::lower(graph, {.mode = mode, .choices = choices})(in, {});
    auto const expected = support::run(graph, in);
    std::vector<Numbers> list;
    for (std::size_t k = 0; k < done.outputs.size(); ++k) {
      list.push_back(support::reals(done.outputs[k]));
      auto const want = support::reals(expected.outputs[k]);
      CHECK(support::distance(list.back(), want) <= 2e-5 * support::scale_of(want));
    }
    return list;
  }
};
int launch_of(fusion::Program const& program, std::string_view op) {
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    auto const& launch = program.launches[l];
    for (int const n : program.grouping.groups[static_cast<std::size_t>(launch.group)].nodes)
      if (program.grouping.graph.nodes[static_cast<std::size_t>(n)].op->name == op) return static_cast<int>(l);
  }
  return -1;
}
double thread_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}
}  // namespace

TEST_CASE("every choice changes the plan as it says, and no value") {
  Mixed const mixed;
  auto const plan = [&](Choices const& choices) { return fusion::plan(mixed.graph, {.choices = choices}); };
  auto const usual = plan({});
  int const product = launch_of(usual, "matmul"), sum = launch_of(usual, "exp");
  REQUIRE((product >= 0 && sum >= 0));
  auto const at = [](std::string_view what, int launch) { return std::format("{} {}", what, launch); };

  CHECK(plan({{"group", "one by one"}}).launches.size() > plan({{"group", "smaller"}}).launches.size());
  CHECK(plan({{"group", "smaller"}}).launches.size() >= usual.launches.size());
  auto const node = usual.grouping.groups[static_cast<std::size_t>(usual.launches[static_cast<std::size_t>(sum)].group)].nodes[0];
  CHECK(plan({{"apart", std::to_string(node)}}).launches.size() == usual.launches.size() + 1);
  auto const split = [](fusion::Program const& program, int launch) {
    return program.kernels[static_cast<std::size_t>(program.launches[static_cast<std::size_t>(launch)].kernel)].schedule.form == fusion::Form::split;
  };
  CHECK(split(usual, sum));
  CHECK_FALSE(split(plan({{at("kernel", sum), "row"}}), sum));
  CHECK(usual.launches[static_cast<std::size_t>(product)].with_next);
  CHECK_FALSE(plan({{at("rows", product), "apart"}}).launches[static_cast<std::size_t>(product)].with_next);
  CHECK(plan({{at("gemm", product), "eigen"}}).launches[static_cast<std::size_t>(product)].engine == fusion::Engine::eigen);

  for (auto const& choices : {Choices{}, Choices{{"group", "one by one"}}, Choices{{"group", "smaller"}}, Choices{{at("kernel", sum), "row"}},
                              Choices{{at("rows", product), "apart"}, {at("gemm", product), "eigen"}}}) {
    auto const first = mixed.results(choices);
    CHECK(first == mixed.results(choices));  // equal choices, equal bits
    CHECK(first == mixed.results(choices, fusion::Mode::reduce_overhead));
    CHECK(plan(choices).source == plan(choices).source);
  }
}

TEST_CASE("a choice that means nothing is one line that names it") {
  Mixed const mixed;
  auto const refused = [&](std::string const& name, std::string const& value) {
    return support::caught([&] { fusion::plan(mixed.graph, {.choices = {{name, value}}}); });
  };
  CHECK(refused("group", "all") == "choice \"group\": \"all\" is none of fused, smaller, one by one");
  CHECK(refused("apart", "3 x") == "choice \"apart\": \"3 x\" is no list of nodes");
  CHECK(refused("kernel 99", "row") == "choice \"kernel 99\": \"row\": the plan has nothing of that name to choose");
  CHECK(refused("colour", "red") == "choice \"colour\": \"red\": the plan has nothing of that name to choose");
  int const product = launch_of(fusion::plan(mixed.graph), "matmul");
  CHECK(refused(std::format("gemm {}", product), "abacus") == std::format("choice \"gemm {}\": \"abacus\" does not go with it here", product));
  CHECK(refused(std::format("kernel {}", product + 1), "fast") == std::format("choice \"kernel {}\": \"fast\" does not go with it here", product + 1));
}

TEST_CASE("tuning ends near its budget, and what it chose can be used again") {
  Mixed const mixed;
  CHECK(fusion::tune(mixed.graph, {.tune_seconds = 0}).empty());
  auto const chosen = fusion::tune(mixed.graph, {.tune_seconds = 5});
  for (auto const& [name, value] : chosen) MESSAGE(name << ": " << value);
  if (!chosen.empty()) CHECK(mixed.results(chosen) == mixed.results(chosen, fusion::Mode::max_autotune));
  auto const symbolic = ir::parse_graph(
      "graph s(%0: f32[s0, 64], %1: i64[s0]) symbols(s0=30) {\n  %2 = relu(%0): f32[s0, 64]\n  %3 = sum(%2, dim=[1]): f32[s0]\n"
      "  %4 = gather(%3, %1, dim=0): f32[s0]\n  return %4\n}\n");
  auto const run = fusion::lower(symbolic, {.mode = fusion::Mode::max_autotune, .tune_seconds = 0.1});
  for (std::int64_t const size : {2, 7, 300}) {
    auto const x = support::array(tenon::base::DType::f32, {size, 64}, Numbers(static_cast<std::size_t>(64 * size), 0.5));
    auto const places = support::array(tenon::base::DType::i64, {size});
    std::array const in{x.at, places.at};
    CHECK(support::reals(run(in, {.whole = {size}, .real = {0}}).outputs[0]) == Numbers(static_cast<std::size_t>(size), 32.0));
  }
}

TEST_CASE("measured: what a call costs beside its kernels") {
  std::string layers = "graph layers(%0: f32[8, 8], %1: f32[8, 8]) {\n";
  for (int k = 0; k < 8; ++k)
    layers += std::format("  %{} = matmul(%{}, %1): f32[8, 8]\n  %{} = tanh(%{}): f32[8, 8]\n", 2 + 2 * k, k ? 1 + 2 * k : 0, 3 + 2 * k, 2 + 2 * k);
  layers += "  return %17\n}\n";
  std::pair<std::string_view, std::string> const graphs[] = {
      {"one kernel", "graph small(%0: f32[8, 8], %1: f32[8, 8]) {\n  %2 = add(%0, %1): f32[8, 8]\n  return %2\n}\n"}, {"8 products and kernels", layers}};
  auto const x = wave({8, 8}, 0.3), y = wave({8, 8}, 0.9);
  std::array const in{x.at, y.at};
  for (auto const& [name, words] : graphs) {
    std::map<fusion::Mode, double> least;
    for (auto const mode : {fusion::Mode::normal, fusion::Mode::reduce_overhead}) {
      auto const run = fusion::lower(ir::parse_graph(words), {.mode = mode});
      ir::Bindings const none;
      double best = 1e12;
      for (int round = 0; round < 60; ++round) {
        auto const start = thread_nanoseconds();
        for (int k = 0; k < 200; ++k) (void)run(in, none);
        best = std::min(best, (thread_nanoseconds() - start) / 200);
      }
      least[mode] = best;
    }
    std::cout << std::format("{}: {:.0f} ns a call, with launches prepared {:.0f} ns\n", name, least[fusion::Mode::normal],
                             least[fusion::Mode::reduce_overhead]);
  }
}

TEST_CASE("a runner is called from several threads at once, with sizes of their own") {
  auto const graph = ir::parse_graph(
      "graph rows(%0: f32[s0, 5], %1: f32[5]) symbols(s0=4) {\n  %2 = mul(%0, %1): f32[s0, 5]\n  %3 = sum(%2, dim=[1], keepdim=true): f32[s0, 1]\n"
      "  %4 = sub(%2, %3): f32[s0, 5]\n  return %4\n}\n");
  for (auto const mode : {fusion::Mode::normal, fusion::Mode::reduce_overhead}) {
    auto const run = fusion::lower(graph, {.mode = mode});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int k = 0; k < 200; ++k) {
          std::int64_t const size = 2 + (t + k) % 7;
          auto const x = support::array(tenon::base::DType::f32, {size, 5}, Numbers(static_cast<std::size_t>(5 * size), 1.0 + t));
          auto const w = support::array(tenon::base::DType::f32, {5}, Numbers(5, 2.0 + k % 3));
          std::array const in{x.at, w.at};
          auto const done = run(in, {.whole = {size}, .real = {0}});
          double const each = (1.0 + t) * (2.0 + k % 3);
          if (support::reals(done.outputs[0]) != Numbers(static_cast<std::size_t>(5 * size), -4 * each)) ++wrong;
        }
      });
    for (auto& thread : threads) thread.join();
    CHECK(wrong.load() == 0);
  }
}
