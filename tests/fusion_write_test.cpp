// Inputs that are written, outputs that share memory, tensors without elements or dims: exact results by hand, in every mode.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_support.hpp"

namespace ir = tenon::ir;
namespace fusion = tenon::fusion;
using support::Array;
using Numbers = std::vector<double>;

namespace {
fusion::LowerOptions const ways[] = {
    {}, {.interpret = true}, {.group = {.fuse = false}}, {.in_place = false}, {.mode = fusion::Mode::reduce_overhead}, {.interpret = true, .in_place = false},
};
Array numbers(ir::Dims const& sizes, Numbers const& values) { return support::array(tenon::base::DType::f32, ir::values(sizes), values); }
std::vector<ir::Strided> views(std::vector<Array> const& arrays) {
  std::vector<ir::Strided> list;
  for (auto const& array : arrays) list.push_back(array.at);
  return list;
}
// Runs a text on fresh copies of the inputs, twice, in every way; `check` sees inputs, outputs and whether values may be written in place.
void in_every_way(std::string const& text, std::vector<int> const& mutated, std::vector<Array> const& inputs,
                  std::function<void(std::span<ir::Strided const>, ir::Evaluated const&, bool)> const& check) {
  auto graph = ir::parse_graph(text);
  graph.mutated = mutated;
  ir::verify(graph);
  for (auto const& options : ways) {
    INFO(text << "interpret " << options.interpret << " fuse " << options.group.fuse << " in place " << options.in_place);
    auto const run = fusion::lower(graph, options);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<Array> copies;
      for (auto const& input : inputs) copies.push_back(support::converted(input.at, input.at.dtype));
      auto const given = views(copies);
      auto const done = run(given, {});
      check(given, done, options.in_place);
    }
  }
}
}  // namespace

TEST_CASE("a new value of an input is written where the input lies, if nobody reads the old one later") {
  in_every_way("graph sgd(%0: f32[4], %1: f32[4]) {\n  %2 = mul(%1, 0.5): f32[4]\n  %3 = sub(%0, %2): f32[4]\n  return %3\n}\n", {0},
               {numbers({4}, {1, 2, 3, 4}), numbers({4}, {2, 2, 4, -8})}, [](auto given, auto const& done, bool in_place) {
                 CHECK(support::reals(done.outputs[0]) == Numbers{0, 1, 1, 8});
                 CHECK((done.outputs[0].data == given[0].data) == in_place);
                 CHECK((done.storage[0] == nullptr) == in_place);
                 CHECK(support::reals(given[0]) == (in_place ? Numbers{0, 1, 1, 8} : Numbers{1, 2, 3, 4}));
                 CHECK(support::reals(given[1]) == Numbers{2, 2, 4, -8});
               });
}

TEST_CASE("an input whose old value is read behind the new one keeps it until the caller writes") {
  in_every_way("graph late(%0: f32[2, 2]) {\n  %1 = add(%0, 1.0): f32[2, 2]\n  %2 = matmul(%1, %0): f32[2, 2]\n  %3 = neg(%2): f32[2, 2]\n  return %3, %1\n}\n",
               {0}, {numbers({2, 2}, {1, 2, 3, 4})}, [](auto given, auto const& done, bool) {
                 CHECK(support::reals(done.outputs[0]) == Numbers{-11, -16, -19, -28});  // -[[2, 3], [4, 5]] [[1, 2], [3, 4]]
                 CHECK(support::reals(done.outputs[1]) == Numbers{2, 3, 4, 5});
                 CHECK(support::reals(given[0]) == Numbers{1, 2, 3, 4});
               });
}

