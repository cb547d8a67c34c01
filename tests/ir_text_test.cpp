// The text form: what is printed is read back as the same graph, what is malformed is refused where it goes wrong, and no text crashes.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_random.hpp"
using namespace tenon;

namespace {

/// Where two texts first differ, for a message.
std::string difference(std::string_view a, std::string_view b) {
  auto const at = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  auto const from = a.substr(0, at).rfind('\n') + 1;
  return std::format("\n{}\n{}", a.substr(from, a.find('\n', at) - from), b.substr(from, b.find('\n', at) - from));
}

std::vector<std::vector<double>> outputs(ir::Graph const& graph, support::RandomGraph const& of) {
  std::vector<std::vector<double>> all;
  for (auto const& y : support::run(graph, of.elements()).outputs) all.push_back(support::reals(y));
  return all;
}

constexpr std::string_view small = R"(graph g(%0 x: f32[2, s0], %1: f32[s0]) symbols(s0=5, r0=0.5) {
  require s0 < 9
  %2 = mul(%0, r0): f32[2, s0]
  %3 = add(%2, %1, alpha=2.0): f32[2, s0]  # "m.cpp" 3:7
  %4 = sum(%3, dim=[1]): f32[2]
  return %4, %2
}
)";

/// `small` with the first `from` replaced.
std::string changed(std::string_view from, std::string_view to) {
  std::string text(small);
  auto const at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}
}  // namespace

TEST_CASE("random graphs print, parse and print the same, and mean the same") {
  std::mt19937 random(21);
  int const count = support::tier(60, 1000, 8000);
  int constraints = 0, symbols = 0;
  for (int turn = 0; turn < count; ++turn) {
    auto const made = support::random_graph(random, {.nodes = 1 + static_cast<int>(random() % 25), .symbols = turn % 2 == 0, .ornaments = turn % 3 != 0});
    auto const text = ir::to_string(made.graph);
    auto const why = support::caught([&] {
      ir::verify(made.graph);
      auto const again = ir::parse_graph(text);
      auto const printed = ir::to_string(again);
      CHECK_MESSAGE(printed == text, difference(text, printed));
      CHECK(ir::equal(again, made.graph));
      ir::verify(again);
      CHECK(again.symbols.names() == made.graph.symbols.names());
      if (turn % 4) return;
      auto const ours = outputs(made.graph, made), theirs = outputs(again, made);
      for (std::size_t k = 0; k < ours.size(); ++k) CHECK(support::distance(ours[k], theirs[k]) == 0);
    });
    CHECK_MESSAGE(why == "nothing", why << "\n" << text);
    constraints += static_cast<int>(made.graph.symbols.constraints.size());
    symbols += static_cast<int>(made.graph.symbols.names().size());
  }
  CHECK(constraints > count / 4);
  CHECK(symbols > count / 2);
}

TEST_CASE("an expression prints the same whichever part was made first") {
  ir::Graph graph;
  auto& symbols = graph.symbols;
  auto const a = symbols.symbol(7), half = symbols.floordiv(a, 2), b = symbols.symbol(5);
  auto const size = symbols.add(symbols.add(half, symbols.mul(b, half)), symbols.add(b, 1));
  graph.outputs = {graph.input(ir::contiguous_meta(base::DType::f32, {}, ir::Dims{size}))};
  CHECK(symbols.to_string(size) == "s1 + s1*(s0//2) + (s0//2) + 1");
  CHECK(ir::to_string(ir::parse_graph(ir::to_string(graph))) == ir::to_string(graph));
}

TEST_CASE("spaces and empty lines between tokens do not matter") {
  auto const graph = ir::parse_graph(small);
  CHECK(ir::to_string(graph) == small);
  std::string spread;
  for (char c : small) spread += c == ' ' ? "  \n\t " : std::string(1, c);
  CHECK(ir::to_string(ir::parse_graph(spread)) == small);
}

