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
    for (double const share : {0.0, 0.7, 0.6, 0.5}) {
      auto const program = fusion::plan(graph, {.memory_budget = static_cast<std::int64_t>(share * static_cast<double>(eager))});
      auto const needs = fusion::footprint(program);
      std::cout << std::format("{}: {} nodes, {} launches; planned {} bytes, of eager's {} {:.3f}, of the bound {:.4f}\n{}", name, graph.nodes.size(),
                               program.launches.size(), needs.peak(), eager, static_cast<double>(needs.peak()) / static_cast<double>(eager),
                               static_cast<double>(needs.peak()) / static_cast<double>(needs.lower_bound()), fusion::report(program, {}, 12));
      CHECK(static_cast<double>(needs.peak()) <= 0.75 * static_cast<double>(eager));
      CHECK(static_cast<double>(needs.peak()) <= 1.05 * static_cast<double>(needs.lower_bound()));
    }
  }
}
