// Symbolic sizes: one form for equal expressions, their text, and the constraints that decisions leave behind.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using ir::Dim;
using ir::Relation;
using ir::Symbols;

namespace {

/// A random expression over `symbols`, with its value at each of the points.
struct Sample {
  Dim dim;
  std::vector<std::int64_t> values;
};
struct Draw {
  Symbols& symbols;
  std::vector<ir::Bindings> points;
  std::mt19937& random;

  Sample leaf() {
    if (random() % 3 == 0) {
      auto const number = static_cast<std::int64_t>(random() % 7) - 3;
      return {number, std::vector<std::int64_t>(points.size(), number)};
    }
    int const number = static_cast<int>(random() % symbols.names().size());
    Sample sample{symbols.whole_symbol(number), {}};
    for (auto const& point : points) sample.values.push_back(point.whole[static_cast<std::size_t>(number)]);
    return sample;
  }
  Sample polynomial(int depth) {
    if (depth == 0) return leaf();
    auto const a = polynomial(depth - 1), b = polynomial(depth - 1);
    bool const product = random() % 2;
    Sample sample{product ? symbols.mul(a.dim, b.dim) : symbols.add(a.dim, b.dim), {}};
    for (std::size_t p = 0; p < points.size(); ++p) sample.values.push_back(product ? a.values[p] * b.values[p] : a.values[p] + b.values[p]);
    return sample;
  }
  /// With floor divisions and remainders by what is not zero at any point.
  Sample any(int depth) {
    if (depth == 0) return leaf();
    auto const a = any(depth - 1), b = any(depth - 1);
    bool const divides = std::ranges::none_of(b.values, [](auto v) { return v == 0; }) && b.dim.value != 0;
    auto const floored = [](std::int64_t x, std::int64_t y) { return static_cast<std::int64_t>(std::floor(static_cast<double>(x) / static_cast<double>(y))); };
    unsigned const which = random() % (divides ? 4 : 2);
    Sample sample{which == 0   ? symbols.add(a.dim, b.dim)
                  : which == 1 ? symbols.mul(a.dim, b.dim)
                  : which == 2 ? symbols.floordiv(a.dim, b.dim)
                               : symbols.modulo(a.dim, b.dim),
                  {}};
    for (std::size_t p = 0; p < points.size(); ++p) {
      auto const x = a.values[p], y = b.values[p];
      sample.values.push_back(which == 0 ? x + y : which == 1 ? x * y : which == 2 ? floored(x, y) : x - floored(x, y) * y);
    }
    return sample;
  }
};

struct World {
  Symbols symbols;
  std::mt19937 random{5};
  Draw draw{symbols, {}, random};
  World() {
    symbols.symbol(5), symbols.symbol(7), symbols.index_symbol(-3);
    for (int p = 0; p < 12; ++p)
      draw.points.push_back(
          {{2 + static_cast<std::int64_t>(random() % 50), 2 + static_cast<std::int64_t>(random() % 50), static_cast<std::int64_t>(random() % 40) - 20}, {}});
  }
};
}  // namespace

