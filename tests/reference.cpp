import std;
import tenon.base;
import tenon.ir;
#include "reference.hpp"
using namespace tenon;
using base::DType;

namespace support {
namespace {
constexpr double infinite = std::numeric_limits<double>::infinity();

double precision_of(DType dtype) {
  return dtype == DType::f64 ? 1e-9 : dtype == DType::f32 ? 2e-5 : dtype == DType::bf16 ? 2e-2 : dtype == DType::f16 ? 4e-3 : 0;
}
// The last place of 1, and how many of them an operation may be wrong by: small floats are rounded once, sums of the others are taken in any order.
double last_place(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x1p-52 * 4;
    case DType::f32:
      return 0x1p-23 * 4;
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    case DType::f8e4m3:
      return 0x1p-3;
    default:
      return 0x1p-2;
  }
}
// What rounds: results of arithmetic, neither elements that were moved nor such that no operand decides.
bool rounds(ir::Node const& node) {
  return !node.op->geometry && !node.op->copy && std::ranges::any_of(node.inputs, [](ir::Input const& input) { return input.value >= 0; });
}
// The graph with each such result multiplied by an input of its own, which stands behind the graph's inputs.
struct Factored {
  ir::Graph graph;
  std::vector<int> rounded{};  // the results, in the order of their factors
};
Factored with_factors(ir::Graph const& graph) {
  Factored factored;
  auto& made = factored.graph;
  made.symbols = graph.symbols;
  ir::Symbols::Scope const scope(&made.symbols);
  std::vector<int> moved(graph.values.size(), -1);
  auto const at = [](int i) { return static_cast<std::size_t>(i); };
  for (int const input : graph.inputs) moved[at(input)] = made.input(*graph.values[at(input)].meta);
  for (auto const& node : graph.nodes) {
    auto inputs = node.inputs;
    for (auto& input : inputs)
      if (input.value >= 0) input.value = moved[at(input.value)];
    int const first = static_cast<int>(made.values.size()), number = static_cast<int>(made.nodes.size());
    made.nodes.push_back({node.op, std::move(inputs), node.attrs, first, node.results, node.at, node.module});
    for (int k = 0; k < node.results; ++k) {
      made.values.push_back(graph.values[at(node.first + k)]);
      made.values.back().node = number;
    }
    for (int k = 0; k < node.results; ++k) {
      auto const meta = *graph.values[at(node.first + k)].meta;
      moved[at(node.first + k)] = first + k;
      if (!rounds(node) || !base::is_real(meta.dtype)) continue;
      factored.rounded.push_back(first + k);
      moved[at(node.first + k)] = made.add(ir::ops::mul, {{first + k, {}}, {made.input(meta), {}}}, {}, {});
    }
  }
  for (int const output : graph.outputs) made.outputs.push_back(moved[at(output)]);
  return factored;
}
double apart(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::isfinite(a - b) ? std::fabs(a - b) : infinite; }
}  // namespace

Reference::Reference(ir::Graph const& graph, std::span<ir::Strided const> inputs, ir::Bindings bindings)
    : graph_(graph), inputs_(inputs.begin(), inputs.end()), bindings_(std::move(bindings)), value_(ir::evaluate(ir::decompose(graph), inputs, bindings_)) {}

void Reference::find_spread() {
  for (auto const& output : value_.outputs) spread_.emplace_back(static_cast<std::size_t>(base::numel(output.sizes)), 0.0);
  auto const [graph, rounded] = with_factors(ir::decompose(graph_));
  std::mt19937 random(17);
  std::vector<std::vector<char>> tiny;  // no more than last places of 1: a difference that may as well be 0, which is another divisor
  for (int turn = 0; turn < 17; ++turn) {
    std::vector<Array> factors;
    auto inputs = inputs_;
    for (std::size_t k = inputs_.size(); k < graph.inputs.size(); ++k) {
      auto const& meta = *graph.values[static_cast<std::size_t>(graph.inputs[k])].meta;
      base::Shape sizes;
      for (auto const size : meta.sizes) sizes.push_back(graph.symbols.evaluate(size, bindings_));
      std::vector<double> list(static_cast<std::size_t>(base::numel(sizes)), 1);
      for (std::size_t i = 0; i < list.size() && turn > 0; ++i)
        list[i] = turn % 2 && tiny[k - inputs_.size()][i] ? 0 : 1 + last_place(meta.dtype) * (static_cast<double>(random() % 3) - 1);
      factors.push_back(array(meta.dtype, sizes, list));
      inputs.push_back(factors.back().at);
    }
    if (turn == 0) {
      auto all = graph;
      all.outputs = rounded;
      for (auto const& result : ir::evaluate(all, inputs, bindings_).outputs) {
        tiny.emplace_back();
        for (double const x : reals(result)) tiny.back().push_back(std::fabs(x) <= 4 * last_place(result.dtype));
      }
      continue;
    }
    std::optional<ir::Evaluated> moved;
    if (caught([&] { moved = ir::evaluate(graph, inputs, bindings_); }) != "nothing") continue;  // an index that was moved out of its range
    for (std::size_t k = 0; k < spread_.size(); ++k) {
      auto const a = reals(moved->outputs[k]), b = reals(value_.outputs[k]);
      for (std::size_t i = 0; i < a.size(); ++i) spread_[k][i] = std::max(spread_[k][i], apart(a[i], b[i]));
    }
  }
}

std::string Reference::fault(std::size_t k, ir::Strided const& actual) {
  auto const& expected = value_.outputs[k];
  if (actual.sizes != expected.sizes || actual.dtype != expected.dtype)
    return std::format("{}{} where {}{} is due", base::info(actual.dtype).name, base::to_string(actual.sizes), base::info(expected.dtype).name,
                       base::to_string(expected.sizes));
  auto const x = reals(actual), y = reals(expected);
  double const bound = precision_of(actual.dtype) * scale_of(y);
  if (distance(x, y) <= bound) return {};
  if (spread_.empty()) find_spread();
  for (std::size_t i = 0; i < x.size(); ++i)
    if (double const off = apart(x[i], y[i]), most = bound + 8 * spread_[k][i]; !(off <= most))
      return std::format("element {} is {}, not {}: {:.3g} apart, allowed {:.3g}", i, x[i], y[i], off, most);
  return {};
}

}  // namespace support
