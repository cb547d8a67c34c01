// Planned memory of training steps beside that of running them node by node.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
import tenon.guards;
import tenon.tracer;
import tenon.nn;
#include "sample_models.hpp"
using namespace tenon;

TEST_CASE("planned memory of training steps: at most 0.75 of eager's, within 5 % of the lower bound") {
  for (auto const& [name, graph] : support::training_steps()) {
    std::int64_t const eager = fusion::eager_peak(graph);
    for (double const share : {0.0, fusion::LowerOptions{}.memory_share, 0.5}) {
      auto const program = fusion::plan(graph, {.memory_share = share});
      auto const needs = fusion::footprint(program);
      double const of_eager = static_cast<double>(needs.peak()) / static_cast<double>(eager),
                   of_bound = static_cast<double>(needs.peak()) / static_cast<double>(needs.lower_bound());
      std::cout << std::format("{}, a share of {} of eager's peak: {} launches, {} bytes planned, {:.3f} of eager's {}, {:.4f} of the bound\n{}", name, share,
                               program.launches.size(), needs.peak(), of_eager, eager, of_bound, fusion::report(program, {}, 6));
      CHECK(of_bound <= 1.05);
      CHECK(of_eager <= (share == 0 ? 1 : 0.75));
    }
  }
}

TEST_CASE("a run holds what its plan says") {
  for (auto const& [name, graph] : support::training_steps()) {
    auto const program = fusion::plan(graph, {.interpret = true, .memory_budget = 1});
    auto const needs = fusion::footprint(program);
    std::vector<base::Ref<base::Buffer>> held;
    std::vector<ir::Strided> inputs;
    for (int const input : graph.inputs) {
      auto const& meta = *graph.values[static_cast<std::size_t>(input)].meta;
      auto const sizes = ir::values(meta.sizes);
      held.push_back(base::make_ref<base::Buffer>(base::numel(sizes) * base::bytes_of(meta.dtype)));
      std::memset(held.back()->data(), 0, static_cast<std::size_t>(held.back()->bytes()));
      inputs.push_back({held.back()->data(), meta.dtype, sizes, base::contiguous_strides(sizes)});
    }
    auto const run = fusion::runner(program);
    base::reset_peak();
    auto const before = base::memory_counters().live;
    auto const done = run(inputs, {});
    CHECK_MESSAGE(base::memory_counters().peak - before == needs.peak(), name);
  }
}

namespace {
struct Counts {
  int calls = 0, kernels = 0, forms = 0;  // launches that are a library's, launches of generated kernels, and how many of these differ
  double bytes = 0;                       // that generated kernels read and write
  bool operator==(Counts const&) const = default;
};
Counts counts_of(fusion::Program const& program) {
  Counts counts{.forms = static_cast<int>(program.kernels.size())};
  for (auto const& launch : program.launches) {
    ++(launch.node >= 0 ? counts.calls : counts.kernels);
    if (launch.node < 0) counts.bytes += static_cast<double>(fusion::cost(program.kernels[static_cast<std::size_t>(launch.kernel)]).bytes);
  }
  return counts;
}
}  // namespace

TEST_CASE("kernels of a training step, and the bytes that fusion saves") {
  // The MLP: three products forward, five backward; bias + gelu, bias + gelu with what its gradient needs, the softmax of the logits, the loss,
  // its gradient, three sums over rows with their update, and three updates of weights. Layers of the GPT share their kernels: 52 are 23 forms.
  std::map<std::string, Counts> const due{{"MLP", {8, 10, 10, 14343372}}, {"CNN", {13, 13, 13, 2371244}}, {"GPT", {46, 52, 23, 17241484}}};
  for (auto const& [name, graph] : support::training_steps()) {
    auto const now = counts_of(fusion::plan(graph)), alone = counts_of(fusion::plan(graph, {.group = {.fuse = false}}));
    auto const words = std::format("{}: {} calls, {} kernels of {} forms, {:.0f} bytes; one by one {} calls, {} kernels of {} forms, {:.0f} bytes", name,
                                   now.calls, now.kernels, now.forms, now.bytes, alone.calls, alone.kernels, alone.forms, alone.bytes);
    MESSAGE(words);
    CHECK_MESSAGE(now == due.at(name), words);
    CHECK_MESSAGE(now.kernels * 4 < alone.kernels, words);
    CHECK_MESSAGE(now.bytes < 0.6 * alone.bytes, words);
  }
}
