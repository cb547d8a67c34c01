// The entry of libFuzzer for the target that TENON_FUZZ_TARGET names: scripts/fuzz.sh builds and runs it.
#define DOCTEST_CONFIG_IMPLEMENT  // what golden.hpp refers to, without doctest's main
#include <doctest/doctest.h>
#include <stddef.h>
#include <stdint.h>
import std;
import tenon.base;
import tenon.ir;
#include "fuzz.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace {
fuzz::Target const& target() {
  static auto const& found = *std::ranges::find(fuzz::targets(), std::string_view(TENON_FUZZ_TARGET), &fuzz::Target::name);
  return found;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
  (void)target().run({reinterpret_cast<char const*>(data), size});
  return 0;
}

// Now and then a seed, else our changes, which know the words, or libFuzzer's own.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  static auto const seeds = target().seeds();
  std::mt19937 random(seed);
  if (random() % 3 == 0 && size > 0) return LLVMFuzzerMutate(data, size, most);
  std::string text = size == 0 || random() % 64 == 0 ? seeds[random() % seeds.size()] : std::string(reinterpret_cast<char const*>(data), size);
  text = fuzz::mutated(std::move(text), target().words, random);
  auto const length = std::min(text.size(), most);
  std::copy_n(text.data(), length, reinterpret_cast<char*>(data));
  return length;
}
