// NaN, infinities, signed zeros, no elements and no dims, as PyTorch has them (golden/edge.json says how it was made): on row-major memory, and on
// memory of negative, zero and odd strides.
#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_ops.hpp"
#include "ir_support.hpp"
using namespace tenon;

namespace {
/// The same elements; a dim along which nothing changes has stride 0.
support::Array repeated(ir::Strided const& x) {
  auto result = support::converted(x, x.dtype);
  for (std::size_t d = 0; d < x.sizes.size(); ++d) {
    auto moved = result.at.strides;
    moved[d] = 0;
    bool same = true;
    auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
    ir::walk<2>(x.sizes, {&result.at.strides, &moved}, [&](auto const& at) { same = same && std::memcmp(result.at.at(at[0]), result.at.at(at[1]), bytes) == 0; });
    if (same) result.at.strides = moved;
  }
  return result;
}
ir::Evaluated run_with(ir::Graph const& graph, std::span<ir::Strided const> inputs, std::function<support::Array(ir::Strided const&)> const& other) {
  std::vector<support::Array> held;
  std::vector<ir::Strided> moved;
  for (auto const& x : inputs) moved.push_back(held.emplace_back(other(x)).at);
  auto done = support::run(graph, moved);
  for (std::size_t k = 0; k < done.outputs.size(); ++k) {  // a view of an input outlives it
    auto copy = support::converted(done.outputs[k], done.outputs[k].dtype);
    done.outputs[k] = copy.at, done.storage[k] = copy.storage;
  }
  return done;
}
}  // namespace

TEST_CASE("golden edge cases") { golden::check_ops("edge", support::run); }
TEST_CASE("golden edge cases, strides of 0") {
  golden::check_ops("edge", [](ir::Graph const& graph, std::span<ir::Strided const> inputs) { return run_with(graph, inputs, repeated); });
}
TEST_CASE("golden edge cases, negative and odd strides") {
  std::mt19937 random(81);
  golden::check_ops("edge", [&](ir::Graph const& graph, std::span<ir::Strided const> inputs) {
    return run_with(graph, inputs, [&](ir::Strided const& x) { return support::restrided(x, random); });
  });
}