TEST_CASE("two inputs that change places, and one that becomes its own transpose") {
  in_every_way("graph swap(%0: f32[2], %1: f32[2]) {\n  return %1, %0\n}\n", {0, 1}, {numbers({2}, {1, 2}), numbers({2}, {3, 4})},
               [](auto, auto const& done, bool) {
                 CHECK(support::reals(done.outputs[0]) == Numbers{3, 4});
                 CHECK(support::reals(done.outputs[1]) == Numbers{1, 2});
               });
  in_every_way("graph turn(%0: f32[2, 2]) {\n  %1 = transpose(%0, dim0=0, dim1=1): f32[2, 2] strides [1, 2]\n  %2 = mul(%1, 2.0): f32[2, 2]\n  return %2\n}\n",
               {0}, {numbers({2, 2}, {1, 2, 3, 4})}, [](auto given, auto const& done, bool) {
                 CHECK(support::reals(done.outputs[0]) == Numbers{2, 6, 4, 8});
                 CHECK(support::reals(given[0]) == Numbers{1, 2, 3, 4});  // each element is read at another point than it is written
               });
}

TEST_CASE("both inputs of one kernel get new values that need both old ones") {
  in_every_way("graph both(%0: f32[3], %1: f32[3]) {\n  %2 = add(%0, %1): f32[3]\n  %3 = sub(%0, %1): f32[3]\n  return %2, %3\n}\n", {0, 1},
               {numbers({3}, {1, 2, 3}), numbers({3}, {5, 7, 9})}, [](auto, auto const& done, bool) {
                 CHECK(support::reals(done.outputs[0]) == Numbers{6, 9, 12});
                 CHECK(support::reals(done.outputs[1]) == Numbers{-4, -5, -6});
               });
  in_every_way("graph sums(%0: f32[2, 3]) {\n  %1 = sum(%0, dim=[0], keepdim=true): f32[1, 3]\n  %2 = sub(%0, %1): f32[2, 3]\n  return %1, %2\n}\n", {0},
               {numbers({2, 3}, {1, 2, 3, 4, 5, 6})}, [](auto, auto const& done, bool) {
                 CHECK(support::reals(done.outputs[0]) == Numbers{5, 7, 9});
                 CHECK(support::reals(done.outputs[1]) == Numbers{-4, -5, -6, -1, -2, -3});
               });
}

TEST_CASE("outputs that are one value, a view of it, an input, a view of an input, a constant") {
  in_every_way(
      "graph shared(%0: f32[2, 3]) {\n  %1 = neg(%0): f32[2, 3]\n  %2 = transpose(%1, dim0=0, dim1=1): f32[3, 2] strides [1, 3]\n"
      "  %3 = select(%0, dim=0, index=1): f32[3]\n  %4 = constant(elements=\"7 8\", size=[2], dtype=i64): i64[2]\n  %5 = full(size=[2], fill_value=3): f32[2]\n"
      "  return %1, %1, %2, %0, %3, %4, %5\n}\n",
      {}, {numbers({2, 3}, {1, 2, 3, 4, 5, 6})}, [](auto given, auto const& done, bool) {
        CHECK(support::reals(done.outputs[0]) == Numbers{-1, -2, -3, -4, -5, -6});
        CHECK(support::reals(done.outputs[1]) == Numbers{-1, -2, -3, -4, -5, -6});
        CHECK(support::reals(done.outputs[2]) == Numbers{-1, -4, -2, -5, -3, -6});
        CHECK(done.outputs[2].strides == tenon::base::Shape{1, 3});
        CHECK(done.outputs[3].data == given[0].data);
        CHECK(support::reals(done.outputs[4]) == Numbers{4, 5, 6});
        CHECK(support::reals(done.outputs[5]) == Numbers{7, 8});
        CHECK(support::reals(done.outputs[6]) == Numbers{3, 3});
      });
}

