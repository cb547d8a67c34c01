// Every reader of text: mutated texts are refused with an Error, or what they say prints, reads and verifies. scripts/fuzz.sh does it with libFuzzer.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "fuzz/fuzz.hpp"
#include "ir_support.hpp"

namespace {

void throw_texts_at(std::string_view name) {
  auto const all = fuzz::targets();
  auto const target = std::ranges::find(all, name, &fuzz::Target::name);
  REQUIRE(target != all.end());
  auto const seeds = target->seeds();
  REQUIRE(!seeds.empty());
  constexpr unsigned start = 22;
  std::mt19937 random(start);
  int const count = support::tier(2'000, 20'000, 200'000);
  int accepted = 0, failed = 0;
  for (auto const& seed : seeds) {
    auto const why = support::caught([&] { CHECK_MESSAGE(target->run(seed), "a seed of " << name << " is refused:\n" << seed); });
    CHECK_MESSAGE(why == "nothing", why << "\n" << seed);
  }
  for (int turn = 0; turn < count && failed < 5; ++turn) {
    auto const text = fuzz::mutated(seeds[random() % seeds.size()], target->words, random);
    try {
      accepted += target->run(text);
    } catch (std::exception const& error) {
      ++failed;
      FAIL_CHECK(std::string(error.what()) << "\n" << text);
    }
  }
  std::cout << std::format("fuzz {}: {} texts from {} seeds (start {}), {} accepted\n", name, count, seeds.size(), start, accepted);
  CHECK(accepted > 0);
  CHECK(accepted < count);
}
}  // namespace

TEST_CASE("fuzz: our own text") { throw_texts_at("own"); }
TEST_CASE("fuzz: FX's printed graph") { throw_texts_at("fx"); }
TEST_CASE("fuzz: FX's generated code") { throw_texts_at("fx_code"); }
TEST_CASE("fuzz: StableHLO") { throw_texts_at("stablehlo"); }
TEST_CASE("fuzz: HLO") { throw_texts_at("hlo"); }
