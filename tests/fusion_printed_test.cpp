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

namespace {
// Random kernels as C, many of one source: values as they mean, the same bits with any number of threads. How many there were of each form.
std::array<int, 4> check_printed(unsigned seeds, int count, std::function<support::KernelOptions(int)> const& options, double closed_part) {
  constexpr int at_once = 40;
  constexpr std::array threads{1, 2, 3, 5};
  struct Threads {
    int before = device::threads();
    ~Threads() { device::set_threads(before); }
  } const restore;
  std::int64_t closed = 0, all = 0;
  std::array<int, 4> forms{};
  for (int first = 0; first < count; first += at_once) {
    std::vector<support::RandomKernel> list;
    std::string text(fusion::prelude());
    for (int seed = first; seed < first + at_once; ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed) + seeds);
      auto const& made = list.emplace_back(support::random_kernel(random, options(seed)));
      list.back().kernel.name = std::format("kernel_{}", seed);
      REQUIRE_NOTHROW(fusion::verify(made.kernel));
      text += fusion::printed(made.kernel, seed % 3 ? 1 << 20 : 0);
    }
    device::Library const library(device::compile(*device::toolchain(), text).bytes, "tenon_printed");
    for (auto& made : list) {
      auto const& name = made.kernel.name;
      std::vector<std::vector<std::byte>> one;
      for (int const count : threads) {
        device::set_threads(count);
        auto buffers = made.buffers;
        fusion::run_printed(made.kernel, library.symbol(name), library.symbol(name + "_finish"), library.symbol(name + "_apply"), made.parameters,
                            made.real_parameters, support::addresses(buffers), 300);
        if (count == 1)
          one = std::move(buffers);
        else if (one != buffers)
          FAIL_CHECK(name << ": other bits with " << count << " threads\n" << fusion::to_string(made.kernel));
      }
      auto const wrong = support::differences(made, one, &closed, &all);
      if (!wrong.empty()) FAIL_CHECK(name << ":\n" << wrong << fusion::to_string(made.kernel) << fusion::printed(made.kernel, 0));
      ++forms[static_cast<std::size_t>(made.kernel.schedule.form)];
    }
  }
  CHECK(static_cast<double>(closed) > closed_part * static_cast<double>(all));
  return forms;
}
}  // namespace

TEST_CASE("random kernels: as C they give what they mean, the same bits with any number of threads") {
  if (!device::toolchain()) {
    std::cout << "SKIP: random kernels as C: no C compiler on this machine\n";
    return;
  }
  check_printed(
      10'000, support::tier(40, 120, 4000), [](int seed) { return support::KernelOptions{.points = seed % 4 == 0 ? 4'000 : 600, .empty = false}; }, 0.7);
}

TEST_CASE("random kernels whose sums are carried along, as C") {
  if (!device::toolchain()) {
    std::cout << "SKIP: random kernels whose sums are carried along: no C compiler on this machine\n";
    return;
  }
  int const count = support::tier(40, 120, 4000);
  auto const forms = check_printed(
      50'000, count, [](int seed) { return support::KernelOptions{.points = seed % 3 == 0 ? 9'000 : 900, .steps = 8, .followers = 100, .empty = false}; }, 0.6);
  CHECK(12 * forms[static_cast<std::size_t>(fusion::Form::online)] > count);
  CHECK(12 * forms[static_cast<std::size_t>(fusion::Form::split)] > count);
}
