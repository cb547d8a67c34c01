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
}  // namespace

TEST_CASE("golden ops through the interpreter") { golden::check_ops("ops", through({.interpret = true})); }
TEST_CASE("golden ops through compiled kernels") { golden::check_ops("ops", through({})); }
TEST_CASE("golden opinfo through the interpreter") { golden::check_ops("opinfo", through({.interpret = true})); }
TEST_CASE("golden StableHLO programs through compiled kernels") {
  golden::check_programs("golden stablehlo through fusion", "stablehlo", "text", through({}));
  golden::check_programs("golden stablehlo_more through fusion", "stablehlo_more", "text", through({}));
  golden::check_programs("golden hlo through fusion", "stablehlo_more", "hlo_text", through({}));
}
