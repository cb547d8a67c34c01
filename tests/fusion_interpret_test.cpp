// The interpreter of loop nests, held to their meaning point by point.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "fusion_random_kernel.hpp"
#include "ir_support.hpp"
using namespace tenon;

namespace {
std::vector<std::vector<std::byte>> interpreted(support::RandomKernel const& random) {
  auto buffers = random.buffers;
  fusion::interpret(random.kernel, support::addresses(buffers), random.parameters, random.real_parameters);
  return buffers;
}
struct Threads {
  int before = device::threads();
  ~Threads() { device::set_threads(before); }
};
}  // namespace

TEST_CASE("random kernels: the interpreter gives what they mean, the same bits with one thread and with several") {
  Threads const restore;
  int const count = support::tier(60, 300, 6000);
  std::int64_t closed = 0, all = 0;
  std::array<int, 8> levels{};
  int most_passes = 0, kept = 0, row_folds = 0;
  for (int seed = 0; seed < count; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    auto const made = support::random_kernel(random, {.points = seed % 50 == 0 ? 60'000 : seed % 4 == 0 ? 4'000 : 600});
    REQUIRE_NOTHROW(fusion::verify(made.kernel));
    device::set_threads(1);
    auto const one = interpreted(made);
    auto const wrong = support::differences(made, one, &closed, &all);
    if (!wrong.empty()) FAIL_CHECK("seed " << seed << ":\n" << wrong << fusion::to_string(made.kernel));
    device::set_threads(3);
    CHECK_MESSAGE((one == interpreted(made)), "seed " << seed << ": other bits with three threads\n" << fusion::to_string(made.kernel));
    for (auto const& store : made.kernel.stores) ++levels[made.kernel.steps[static_cast<std::size_t>(store.step)].level];
    most_passes = std::max(most_passes, fusion::passes(made.kernel));
    for (auto const& step : made.kernel.steps) {
      kept += step.keep;
      row_folds += step.kind == fusion::Step::Kind::reduce && (step.over & fusion::over_rows);
    }
  }
  // The generator does reach what the test is about.
  CHECK(static_cast<double>(closed) > 0.7 * static_cast<double>(all));
  CHECK(most_passes >= 3);
  CHECK(kept > 0);
  CHECK(row_folds > 0);
  CHECK(std::ranges::count(levels, 0) <= 1);
}