TEST_CASE("tensors without elements and without dims") {
  in_every_way(
      "graph empty(%0: f32[0, 3], %1: f32[]) {\n  %2 = exp(%0): f32[0, 3]\n  %3 = sum(%0, dim=[0]): f32[3]\n  %4 = sum(%0, dim=[1]): f32[0]\n"
      "  %5 = transpose(%0, dim0=0, dim1=1): f32[3, 0] strides [1, 3]\n  %6 = matmul(%5, %0): f32[3, 3]\n  %7 = prod(%0): f32[]\n"
      "  %8 = softmax(%0, dim=1): f32[0, 3]\n  %9 = mul(%1, 2.0): f32[]\n  %10 = add(%3, %9): f32[3]\n  %11 = mean(%0): f32[]\n"
      "  return %2, %3, %4, %6, %7, %8, %9, %10, %11\n}\n",
      {}, {numbers({0, 3}, {}), numbers({}, {21})}, [](auto, auto const& done, bool) {
        CHECK(done.outputs[0].sizes == tenon::base::Shape{0, 3});
        CHECK(support::reals(done.outputs[1]) == Numbers{0, 0, 0});
        CHECK(support::reals(done.outputs[2]).empty());
        CHECK(support::reals(done.outputs[3]) == Numbers(9, 0.0));
        CHECK(support::reals(done.outputs[4]) == Numbers{1});
        CHECK(support::reals(done.outputs[5]).empty());
        CHECK(support::reals(done.outputs[6]) == Numbers{42});
        CHECK(support::reals(done.outputs[7]) == Numbers{42, 42, 42});
        CHECK(std::isnan(support::reals(done.outputs[8])[0]));
      });
}

TEST_CASE("a matmul with a symbolic batch: one program for every size") {
  auto const graph = ir::parse_graph(
      "graph layer(%0: f32[s0, 3], %1: f32[3, 2]) symbols(s0=4) {\n  %2 = matmul(%0, %1): f32[s0, 2]\n  %3 = relu(%2): f32[s0, 2]\n"
      "  %4 = sum(%3, dim=[1], keepdim=true): f32[s0, 1]\n  %5 = sub(%3, %4): f32[s0, 2]\n  %6 = sum(%5, dim=[0]): f32[2]\n  return %5, %6\n}\n");
  auto const w = numbers({3, 2}, {1, -1, 2, 0, 0, 1});
  for (auto options : ways)
    for (std::int64_t const grain : {1 << 13, 4}) {
      options.grain = grain;
      auto const run = fusion::lower(graph, options);
      for (std::int64_t const size : {2, 3, 7, 64, 1, 500, 2, 64}) {
        Numbers x, rows, sums{0, 0};
        for (std::int64_t r = 0; r < size; ++r) {
          double const a = static_cast<double>(r % 5), b = static_cast<double>(r % 3) - 1, c = static_cast<double>(r % 7) - 3;
          x.insert(x.end(), {a, b, c});
          double const p = std::max(0.0, a + 2 * b), q = std::max(0.0, c - a);
          rows.insert(rows.end(), {p - (p + q), q - (p + q)});
          sums[0] -= q, sums[1] -= p;
        }
        auto const held = numbers({size, 3}, x);
        std::array const given{held.at, w.at};
        auto const done = run(given, {.whole = {size}, .real = {0}});
        CHECK(support::reals(done.outputs[0]) == rows);
        CHECK(support::reals(done.outputs[1]) == sums);
      }
    }
}

TEST_CASE("numbers that change with every call need no new sizes") {
  auto const graph = ir::parse_graph(
      "graph step(%0: f32[3], %1: f32[3, 4]) symbols(i0=1, r1=0.5) {\n  %2 = mul(%0, r1): f32[3]\n  %3 = select(%1, dim=1, index=i0): f32[3] strides [4]\n"
      "  %4 = add(%2, %3): f32[3]\n  return %4\n}\n");
  for (auto const& options : ways) {
    auto const run = fusion::lower(graph, options);
    auto const x = numbers({3}, {2, 4, 6}), table = numbers({3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});
    std::array const in{x.at, table.at};
    for (std::int64_t k = 0; k < 4; ++k)
      for (double const r : {0.5, 1.0, -2.0}) {
        auto const d = static_cast<double>(k);
        CHECK(support::reals(run(in, {.whole = {k, 0}, .real = {0, r}}).outputs[0]) == Numbers{2 * r + d, 4 * r + 10 + d, 6 * r + 20 + d});
      }
  }
}
