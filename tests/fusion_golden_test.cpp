// Golden ops and programs through compiled kernels and through the interpreter.
#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "golden_ops.hpp"
#include "ir_support.hpp"
using namespace tenon;

namespace {
golden::Run through(fusion::LowerOptions const& options) {
  return [options](ir::Graph const& graph, std::span<ir::Strided const> inputs) { return fusion::lower(graph, options)(inputs, {}); };
}
// One graph of `every` is compiled, which costs 50 ms, the others are interpreted; TENON_TIER=full compiles them all.
golden::Run mostly_interpreted(int every) {
  return [every, compiled = through({}), interpreted = through({.interpret = true}), count = 0](auto const& graph, auto inputs) mutable {
    return count++ % every == 0 ? compiled(graph, inputs) : interpreted(graph, inputs);
  };
}
}  // namespace

TEST_CASE("golden ops through the interpreter") { golden::check_ops("ops", through({.interpret = true})); }
TEST_CASE("golden opinfo through the interpreter") { golden::check_ops("opinfo", through({.interpret = true})); }
TEST_CASE("golden ops through compiled kernels") { golden::check_ops("ops", mostly_interpreted(support::tier(23, 3, 1))); }
TEST_CASE("golden opinfo through compiled kernels") { golden::check_ops("opinfo", mostly_interpreted(support::tier(101, 13, 1))); }
TEST_CASE("golden StableHLO and HLO programs through fusion") {
  for (bool const interpret : {true, false}) {
    golden::check_programs("golden stablehlo through fusion", "stablehlo", "text", through({.interpret = interpret}));
    golden::check_programs("golden stablehlo_more through fusion", "stablehlo_more", "text", through({.interpret = interpret}));
  }
  golden::check_programs("golden hlo through fusion", "stablehlo_more", "hlo_text", through({}));
}
