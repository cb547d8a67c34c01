// Functions that are bodies over the core, against the C library: ordinary numbers to the last digits, and the special ones exactly in kind.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;

namespace {
/// For rows that search: the first operand sorted along its last dim, and a sorter that says so.
support::Call with_sorted_rows(support::Call call) {
  auto const& sizes = call.operands[0].tensor->at.sizes;
  auto values = support::reals(call.operands[0].tensor->at);
  std::vector<double> places(values.size());
  auto const n = static_cast<std::size_t>(sizes.empty() ? 1 : sizes.back());
  for (std::size_t k = 0; n && k < values.size(); k += n) {
    std::sort(values.begin() + static_cast<std::ptrdiff_t>(k), values.begin() + static_cast<std::ptrdiff_t>(k + n));
    std::iota(places.begin() + static_cast<std::ptrdiff_t>(k), places.begin() + static_cast<std::ptrdiff_t>(k + n), 0.0);
  }
  call.operands[0].tensor = support::array(call.operands[0].tensor->at.dtype, sizes, values);
  if (call.operands.size() > 2 && call.operands[2].tensor) call.operands[2].tensor = support::array(DType::i64, sizes, places);
  return call;
}
}  // namespace

TEST_CASE("a row with a kernel and a body: both say the same") {
  std::mt19937 random(62);
  int compared = 0;
  for (auto const* op : ir::all_ops()) {
    if (!ir::has_kernel(*op) || !op->decompose) continue;
    for (auto const& sampled : support::samples(*op, random)) try {
        auto const call = op->kind == ir::Kind::sort ? with_sorted_rows(sampled) : sampled;
        auto const graph = support::graph_of(call);
        if (support::caught([&] { ir::decompose(graph, [&](ir::OpDef const& other) { return &other != op; }); }).ends_with("the places depend on elements"))
          continue;
        auto const inputs = support::inputs_of(call);
        auto const kernel = support::run(graph, inputs),
                   body = support::run(ir::decompose(graph, [&](ir::OpDef const& other) { return &other != op; }), inputs);
        for (std::size_t k = 0; k < kernel.outputs.size(); ++k) {
          CHECK_MESSAGE(kernel.outputs[k].sizes == body.outputs[k].sizes, call.text);
          CHECK_MESSAGE(support::distance(support::reals(kernel.outputs[k]), support::reals(body.outputs[k])) <= 1e-12, call.text);
        }
        ++compared;
      } catch (std::exception const& error) {
        FAIL_CHECK(sampled.text << ": " << std::string(error.what()));
      }
  }
  CHECK(compared > 10);
}

TEST_CASE("a function written as a body is the C library's, at zeros, infinities and NaN too") {
  struct Row {
    std::string_view name;
    double (*function)(double);
  };
  constexpr std::array rows{Row{"tan", [](double x) { return std::tan(x); }},
                            Row{"sinh", [](double x) { return std::sinh(x); }},
                            Row{"cosh", [](double x) { return std::cosh(x); }},
                            Row{"atan", [](double x) { return std::atan(x); }},
                            Row{"asin", [](double x) { return std::asin(x); }},
                            Row{"acos", [](double x) { return std::acos(x); }},
                            Row{"asinh", [](double x) { return std::asinh(x); }},
                            Row{"acosh", [](double x) { return std::acosh(x); }},
                            Row{"atanh", [](double x) { return std::atanh(x); }},
                            Row{"exp2", [](double x) { return std::exp2(x); }},
                            Row{"log10", [](double x) { return std::log10(x); }},
                            Row{"isfinite", [](double x) { return static_cast<double>(std::isfinite(x)); }},
                            Row{"isinf", [](double x) { return static_cast<double>(std::isinf(x)); }}};
  constexpr double inf = std::numeric_limits<double>::infinity();
  std::vector<double> values{0.0, -0.0, 1.0, -1.0, inf, -inf, std::numeric_limits<double>::quiet_NaN(), 1e300, -1e300, 1e-300, 1e-9, -1e-9, 20.0, -20.0};
  std::mt19937 random(61);
  for (int n = 0; n < 1000; ++n) values.push_back(std::uniform_real_distribution(-4.0, 4.0)(random));
  for (int n = 0; n < 1000; ++n) values.push_back(std::uniform_real_distribution(-1.0, 1.0)(random));
  auto const x = support::array(DType::f64, {std::ssize(values)}, values);
  for (auto const& row : rows) {
    ir::Graph graph;
    int const input = graph.input(support::meta_of(x.at), "x");
    auto const* op = ir::find_op(row.name);
    REQUIRE(op);
    graph.outputs = {graph.add(*op, {{input, {}}})};
    auto const ours = support::reals(support::run(graph, std::array{x.at}).outputs[0]);
    int faults = 0;
    for (std::size_t k = 0; k < values.size() && faults < 3; ++k) {
      double const theirs = row.function(values[k]);
      bool const same =
          ours[k] == theirs || (std::isnan(ours[k]) && std::isnan(theirs)) || std::fabs(ours[k] - theirs) <= 4e-15 * std::max(1.0, std::fabs(theirs));
      if (!same) FAIL_CHECK(++faults << ": " << row.name << " at " << values[k] << ": " << ours[k] << ", not " << theirs);
    }
  }
}
