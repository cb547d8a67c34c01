// Loop nests as C, compiled, held to their meaning point by point.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "fusion_random_kernel.hpp"
#include "ir_support.hpp"
using namespace tenon;

namespace tenon::fusion {
std::string printed(Kernel const& kernel, std::int64_t stream_from);
void run_printed(Kernel const& kernel, void* main, void* finish, void* apply, std::span<std::int64_t const> parameters, std::span<double const> real_parameters,
                 std::span<std::byte* const> buffers, std::int64_t share);
}  // namespace tenon::fusion

TEST_CASE("random kernels: as C they give what they mean") {
  if (!device::toolchain()) {
    std::cout << "SKIP: random kernels as C: no C compiler on this machine\n";
    return;
  }
  constexpr int at_once = 40;  // of one source
  std::int64_t closed = 0, all = 0;
  for (int first = 0, count = support::tier(40, 120, 4000); first < count; first += at_once) {
    std::vector<support::RandomKernel> list;
    std::string text(fusion::prelude());
    for (int seed = first; seed < first + at_once; ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed) + 10'000);
      list.push_back(support::random_kernel(random, {.points = seed % 4 == 0 ? 4'000 : 600, .empty = false}));
      list.back().kernel.name = std::format("kernel_{}", seed);
      text += fusion::printed(list.back().kernel, seed % 3 ? 1 << 20 : 0);
    }
    device::Library const library(device::compile(*device::toolchain(), text).bytes, "tenon_printed");
    for (auto& made : list) {
      auto buffers = made.buffers;
      fusion::run_printed(made.kernel, library.symbol(made.kernel.name), library.symbol(made.kernel.name + "_finish"), library.symbol(made.kernel.name + "_apply"), made.parameters, made.real_parameters,
                          support::addresses(buffers), 300);
      auto const wrong = support::differences(made, buffers, &closed, &all);
      if (!wrong.empty()) FAIL_CHECK(made.kernel.name << ":\n" << wrong << fusion::to_string(made.kernel) << fusion::printed(made.kernel, 0));
    }
  }
  CHECK(static_cast<double>(closed) > 0.7 * static_cast<double>(all));
}
