// Why nodes do not share a kernel: each reason in a graph made for it. And that a graph is cut the same way every time.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_random.hpp"
#include "ir_support.hpp"

namespace ir = tenon::ir;
namespace fusion = tenon::fusion;
using fusion::Refusal;

namespace {
// The nodes that make values %a and %b of the text, asked after grouping without another pass: numbers are those of the text.
struct Asked {
  Refusal why, reversed;
  fusion::Grouping grouping;
};
Asked ask(std::string const& text, int a, int b) {
  auto graph = ir::parse_graph(text);
  ir::verify(graph);
  auto grouping = fusion::group(std::move(graph));
  auto const node = [&](int value) { return grouping.graph.values.at(static_cast<std::size_t>(value)).node; };
  auto const why = fusion::why_not_fused(grouping, node(a), node(b)), reversed = fusion::why_not_fused(grouping, node(b), node(a));
  return {why, reversed, std::move(grouping)};
}
struct Row {
  Refusal why;
  int a, b;
  std::string text;
};
// A chain of so many additions of a number.
std::string long_chain(int length) {
  std::string text = "graph chain(%0: f32[64]) {\n";
  for (int k = 1; k <= length; ++k) text += std::format("  %{} = mul(%{}, {}.5): f32[64]\n", k, k - 1, k);
  return text + std::format("  return %{}\n}}\n", length);
}
std::vector<Row> const& rows() {
  static std::vector<Row> const list{
      {Refusal::none, 1, 2, "graph g(%0: f32[4, 6]) {\n  %1 = exp(%0): f32[4, 6]\n  %2 = neg(%1): f32[4, 6]\n  return %2\n}\n"},
      {Refusal::call, 1, 2,
       "graph g(%0: f32[4, 4]) {\n  %1 = exp(%0): f32[4, 4]\n  %2 = matmul(%1, %0): f32[4, 4]\n  %3 = neg(%2): f32[4, 4]\n  return %3\n}\n"},
      {Refusal::view, 1, 2,
       "graph g(%0: f32[4, 6]) {\n  %1 = exp(%0): f32[4, 6]\n  %2 = transpose(%1, dim0=0, dim1=1): f32[6, 4] strides [1, 6]\n"
       "  %3 = neg(%2): f32[6, 4]\n  return %3\n}\n"},
      {Refusal::unrelated, 2, 3, "graph g(%0: f32[8], %1: f32[8]) {\n  %2 = exp(%0): f32[8]\n  %3 = exp(%1): f32[8]\n  return %2, %3\n}\n"},
      {Refusal::cycle, 1, 3,
       "graph g(%0: f32[4, 4]) {\n  %1 = exp(%0): f32[4, 4]\n  %2 = matmul(%1, %0): f32[4, 4]\n  %3 = add(%1, %2): f32[4, 4]\n  return %3\n}\n"},
      {Refusal::space, 1, 3,
       "graph g(%0: f32[4, 6]) {\n  %1 = exp(%0): f32[4, 6]\n  %2 = slice(%1, dim=1, end=3): f32[4, 3] strides [6, 1]\n  %3 = neg(%2): f32[4, 3]\n"
       "  return %1, %3\n}\n"},
      {Refusal::index, 3, 4,
       "graph g(%0: f32[4, 6], %1: f32[24]) {\n  %2 = transpose(%0, dim0=0, dim1=1): f32[6, 4] strides [1, 6]\n  %3 = reshape(%2, shape=[24]): f32[24]\n"
       "  %4 = sum(%3, dim=[0]): f32[]\n  return %4, %3, %1\n}\n"},
      {Refusal::reduction, 1, 2, "graph g(%0: f32[4, 5, 6]) {\n  %1 = sum(%0, dim=[0, 1]): f32[6]\n  %2 = sum(%0, dim=[1, 2]): f32[4]\n  return %1, %2\n}\n"},
      {Refusal::order, 1, 2, "graph g(%0: f32[4, 6]) {\n  %1 = sum(%0, dim=[0], keepdim=true): f32[1, 6]\n  %2 = sub(%0, %1): f32[4, 6]\n  return %2\n}\n"},
      {Refusal::size, 96, 97, long_chain(120)},
      {Refusal::none, 1, 2,
       "graph g(%0: f32[2, 100000]) {\n  %1 = amax(%0, dim=[1], keepdim=true): f32[2, 1]\n  %2 = sub(%0, %1): f32[2, 100000]\n  return %2\n}\n"},
      {Refusal::parallel, 1, 3,
       "graph g(%0: f32[2, 100000]) {\n  %1 = amax(%0, dim=[1], keepdim=true): f32[2, 1]\n  %2 = mul(%0, %1): f32[2, 100000]\n"
       "  %3 = sum(%2, dim=[1]): f32[2]\n  return %3\n}\n"},
      {Refusal::memory, 1, 7,
       "graph g(%0: f32[4, 4]) {\n  %1 = exp(%0): f32[4, 4]\n  %2 = matmul(%1, %0): f32[4, 4]\n  %3 = matmul(%2, %0): f32[4, 4]\n"
       "  %4 = matmul(%3, %0): f32[4, 4]\n  %5 = matmul(%4, %0): f32[4, 4]\n  %6 = matmul(%5, %0): f32[4, 4]\n  %7 = neg(%1): f32[4, 4]\n"
       "  %8 = matmul(%7, %6): f32[4, 4]\n  %9 = matmul(%8, %1): f32[4, 4]\n  return %9\n}\n"},
  };
  return list;
}
}  // namespace

TEST_CASE("each reason not to fuse in a graph made for it, and every reason has one") {
  std::set<Refusal> seen;
  for (auto const& [why, a, b, text] : rows()) {
    INFO(text);
    auto const got = ask(text, a, b);
    INFO(fusion::to_string(got.grouping));
    CHECK(std::string(fusion::text_of(got.why)) == std::string(fusion::text_of(why)));
    CHECK(got.reversed == got.why);
    seen.insert(got.why);
    auto const& group_of = got.grouping.group_of;
    auto const node = [&](int value) { return static_cast<std::size_t>(got.grouping.graph.values[static_cast<std::size_t>(value)].node); };
    CHECK((group_of[node(a)] == group_of[node(b)]) == (why == Refusal::none));
  }
  for (int k = 0; !fusion::text_of(static_cast<Refusal>(k)).empty(); ++k)
    CHECK_MESSAGE(seen.contains(static_cast<Refusal>(k)), std::string(fusion::text_of(static_cast<Refusal>(k))));
}

TEST_CASE("equal graphs give equal plans, kernels and C") {
  std::mt19937 random(5);
  for (int k = 0; k < support::tier(20, 60, 400); ++k) {
    auto const made = support::random_graph(random, {.nodes = 20, .symbols = k % 2 == 0});
    auto const first = fusion::plan(made.graph), second = fusion::plan(ir::parse_graph(ir::to_string(made.graph)));
    CHECK(fusion::to_string(first) == fusion::to_string(second));
    CHECK(first.source == second.source);
  }
}
