// Rows whose results' sizes depend on elements, on their own sample calls: refused for a graph, measured and evaluated at once.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using support::Array;
using support::Call;

namespace {
void each_measured(std::function<void(Call const&, std::mt19937&)> const& check) {
  std::mt19937 random(71);
  for (auto const* op : ir::all_ops())
    for (auto const& call : support::measured_samples(*op, random)) try {
        check(call, random);
      } catch (std::exception const& error) {
        FAIL_CHECK(call.text << ": " << std::string(error.what()));
      }
}
std::vector<double> numbers(std::string_view line, std::initializer_list<double> x, std::size_t result = 0) {
  std::mt19937 random(1);
  auto call = support::sample(line, random);
  auto const& sizes = call.operands[0].tensor->at.sizes;
  call.operands[0].tensor = support::array(call.operands[0].tensor->at.dtype, sizes, std::vector<double>(x));
  return support::reals(support::run_at_once(call).results[result].at);
}
}  // namespace

TEST_CASE("every measured row has a sample call that no graph takes, and says so by name") {
  std::mt19937 random(70);
  int rows = 0;
  for (auto const* op : ir::all_ops()) {
    auto const calls = support::measured_samples(*op, random);
    CHECK_MESSAGE((op->measured != nullptr) == !calls.empty(), std::string(op->name) << " has no sample call in tests/op_samples_forms.cpp");
    rows += op->measured != nullptr;
    for (auto const& call : calls) {
      auto const text = support::caught([&] { support::graph_of(call); });
      CHECK_MESSAGE(text == std::format("{}: the size of its result depends on elements, so no graph can hold it", op->name), call.text << ": " << text);
    }
  }
  CHECK(rows >= 7);
}

TEST_CASE("measured sizes are those of the results, whatever the strides") {
  each_measured([](Call const& call, std::mt19937& random) {
    std::vector<ir::Strided> in;
    std::vector<ir::Scalar> scalars;
    for (auto const& operand : call.operands) {
      in.push_back(operand.tensor ? operand.tensor->at : ir::Strided{});
      scalars.push_back(operand.number);
    }
    auto const metas = ir::measure(*call.op, in, scalars, call.attrs, {});
    auto const expected = support::run_at_once(call).results;
    CHECK(metas.size() == expected.size());
    for (std::size_t k = 0; k < metas.size(); ++k) {
      CHECK_MESSAGE(ir::values(metas[k].sizes) == expected[k].at.sizes, call.text);
      CHECK_MESSAGE(metas[k].dtype == expected[k].at.dtype, call.text);
    }
    for (int turn = 0; turn < 3; ++turn) {
      auto strided = call;
      for (auto& operand : strided.operands)
        if (operand.tensor) operand.tensor = support::restrided(operand.tensor->at, random);
      auto const got = support::run_at_once(strided).results;
      for (std::size_t k = 0; k < got.size(); ++k)
        CHECK_MESSAGE(support::distance(support::reals(got[k].at), support::reals(expected[k].at)) <= 1e-12, call.text);
    }
  });
}

TEST_CASE("gradients of measured calls agree with central differences") {
  int checked = 0;
  each_measured([&](Call const& call, std::mt19937& random) {
    auto const results = support::run_at_once(call).results;
    std::vector<int> wrt;
    auto const inputs = support::inputs_of(call);
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (inputs[k].dtype == DType::f64) wrt.push_back(static_cast<int>(k));
    if (wrt.empty() || results[0].at.dtype != DType::f64 || (!call.op->vjp && !call.op->decompose)) return;
    std::vector<double> weights;
    for (std::int64_t i = 0; i < base::numel(results[0].at.sizes); ++i) weights.push_back(std::uniform_real_distribution(-1.0, 1.0)(random));
    std::array const cotangents{support::array(DType::f64, results[0].at.sizes, weights)};
    auto const ours = support::run_at_once(call, cotangents, wrt).gradients;
    auto const total = [&] {
      double sum = 0;
      auto const y = support::reals(support::run_at_once(call).results[0].at);
      for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
      return sum;
    };
    for (std::size_t w = 0; w < wrt.size(); ++w) {
      auto const& x = inputs[static_cast<std::size_t>(wrt[w])];
      std::vector<double> theirs;
      for (std::int64_t i = 0; i < base::numel(x.sizes); ++i) {
        double const before = x.real(i), h = 1e-6;
        x.set(i, before + h);
        double const up = total();
        x.set(i, before - h);
        theirs.push_back((up - total()) / (2 * h));
        x.set(i, before);
      }
      CHECK_MESSAGE(support::distance(support::reals(ours[w].at), theirs) <= 1e-6, call.text);
      ++checked;
    }
  });
  CHECK(checked >= 5);
}

TEST_CASE("what is measured, by hand") {
  using V = std::vector<double>;
  double const nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(numbers("nonzero(f64[2, 3])", {0, -1, nan, -0.0, 0, inf}) == V{0, 1, 0, 2, 1, 2});
  CHECK(numbers("nonzero(f64[])", {0}).empty());
  CHECK(numbers("unique(i64[6], return_inverse=true, return_counts=true)", {3, 1, 3, -2, 1, 3}) == V{-2, 1, 3});
  CHECK(numbers("unique(i64[6], return_inverse=true, return_counts=true)", {3, 1, 3, -2, 1, 3}, 1) == V{2, 1, 2, 0, 1, 2});
  CHECK(numbers("unique(i64[6], return_inverse=true, return_counts=true)", {3, 1, 3, -2, 1, 3}, 2) == V{1, 2, 3});
  CHECK(numbers("unique(i64[3, 2], dim=0)", {2, 1, 0, 5, 2, 1}) == V{0, 5, 2, 1});
  CHECK(numbers("unique(f64[4])", {nan, 1, nan, 1}).size() == 3);  // each NaN is its own
  CHECK(numbers("one_hot(i64[3])", {2, 0, 1}) == V{0, 0, 1, 1, 0, 0, 0, 1, 0});
  CHECK(numbers("repeat_interleave.Tensor(i64[3])", {2, 0, 1}) == V{0, 0, 2});
  auto const wrong = [](std::string_view line, std::initializer_list<double> x) { return support::caught([&] { numbers(line, x); }); };
  CHECK(wrong("one_hot(i64[0])", {}) == "one_hot: no elements tell the number of classes");
  CHECK(wrong("one_hot(i64[2])", {-1, 1}) == "one_hot: class -1 is out of range for 2 classes");
  CHECK(wrong("repeat_interleave.Tensor(i64[2])", {1, -1}) == "repeat_interleave.Tensor: the number of repeats can't be negative: -1");
  CHECK(wrong("repeat_interleave.Tensor(i64[2], output_size=3)", {1, 1}) == "repeat_interleave.Tensor: output_size is 3, the repeats add up to 2");
}
