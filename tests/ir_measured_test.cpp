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

TEST_CASE("equations of measured calls bind each letter to one size, and no letter is free to be cut where elements decide") {
  each_measured([](Call const& call, std::mt19937&) {
    std::vector<ir::Meta> metas;
    std::vector<ir::Meta const*> in;
    for (auto const& operand : call.operands) metas.push_back(support::meta_of(operand.tensor->at));
    for (auto const& meta : metas) in.push_back(&meta);
    auto const equation = ir::parse_equation(ir::equation_of(*call.op, call.attrs, in));
    auto const results = support::run_at_once(call).results;
    CHECK_MESSAGE(equation.operands.size() == metas.size(), call.text);
    CHECK_MESSAGE(equation.results.size() == results.size(), call.text);
    std::map<std::string, std::int64_t> sizes;
    std::set<std::string> operands;
    auto const bind = [&](std::vector<ir::Factor> const& factors, base::Shape const& shape, bool result) {
      CHECK_MESSAGE(factors.size() == shape.size(), call.text);
      for (std::size_t d = 0; d < std::min(factors.size(), shape.size()); ++d) {
        auto const& letters = factors[d].letters;
        if (letters.empty()) CHECK_MESSAGE(shape[d] == 1, call.text);
        if (letters.empty()) continue;
        CHECK_MESSAGE(sizes.try_emplace(letters, shape[d]).first->second == shape[d], call.text << ": letter " << letters);
        if (result && !operands.contains(letters)) CHECK_MESSAGE(factors[d].whole, call.text << ": letter " << letters << " is made and free");
        if (!result) operands.insert(letters);
      }
    };
    for (std::size_t k = 0; k < metas.size(); ++k) bind(equation.operands[k], ir::values(metas[k].sizes), false);
    for (std::size_t k = 0; k < results.size(); ++k) bind(equation.results[k], results[k].at.sizes, true);
  });
}

TEST_CASE("a text that holds a measured call reads and prints the same, and is not verified") {
  each_measured([](Call const& call, std::mt19937&) {
    ir::Graph graph;
    ir::Node node{call.op, {}, call.attrs, 0, 0, {"a.cpp", 3, 4, ""}};
    for (auto const& operand : call.operands) node.inputs.push_back({graph.input(support::meta_of(operand.tensor->at)), {}});
    node.first = static_cast<int>(graph.values.size());
    for (auto const& result : support::run_at_once(call).results) {
      auto meta = support::meta_of(result.at);
      graph.outputs.push_back(static_cast<int>(graph.values.size()));
      graph.values.push_back({ir::MetaRef(new ir::Meta(ir::contiguous_meta(meta.dtype, {}, meta.sizes))), 0, node.results++, {}});
    }
    graph.nodes.push_back(std::move(node));
    auto const text = ir::to_string(graph);
    auto const again = ir::parse_graph(text);
    CHECK_MESSAGE(ir::to_string(again) == text, call.text);
    CHECK_MESSAGE(support::says(support::caught([&] { ir::verify(again); }), "depends on elements"), call.text);
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

TEST_CASE("a wrong measured call is an Error that names the op, never a crash") {
  int refused = 0;
  each_measured([&](Call const& call, std::mt19937&) {
    auto const attempt = [&](Call const& wrong, std::string_view change) {
      auto const text = support::caught([&] { support::run_at_once(wrong); });
      if (text == "nothing") return;
      ++refused;
      auto const first = call.op->name.substr(0, call.op->name.find('.'));
      bool const named = support::says(text, first) || support::says(text, "scatter") || support::says(text, "index") || support::says(text, "memory");
      if (text.starts_with("Bug") || !named) FAIL_CHECK(call.text << " with " << change << ": " << text);
    };
    for (std::size_t k = 0; k < call.operands.size(); ++k) {
      auto changed = call;
      auto const with = [&](base::Shape const& sizes, DType dtype) {
        changed.operands[k] = {support::array(dtype, sizes), {}};
        attempt(changed, std::format("operand {} of {}{}", k, base::info(dtype).name, base::to_string(sizes)));
      };
      auto const& sizes = call.operands[k].tensor->at.sizes;
      for (auto const& other : {base::Shape{}, base::Shape{0}, base::Shape{7}, base::Shape{2, 3, 2, 2}, sizes})
        for (auto dtype : {DType::f64, DType::bf16, DType::i64, DType::i32, DType::boolean}) with(other, dtype);
      changed.operands[k] = {std::nullopt, ir::Scalar()};
      attempt(changed, "an operand missing");
      changed.operands[k] = {std::nullopt, ir::Scalar(2)};
      attempt(changed, "a number for an operand");
      changed = call;
      changed.operands.erase(changed.operands.begin() + static_cast<std::ptrdiff_t>(k));
      attempt(changed, "an operand fewer");
    }
    for (std::size_t place = 0; place < call.attrs.ints.size(); ++place)
      for (std::int64_t const value : {std::int64_t{-1}, std::int64_t{7}, std::int64_t{-9}, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()}) {
        auto changed = call;
        changed.attrs.ints[place] = value;
        attempt(changed, std::format("attribute {} of {}", place, value));
      }
  });
  CHECK(refused > 300);
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
  CHECK(wrong("one_hot(i64[2])", {-1, 1}) == "scatter: index -1 is out of range for size 2");
  CHECK(wrong("repeat_interleave.Tensor(i64[2])", {1, -1}) == "repeat_interleave.Tensor: the number of repeats can't be negative: -1");
  CHECK(wrong("repeat_interleave.Tensor(i64[2], output_size=3)", {1, 1}) == "repeat_interleave.Tensor: output_size is 3, the repeats add up to 2");
}
