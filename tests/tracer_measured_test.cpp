// Ops whose results' sizes depend on elements: eager, differentiated, and inside a compiled function.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

using namespace tenon;
using namespace tenon::tracer;

namespace {
std::vector<double> numbers(Tensor const& x) { return x.to_vector<double>(); }
using V = std::vector<double>;
}  // namespace

TEST_CASE("nonzero, masked_select and unique run eagerly") {
  Tensor const x = tensor({3, 0, -1, 3});
  CHECK(numbers(nonzero(x)) == V{0, 2, 3});
  CHECK(nonzero(x).shape() == base::Shape{3, 1});
  CHECK(numbers(masked_select(x, x > 0)) == V{3, 3});
  CHECK(masked_select(x, x > 9).shape() == base::Shape{0});
  auto const [values, inverse, counts] = unique(x, {.inverse = true, .counts = true});
  CHECK(numbers(values) == V{-1, 0, 3});
  CHECK(numbers(inverse) == V{2, 1, 0, 2});
  CHECK(numbers(counts) == V{1, 1, 2});
  CHECK(!unique(x).inverse.defined());
  try {
    (void)masked_select(x, x);
    FAIL("a mask of numbers was taken");
  } catch (base::Error const& error) {
    CHECK(std::string(error.what()) == "masked_select: the mask must be bool, not f32[4]");
  }
}

TEST_CASE("the gradient of what a mask picks goes back to where it stood") {
  Tensor x = tensor({1, -2, 3, -4}).set_requires_grad();
  Tensor const picked = masked_select(x, x < 0);
  sum(picked * picked).backward();
  CHECK(numbers(x.grad()) == V{0, -4, 0, -8});
  Tensor rows = reshape(tensor({1, 2, 3, 4, 5, 6}), {3, 2}).detach().set_requires_grad();
  Tensor const mask = index_tensor(std::array<std::int64_t, 3>{1, 0, 1}, {3}) > 0;
  sum(apply(ir::ops::index_at, {rows, mask}, ir::Attrs{}.with(std::span<Dim const>{})) * 2).backward();
  CHECK(numbers(rows.grad()) == V{2, 2, 0, 0, 2, 2});
}

TEST_CASE("in a compiled function such a call breaks the graph where its operand is owed, with its reason and place") {
  auto fn = compile([](Tensor const& x) {
    Tensor const y = x * 2;
    Tensor const picked = masked_select(y, y > 2);
    return sum(picked) + 1;
  });
  CHECK(fn(tensor({1, 2, 3})).item() == 11);
  auto const first = describe(fn.state());
  CHECK(first.graphs == 2);
  REQUIRE(first.breaks.size() == 1);
  CHECK(first.breaks[0].reason == "masked_select: the size of its result depends on elements, so no graph can hold it");
  CHECK(first.breaks[0].at.line > 0);
  CHECK(fn(tensor({0, 5, 0})).item() == 11);  // another count
  CHECK(fn(tensor({5, 5, 0})).item() == 21);
  CHECK(fn(tensor({0, 0, 0})).item() == 1);
  CHECK(describe(fn.state()).breaks.size() == 1);
}

TEST_CASE("with fullgraph what such a call reads is computed ahead: one graph, no break") {
  int turns = 0;
  auto const body = [&turns](Tensor const& x) {
    Tensor y = x * 2;
    if (++turns % 2) y.add_(full({}, 0));
    Tensor const picked = masked_select(y + 1, y > 2);
    Tensor const more = nonzero(y * x);
    return sum(picked) + to(sum(more), base::DType::f32);
  };
  auto const fn = compile(body, {.fullgraph = true});
  for (auto const& values : {V{1, 2, 3}, {2, 5, 0}, {5, 5, 5}, {9, 9, 2}, {2, 2, 2}}) {
    turns &= ~1;
    double const wanted = body(tensor(values, {3})).item();
    turns &= ~1;
    CHECK(fn(tensor(values, {3})).item() == wanted);
  }
  CHECK(describe(fn.state()).graphs == 3);  // the others with symbols for the two sizes
  CHECK(describe(fn.state()).breaks.empty());
  for (int k = 0; k < 6; ++k) {  // two ways to the same line
    double const wanted = body(tensor({3, 3, k + 2.0})).item();
    --turns;
    CHECK(fn(tensor({3, 3, k + 2.0})).item() == wanted);
  }
  CHECK(describe(fn.state()).eager_calls == 0);
  CHECK(describe(fn.state()).breaks.empty());
}

TEST_CASE("compiled gradients pass through what a mask picks") {
  auto step = compile([](Tensor const& x) {
    Tensor const picked = masked_select(x * 3, x > 0);
    Tensor const loss = sum(picked * picked);
    loss.backward();
    return loss;
  });
  for (auto const& values : {std::array{1.0, -1.0, 2.0}, {-1.0, -1.0, 2.0}, {3.0, 1.0, 2.0}}) {
    Tensor x = tensor(values, {3}).set_requires_grad();
    double loss = 0;
    V expected;
    for (double v : values) loss += v > 0 ? 9 * v * v : 0, expected.push_back(v > 0 ? 18 * v : 0);
    CHECK(step(x).item() == doctest::Approx(loss));
    CHECK(numbers(x.grad()) == expected);
  }
}