TEST_CASE("a malformed text is an Error with line and column") {
  struct Row {
    std::string text, error;
  };
  std::string const deep = std::string(100, '(') + "1" + std::string(100, ')') + "]", huge = "9" + std::string(18, '9') + "9";
  std::vector<Row> const rows{
      {"", "line 1, column 1: expected \"graph\""},
      {"graph", "line 1, column 6: expected a name"},
      {changed("\"m.cpp\" 3:7", "\"m.cpp 3:7"), "line 8, column 1: expected a closing quote"},
      {changed("%1: f32[s0]) symbols(s0=5, r0=0.5) {", "%1: f32[s0]"), "line 8, column 1: expected \")\""},
      {changed("f32[2, s0]", "f33[2, s0]"), "line 1, column 15: dtype_of: unknown dtype 'f33'"},
      {changed("f32[2, s0]", "f32[2, s1]"), "line 1, column 22: unknown size symbol s1"},
      {changed("f32[2, s0]", "f32[2, -3]"), "line 1, column 25: size -3 is negative"},
      {changed("f32[2, s0]", "f32[2, " + huge + "]"), "line 1, column 22: expected a whole number"},
      {changed("f32[2, s0]", "f32[2, " + deep), "nested too deep"},
      {changed("f32[2, s0]", "f32[2, s0] strides [1]"), "line 1, column 37: 1 strides for 2 sizes"},
      {changed("f32[2, s0]", "f32[2, s0] on tpu"), "line 1, column 29: device_of: unknown device 'tpu'"},
      {changed("s0=5, r0=0.5", "s0=1"), "line 1, column 48: size symbol s0 must be at least 2, not 1"},
      {changed("r0=0.5", "s0=6"), "line 1, column 54: symbol s0 is named twice"},
      {changed("r0=0.5", "x0=6"), "symbol names start with s, i or r: x0"},
      {changed("s0 < 9", "s0 > 9"), "line 2, column 14: expected a relation"},
      {changed("mul(", "mull("), "line 3, column 8: unknown op mull"},
      {changed("mul(%0, ", "mul("), "mul takes 2 operands, not 1"},
      {changed("%2 = mul(%0", "%2 = mul(%7"), "line 3, column 14: %7 is not made yet"},
      {changed("%2 = mul", "%0 = mul"), "line 3, column 5: %0 is made twice"},
      {changed("%2 = mul", "%99999999999 = mul"), "line 3, column 15: %99999999999 is out of range"},
      {changed("%2 = mul", "%2, %9 = mul"), "line 3, column 9: results of one node are numbered in a row"},
      {changed("alpha=2.0", "beta=2.0"), "line 4, column 25: add has no attribute beta"},
      {changed("alpha=2.0", "alpha=2.0, alpha=3.0"), "line 4, column 37: alpha is given twice"},
      {changed("alpha=2.0", "alpha=2.0.0"), "line 4, column 26: expected a number"},
      {changed("alpha=2.0", "alpha=2.0, %0"), "line 4, column 31: an operand stands behind an attribute"},
      {changed("dim=[1]", "keepdim=maybe"), "line 5, column 24: expected \"false\""},
      {changed("\"m.cpp\" 3:7", "\"m.cpp\" 3"), "line 5, column 3: expected \":\""},
      {changed("return %4", "return %5"), "line 6, column 12: %5 is not made yet"},
      {"graph g() {\n  %1 = full(size=[], fill_value=1.0): f32[]\n  return %1\n}", "line 4, column 2: %0 is never made"},
      {changed("x: f32[2, s0]", "x: [2, s0]"), "line 1, column 15: expected a name"},
      {std::string(small) + "x", "line 8, column 1: expected the end"},
      {std::string(small.substr(0, small.size() - 2)), "line 7, column 1: expected \"}\""},
  };
  for (auto const& row : rows) {
    auto const text = support::caught([&] { ir::parse_graph(row.text); });
    CHECK_MESSAGE((text.starts_with("graph text: line ") && text.rfind("graph text: ") == 0 && support::says(text, row.error)), text << "\n" << row.error);
  }
}
