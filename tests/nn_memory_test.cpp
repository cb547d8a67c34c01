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
    for (double const share : {0.0, 0.75, 0.5}) {
      auto const program = fusion::plan(graph, {.memory_budget = static_cast<std::int64_t>(share * static_cast<double>(eager))});
      auto const needs = fusion::footprint(program);
      double const of_eager = static_cast<double>(needs.peak()) / static_cast<double>(eager),
                   of_bound = static_cast<double>(needs.peak()) / static_cast<double>(needs.lower_bound());
      std::cout << std::format("{}, budget {} of eager's peak: {} launches, {} bytes planned, {:.3f} of eager's {}, {:.4f} of the bound\n{}", name, share,
                               program.launches.size(), needs.peak(), of_eager, eager, of_bound, fusion::report(program, {}, 6));
      CHECK(of_bound <= 1.05);
      CHECK(of_eager <= (share == 0 ? 1 : 0.75));
    }
  }
}
