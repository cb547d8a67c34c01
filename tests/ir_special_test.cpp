// PyTorch's results where definitions differ: NaN, infinities, signed zeros, no elements, no dims. Values are those of PyTorch 2.15.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;

namespace {
constexpr double inf = std::numeric_limits<double>::infinity(), NaN = std::numeric_limits<double>::quiet_NaN();

struct Row {
  std::string_view call;
  std::vector<std::vector<double>> operands;
  std::vector<double> result;
};
}  // namespace

TEST_CASE("special values are PyTorch's") {
  std::vector<Row> const rows{
      {"floor_divide(f64[8], f64[8])", {{1, 1, -7, inf, 5, -5, 0, 1}, {-inf, 0.1, 2, 2, 0, 0, 0, inf}}, {-1, 9, -4, NaN, inf, -inf, NaN, 0}},
      {"remainder(f64[7], f64[7])", {{1, 1, -7, inf, 5, -1, 1}, {-inf, 0.1, 2, 2, 0, inf, NaN}}, {-inf, 0.1 - 5.551115123125783e-17, 1, NaN, NaN, inf, NaN}},
      {"maximum(f64[3], f64[3])", {{NaN, 1, -inf}, {1, NaN, inf}}, {NaN, NaN, inf}},
      {"minimum(f64[3], f64[3])", {{NaN, 1, -inf}, {1, NaN, inf}}, {NaN, NaN, -inf}},
      {"pow(f64[4], f64[4])", {{0, NaN, -8, 1}, {0, 0, 1.0 / 3, NaN}}, {1, 1, NaN, 1}},
      {"clamp(f64[3], min=2.0, max=-1.0)", {{NaN, 0, 5}}, {NaN, -1, -1}},
      {"lerp(f64[3], f64[3], f64[3])", {{inf, 0, 1}, {0, inf, 2}, {0.3, 0.7, -3}}, {NaN, NaN, -2}},
      {"round(f64[5])", {{0.5, 1.5, 2.5, -0.5, inf}}, {0, 2, 2, 0, inf}},
      {"sign(f64[3])", {{NaN, -0.0, -inf}}, {0, 0, -1}},
      {"relu(f64[3])", {{NaN, -inf, inf}}, {NaN, 0, inf}},
      {"softplus(f64[3])", {{-inf, inf, NaN}}, {0, inf, NaN}},
      {"silu(f64[3])", {{-inf, inf, NaN}}, {NaN, inf, NaN}},
      {"eq(f64[2], f64[2])", {{NaN, 0}, {NaN, -0.0}}, {0, 1}},
      {"sum(f64[0])", {{}}, {0}},
      {"prod(f64[0])", {{}}, {1}},
      {"mean(f64[0])", {{}}, {NaN}},
      {"all(bool[0])", {{}}, {1}},
      {"any(bool[0])", {{}}, {0}},
      {"var(f64[1])", {{3}}, {NaN}},
      {"argmax(f64[4])", {{1, NaN, inf, NaN}}, {1}},
      {"argmin(f64[3])", {{2, 1, 1}}, {1}},
      {"amax(f64[3])", {{1, NaN, inf}}, {NaN}},
      {"logsumexp(f64[3, 0], dim=[1])", {{}}, {-inf, -inf, -inf}},
      {"logsumexp(f64[2, 2], dim=[1])", {{-inf, -inf, inf, 1}}, {-inf, inf}},
      {"softmax(f64[2, 2], dim=1)", {{inf, 1, -inf, 0}}, {NaN, NaN, 0, 1}},
      {"matmul(f64[2, 0], f64[0, 2])", {{}, {}}, {0, 0, 0, 0}},
      {"matmul(f64[1, 2], f64[2, 1])", {{0, 1}, {inf, 1}}, {NaN}},
      {"cross_entropy(f64[2, 3], i64[2], none)", {{1, 2, 3, 1, 2, 3}, {-100, -100}}, {NaN}},
      {"cross_entropy(f64[2, 3], i64[2], none, reduction=sum)", {{1, 2, 3, 1, 2, 3}, {-100, -100}}, {0}},
      {"mse_loss(f64[0], f64[0])", {{}, {}}, {NaN}},
      {"scaled_dot_product_attention(f64[1, 1, 2], f64[1, 2, 2], f64[1, 2, 2], bool[1, 2])", {{1, 2}, {1, 2, 3, 4}, {1, 2, 3, 4}, {0, 0}}, {0, 0}},
      {"scaled_dot_product_attention(f64[1, 1, 2], f64[1, 2, 2], f64[1, 2, 2], f64[1, 2])", {{1, 2}, {1, 2, 3, 4}, {1, 2, 3, 4}, {-inf, -inf}}, {0, 0}},
  };
  std::mt19937 random(61);
  for (auto const& row : rows) {
    auto call = support::sample(row.call, random);
    std::size_t k = 0;
    for (auto& operand : call.operands)
      if (operand.tensor) operand.tensor = support::array(operand.tensor->at.dtype, operand.tensor->at.sizes, row.operands.at(k++));
    auto const got = support::reals(support::run(support::graph_of(call), support::inputs_of(call)).outputs[0]);
    std::string text;
    for (double v : got) text += std::format(" {}", v);
    CHECK_MESSAGE(support::distance(got, row.result) <= 1e-15, std::string(row.call) << " gives" << text);
  }
}

TEST_CASE("a query that a mask leaves no key has gradients of 0") {
  std::mt19937 random(62);
  auto call = support::sample("scaled_dot_product_attention(f64[2, 3, 4], f64[2, 5, 4], f64[2, 5, 2], bool[3, 5])", random);
  std::array<double, 15> const sees{1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1};
  call.operands[3].tensor = support::array(base::DType::boolean, {3, 5}, sees);
  std::array const wrt{0, 1, 2};
  auto inputs = support::inputs_of(call);
  std::vector<double> const ones(12, 1.0);
  auto const cotangent = support::array(base::DType::f64, {2, 3, 2}, ones);
  inputs.push_back(cotangent.at);
  auto const done = support::run(support::gradient_graph(support::graph_of(call), wrt), inputs);
  for (std::size_t k = 1; k < done.outputs.size(); ++k)
    for (double g : support::reals(done.outputs[k])) CHECK(std::isfinite(g));
  auto const query = support::reals(done.outputs[1]);
  for (std::size_t i = 4; i < 8; ++i) CHECK(query[i] == 0);
}
