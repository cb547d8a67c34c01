// Graphs through the fusion backend against the reference evaluator.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_random.hpp"
#include "ir_support.hpp"

namespace ir = tenon::ir;
namespace base = tenon::base;
namespace fusion = tenon::fusion;

namespace {
// Whether two results agree: to about the precision of their dtype, at the scale of the tensor.
bool agree(ir::Strided const& a, ir::Strided const& b, std::string& why) {
  if (a.sizes != b.sizes || a.dtype != b.dtype) {
    why = std::format("{}{} and {}{}", base::info(a.dtype).name, base::to_string(a.sizes), base::info(b.dtype).name, base::to_string(b.sizes));
    return false;
  }
  auto const x = support::reals(a), y = support::reals(b);
  double const relative = a.dtype == base::DType::f64    ? 1e-9
                          : a.dtype == base::DType::f32  ? 2e-5
                          : a.dtype == base::DType::bf16 ? 2e-2
                          : a.dtype == base::DType::f16  ? 4e-3
                                                         : 0;
  double const distance = support::distance(x, y), bound = relative * support::scale_of(y);
  why = std::format("differs by {:.3g}, allowed {:.3g}", distance, bound);
  return distance <= bound;
}
void compare(ir::Graph const& graph, std::span<ir::Strided const> inputs, fusion::LowerOptions const& options) {
  auto const expected = support::run(graph, inputs);
  auto const program = fusion::plan(graph, options);
  INFO((ir::to_string(graph)));
  INFO((fusion::to_string(program.grouping)));
  auto const begin = program.source.find("void tn_kernel");
  INFO((begin == std::string::npos ? std::string() : program.source.substr(begin)));
  auto const run = fusion::runner(program);
  for (int again = 0; again < 2; ++again) {
    auto const actual = run(inputs, {});
    REQUIRE(actual.outputs.size() == expected.outputs.size());
    for (std::size_t k = 0; k < actual.outputs.size(); ++k) {
      std::string why;
      bool const good = agree(actual.outputs[k], expected.outputs[k], why);
      INFO("output " << k << " " << why);
      CHECK(good);
      CHECK(actual.outputs[k].strides == expected.outputs[k].strides);
    }
  }
}
}  // namespace

TEST_CASE("random graphs through fusion give the reference's values") {
  int const count = support::tier(60, 300, 10000);
  std::mt19937 random(20261130);
  for (int k = 0; k < count; ++k) {
    auto const made = support::random_graph(random, {.nodes = 6 + k % 20});
    INFO("graph " << k);
    compare(made.graph, made.elements(), {.group = {.fuse = k % 4 != 3}, .interpret = k % 5 == 4});
  }
}

TEST_CASE("an index out of range is one clear line, compiled or interpreted, and memory beyond the table is not read") {
  ir::Graph graph;
  std::vector<float> data{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  std::vector<std::int64_t> at{0, 1, 2, -1, -3, 0, 0, 0};
  std::array const in{ir::Strided{reinterpret_cast<std::byte*>(data.data()), base::DType::f32, {3, 4}, {4, 1}},
                      ir::Strided{reinterpret_cast<std::byte*>(at.data()), base::DType::i64, {2, 4}, {4, 1}}};
  int const table = graph.input(support::meta_of(in[0])), places = graph.input(support::meta_of(in[1]));
  int const rows = graph.add(ir::ops::gather, {{table, {}}, {places, {}}}, {.ints = {0}}, {});
  graph.outputs = {graph.add(ir::ops::relu, {{rows, {}}}, {}, {})};
  for (bool const interpret : {false, true}) {
    auto const run = fusion::lower(graph, {.interpret = interpret});
    at[5] = 0;
    CHECK(support::reals(run(in, {}).outputs[0]) == std::vector<double>{0, 5, 10, 11, 0, 1, 2, 3});
    for (std::int64_t const bad : {std::int64_t{3}, std::int64_t{-4}, std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
      at[5] = bad;
      auto const words = support::caught([&] { run(in, {}); });
      INFO(words);
      CHECK(words.starts_with(std::format("index {} is out of range for size 3, in %", bad)));
      CHECK(support::says(words, "gather"));
    }
  }
}