TEST_CASE("equal polynomials have equal ids, others do not") {
  World world;
  std::map<std::vector<std::int64_t>, Dim> by_values;
  std::map<std::int32_t, std::vector<std::int64_t>> by_node;
  for (int turn = 0; turn < support::tier(1'000, 4'000, 40'000); ++turn) {
    auto const sample = world.draw.polynomial(1 + static_cast<int>(world.random() % 3));
    for (std::size_t p = 0; p < sample.values.size(); ++p)
      if (world.symbols.evaluate(sample.dim, world.draw.points[p]) != sample.values[p]) FAIL_CHECK(world.symbols.to_string(sample.dim));
    auto const [at, fresh] = by_values.try_emplace(sample.values, sample.dim);
    if (!fresh && at->second != sample.dim) FAIL_CHECK(world.symbols.to_string(at->second) << " and " << world.symbols.to_string(sample.dim));
  }
  CHECK(by_values.size() > 500);
}

TEST_CASE("expressions with divisions evaluate to what they say, print and parse to themselves") {
  World world;
  for (int turn = 0; turn < support::tier(1'000, 4'000, 40'000); ++turn) {
    auto const sample = world.draw.any(1 + static_cast<int>(world.random() % 3));
    auto const text = world.symbols.to_string(sample.dim);
    for (std::size_t p = 0; p < sample.values.size(); ++p)
      if (world.symbols.evaluate(sample.dim, world.draw.points[p]) != sample.values[p]) FAIL_CHECK(text);
    if (world.symbols.parse(text) != sample.dim) FAIL_CHECK(text << " becomes " << world.symbols.to_string(world.symbols.parse(text)));
  }
}

TEST_CASE("sizes print as people write them") {
  Symbols symbols;
  Dim const a = symbols.symbol(4), b = symbols.symbol(6), i = symbols.index_symbol(-1);
  auto const text = [&](Dim dim) { return symbols.to_string(dim); };
  CHECK(text(symbols.add(symbols.mul(a, 4), 1)) == "s0*4 + 1");
  CHECK(text(symbols.add(a, -1)) == "s0 - 1");
  CHECK(text(symbols.mul(symbols.add(a, b), symbols.add(a, b))) == "s0*s0 + s0*s1*2 + s1*s1");
  CHECK(text(symbols.floordiv(symbols.add(a, 1), 2)) == "(s0 + 1)//2");
  CHECK(text(symbols.modulo(a, b)) == "s0 mod s1");
  CHECK(text(symbols.floordiv(symbols.mul(symbols.mul(a, b), 6), symbols.mul(a, 3))) == "s1*2");
  CHECK(text(symbols.modulo(symbols.mul(a, b), b)) == "0");
  CHECK(text(symbols.mul(symbols.add(a, symbols.mul(a, -1)), i)) == "0");
  CHECK(text(symbols.floordiv(a, symbols.floordiv(b, 4))) == "s0//(s1//4)");
  CHECK(symbols.parse("s0 * (s1 + 2)") == symbols.mul(a, symbols.add(b, 2)));
  CHECK(support::caught([&] { symbols.parse("s0 +"); }) == "size \"s0 +\": column 5: expected a whole number or a size symbol");
  CHECK(support::says(support::caught([&] { symbols.parse(std::string(100, '(')); }), "nested too deep"));
  CHECK(support::says(support::caught([&] { symbols.mul(std::numeric_limits<std::int64_t>::max(), 2); }), "overflows"));
  CHECK(support::says(support::caught([&] { symbols.floordiv(a, 0); }), "divided by 0"));
}

TEST_CASE("a decision leaves a constraint exactly when another call could differ") {
  Symbols symbols;
  Dim const a = symbols.symbol(4), b = symbols.symbol(6), i = symbols.index_symbol(0);
  auto const decide = [&](Dim x, Relation relation, Dim y) {
    auto const before = symbols.constraints.size();
    bool const truth = symbols.decide(x, relation, y, {});
    return std::string(truth ? "true" : "false") + (symbols.constraints.size() == before ? "" : " if " + symbols.to_string(symbols.constraints.back()));
  };
  CHECK(decide(3, Relation::less, 4) == "true");
  CHECK(decide(a, Relation::equal, 1) == "false");
  CHECK(decide(1, Relation::less, a) == "true");
  CHECK(decide(a, Relation::less_equal, a) == "true");
  CHECK(decide(symbols.mul(a, b), Relation::equal, 0) == "false");
  CHECK(decide(symbols.add(a, 3), Relation::less, a) == "false");
  CHECK(decide(a, Relation::less_equal, symbols.add(a, b)) == "true");
  CHECK(decide(a, Relation::equal, 4) == "true if s0 == 4");
  CHECK(decide(a, Relation::equal, 4) == "true");  // known by now
  CHECK(decide(a, Relation::equal, b) == "false if s0 != s1");
  CHECK(decide(b, Relation::less, a) == "false if s0 <= s1");
  CHECK(decide(a, Relation::less, 2) == "false");
  CHECK(decide(symbols.add(a, -1), Relation::equal, 1) == "false if s0 - 1 != 1");
  CHECK(decide(i, Relation::less, 0) == "false if 0 <= i0");
  CHECK(decide(Dim(7, 0, 999'999), Relation::equal, 7) == "true");  // an expression of nobody's is its value
}

TEST_CASE("what is decided without a constraint is so at every point") {
  World world;
  int settled = 0;
  for (int turn = 0; turn < support::tier(2'000, 10'000, 100'000); ++turn) {
    auto const x = world.draw.polynomial(static_cast<int>(world.random() % 3)), y = world.draw.polynomial(static_cast<int>(world.random() % 3));
    auto const relation = static_cast<Relation>(world.random() % 4);
    world.symbols.constraints.clear();
    bool const truth = world.symbols.decide(x.dim, relation, y.dim, {});
    auto const holds = [&](Relation r, std::int64_t a, std::int64_t b) {
      return r == Relation::equal ? a == b : r == Relation::unequal ? a != b : r == Relation::less ? a < b : a <= b;
    };
    for (std::size_t p = 0; p < world.draw.points.size(); ++p) {
      bool kept = true;
      for (auto const& c : world.symbols.constraints)
        kept = holds(c.relation, world.symbols.evaluate(c.a, world.draw.points[p]), world.symbols.evaluate(c.b, world.draw.points[p]));
      if (kept && holds(relation, x.values[p], y.values[p]) != truth)
        FAIL_CHECK(world.symbols.to_string(x.dim) << " against " << world.symbols.to_string(y.dim));
    }
    settled += world.symbols.constraints.empty();
  }
  CHECK(settled > 100);
}

TEST_CASE("names are unique, hints are kept, foreign expressions are their values") {
  Symbols symbols;
  CHECK(symbols.named("s1", 9).whole == 9);
  symbols.symbol(3), symbols.symbol(4);
  CHECK(symbols.names() == std::vector<std::string>{"s1", "s0", "s2"});
  CHECK(symbols.real_symbol(0.25).real == 0.25);
  CHECK(symbols.named("r0", 7.0).real == 0.25);
  CHECK(symbols.to_string(symbols.symbol_at(3)) == "r0");
  CHECK(support::caught([&] { symbols.named("s7", 1); }) == "size symbol s7 must be at least 2, not 1");
  CHECK(support::says(support::caught([&] { symbols.named("x", 1); }), "symbol names start with s, i or r"));
  Symbols other;
  CHECK(other.add(symbols.whole_symbol(0), 1) == Dim(10));
  CHECK(other.to_string(symbols.whole_symbol(0)) == "9");
  Symbols const copy = symbols;
  CHECK(copy.to_string(symbols.whole_symbol(0)) == "s1");
}

TEST_CASE("arithmetic outside a capture is plain, inside it builds expressions") {
  Symbols symbols;
  Dim const a = symbols.symbol(4);
  CHECK((a + 1) == Dim(5));
  {
    Symbols::Scope const scope(&symbols);
    CHECK(symbols.to_string(a * 2 + 1) == "s0*2 + 1");
    CHECK(symbols.to_string(a - a) == "0");
    CHECK(symbols.to_string((a + 3) / 2) == "(s0 + 3)//2");
    CHECK(symbols.to_string(a % 3) == "s0 mod 3");
    {
      Symbols::Scope const none(nullptr);
      CHECK((a * 2).node == -1);
    }
    CHECK_FALSE(ir::less(a, 3));
    CHECK(symbols.constraints.size() == 1);
  }
  CHECK(Dim(-7) / Dim(2) == Dim(-4));
  CHECK(Dim(-7) % Dim(2) == Dim(1));
  CHECK(ir::product(std::array{Dim(3), Dim(4)}) == Dim(12));
}

TEST_CASE("a quotient or rest of something bounded from below is bounded: no constraint says so") {
  Symbols symbols;
  Symbols::Scope const scope(&symbols);
  Dim const s = symbols.symbol(5), i = symbols.index_symbol(7);
  CHECK(less_equal(0, (s - 2) / 2));
  CHECK(less_equal(1, s / 2 + s % 3));
  CHECK(less(0, ((s + 1) / 3) * s + 1));
  CHECK(symbols.constraints.empty());
  CHECK(less_equal(0, (s - 3) / 2));  // -1 for 2
  CHECK(symbols.constraints.size() == 1);
  CHECK(less_equal(0, i / 2));
  CHECK(symbols.constraints.size() == 2);
  CHECK(less_equal(1, (s - 2) / 2));  // 0 for 2
  CHECK(symbols.constraints.size() == 3);
}
