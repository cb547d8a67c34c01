// Collectives of groups larger than one: their meaning is written down here, every process runs the same graph, and gradients of the sum of all
// processes' losses are compared with central differences.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using support::Array;

namespace {

using Ranks = std::vector<Array>;  ///< one value on each process
using Reals = std::vector<std::vector<double>>;

double folded(std::string_view how, double a, double b) {
  return how == "max" ? std::max(a, b) : how == "min" ? std::min(a, b) : how == "prod" ? a * b : a + b;
}
Array piece(Array const& x, std::size_t dim, std::int64_t part, std::int64_t parts) {
  auto view = x.at;
  view.sizes[dim] /= parts;
  view.data = view.at(part * view.sizes[dim] * view.strides[dim]);
  return support::converted(view, view.dtype);
}
Array joined(std::vector<Array> const& parts, std::size_t dim) {
  auto sizes = parts[0].at.sizes;
  sizes[dim] *= std::ssize(parts);
  auto result = support::array(parts[0].at.dtype, sizes);
  for (std::size_t k = 0; k < parts.size(); ++k) {
    auto target = result.at;
    target.data = target.at(static_cast<std::int64_t>(k) * parts[k].at.sizes[dim] * target.strides[dim]);
    ir::walk<2>(parts[k].at.sizes, {&parts[k].at.strides, &target.strides}, [&](auto const& at) { target.set(at[1], parts[k].at.real(at[0])); });
  }
  return result;
}
Array reduced(Ranks const& x, std::string_view how) {
  auto result = support::converted(x[0].at, x[0].at.dtype);
  for (std::int64_t i = 0; i < base::numel(result.at.sizes); ++i) {
    double total = x[0].at.real(i);
    for (std::size_t r = 1; r < x.size(); ++r) total = folded(how, total, x[r].at.real(i));
    result.at.set(i, how == "avg" ? total / static_cast<double>(x.size()) : total);
  }
  return result;
}

/// What each process gets; attributes by name, as the text form has them.
Ranks together(ir::Node const& node, Ranks const& x) {
  auto const n = std::ssize(x);
  std::string_view const name = node.op->name;
  std::map<std::string_view, std::int64_t> number;
  std::string_view how;
  ir::AttrReader reader{node.attrs};
  for (auto const& parameter : ir::signature(*node.op).parameters) {
    if (parameter.type == ir::Parameter::Type::tensor || parameter.type == ir::Parameter::Type::text) continue;
    number[parameter.name] = reader.number().value;
    if (parameter.name == "reduction") how = parameter.choices[static_cast<std::size_t>(number[parameter.name])];
  }
  REQUIRE(number["group_size"] == n);
  auto const axis = [&](std::string_view key) { return static_cast<std::size_t>(base::wrap_dim("dim", number[key], std::ssize(x[0].at.sizes))); };
  Ranks y;
  for (std::int64_t r = 0; r < n; ++r) {
    if (name == "all_reduce") y.push_back(reduced(x, how));
    if (name == "all_gather") y.push_back(joined(x, axis("dim")));
    if (name == "reduce_scatter") y.push_back(piece(reduced(x, how), axis("dim"), r, n));
    if (name == "broadcast") y.push_back(x[static_cast<std::size_t>(number["src"])]);
    if (name == "reduce") y.push_back(r == number["dst"] ? reduced(x, "sum") : support::array(x[0].at.dtype, x[0].at.sizes));
    if (name == "collective_permute") y.push_back(x[static_cast<std::size_t>(((r - number["shift"]) % n + n) % n)]);
    if (name == "all_to_all") {
      std::vector<Array> parts;
      for (auto const& other : x) parts.push_back(piece(other, axis("split_dim"), r, n));
      y.push_back(joined(parts, axis("concat_dim")));
    }
  }
  REQUIRE(std::ssize(y) == n);
  return y;
}

/// Outputs of the graph on each process.
std::vector<Ranks> run(ir::Graph const& given, std::vector<Ranks> const& inputs) {  // [input][rank] → [output][rank]
  auto const graph = ir::decompose(given);
  std::size_t const n = inputs[0].size();
  std::vector<Ranks> values(graph.values.size());
  for (std::size_t k = 0; k < inputs.size(); ++k) values[static_cast<std::size_t>(graph.inputs[k])] = inputs[k];
  for (auto const& node : graph.nodes) {
    if (node.op->kind == ir::Kind::collective) {
      values[static_cast<std::size_t>(node.first)] = together(node, values[static_cast<std::size_t>(node.inputs[0].value)]);
      auto const& meta = *graph.values[static_cast<std::size_t>(node.first)].meta;
      CHECK(values[static_cast<std::size_t>(node.first)][0].at.sizes == ir::values(meta.sizes));
      continue;
    }
    for (std::size_t rank = 0; rank < n; ++rank) {
      std::vector<ir::Strided> in, out;
      std::vector<ir::Scalar> scalars;
      for (auto const& input : node.inputs) {
        in.push_back(input.value < 0 ? ir::Strided{} : values[static_cast<std::size_t>(input.value)][rank].at);
        scalars.push_back(input.scalar);
      }
      for (int k = 0; k < node.results; ++k) {
        auto const value = static_cast<std::size_t>(node.first + k);
        values[value].push_back(support::array(graph.values[value].meta->dtype, ir::values(graph.values[value].meta->sizes)));
        out.push_back(values[value].back().at);
      }
      ir::evaluate(*node.op, in, scalars, node.attrs, out);
    }
  }
  std::vector<Ranks> outputs;
  for (int output : graph.outputs) outputs.push_back(values[static_cast<std::size_t>(output)]);
  return outputs;
}

ir::Graph one_call(std::string_view call, std::string_view operand) {
  auto const text = std::format("graph group(%0: {}) {{\n%1 = {}: f64[]\nreturn %1\n}}", operand, call);
  auto const read = ir::parse_graph(text);
  ir::Graph graph;  // parsed results are taken from the text: infer them
  int const x = graph.input(*read.values[0].meta, "x");
  graph.outputs = {graph.add(*read.nodes[0].op, {{x, {}}}, read.nodes[0].attrs, {})};
  return graph;
}
Ranks drawn(base::Shape const& sizes, int n, std::mt19937& random, bool zeros) {
  Ranks ranks;
  for (int r = 0; r < n; ++r) {
    std::vector<double> values(static_cast<std::size_t>(base::numel(sizes)));
    for (auto& value : values) value = std::uniform_real_distribution(-2.0, 2.0)(random);
    if (zeros && r < 2) values[static_cast<std::size_t>(r) % values.size()] = 0;
    if (zeros && r < 2) values.back() = 0;
    ranks.push_back(support::array(DType::f64, sizes, values));
  }
  return ranks;
}
}  // namespace

TEST_CASE("gradients through collectives of three processes") {
  std::mt19937 random(5);
  constexpr int n = 3;
  for (auto const& [call, sizes] : {
           std::pair{"all_reduce(%0, group=\"g\", group_size=3)", base::Shape{2, 3}},
           {"all_reduce(%0, reduction=avg, group=\"g\", group_size=3)", {2, 3}},
           {"all_reduce(%0, reduction=max, group=\"g\", group_size=3)", {2, 3}},
           {"all_reduce(%0, reduction=min, group=\"g\", group_size=3)", {4}},
           {"all_reduce(%0, reduction=prod, group=\"g\", group_size=3)", {2, 3}},
           {"all_gather(%0, dim=-1, group=\"g\", group_size=3)", {2, 3}},
           {"reduce_scatter(%0, group=\"g\", group_size=3)", {6, 2}},
           {"reduce_scatter(%0, reduction=avg, dim=1, group=\"g\", group_size=3)", {2, 3}},
           {"reduce_scatter(%0, reduction=max, dim=1, group=\"g\", group_size=3)", {2, 6}},
           {"reduce_scatter(%0, reduction=prod, group=\"g\", group_size=3)", {3, 2}},
           {"all_to_all(%0, split_dim=1, concat_dim=0, group=\"g\", group_size=3)", {2, 6}},
           {"all_to_all(%0, group=\"g\", group_size=3)", {6, 2}},
           {"broadcast(%0, src=1, group=\"g\", group_size=3)", {2, 2}},
           {"reduce(%0, dst=2, group=\"g\", group_size=3)", {2, 2}},
           {"collective_permute(%0, group=\"g\", group_size=3)", {2, 2}},
           {"collective_permute(%0, shift=-4, group=\"g\", group_size=3)", {2, 2}},
       }) {
    auto const list = base::to_string(sizes);
    auto const graph = one_call(call, "f64" + list);
    ir::verify(graph);
    auto const again = ir::parse_graph(ir::to_string(graph));
    CHECK_MESSAGE(ir::equal(again, graph), call);
    auto const joint = support::gradient_graph(graph, std::array{0});
    ir::verify(joint);
    auto const x = drawn(sizes, n, random, support::says(call, "prod"));
    auto const weights = drawn(ir::values(graph.values[static_cast<std::size_t>(graph.outputs[0])].meta->sizes), n, random, false);
    auto const total = [&] {
      double sum = 0;
      auto const y = run(graph, {x});
      for (std::size_t r = 0; r < n; ++r) {
        auto const ours = support::reals(y[0][r].at), shares = support::reals(weights[r].at);
        sum += std::inner_product(ours.begin(), ours.end(), shares.begin(), 0.0);
      }
      return sum;
    };
    auto const gradients = run(joint, {x, weights})[1];
    for (std::size_t r = 0; r < n; ++r) {
      auto const ours = support::reals(gradients[r].at);
      std::vector<double> theirs;
      for (std::int64_t i = 0; i < base::numel(sizes); ++i) {
        constexpr double h = 1e-6;
        double const before = x[r].at.real(i);
        x[r].at.set(i, before + h);
        double const up = total();
        x[r].at.set(i, before - h);
        double const down = total();
        x[r].at.set(i, before);
        theirs.push_back((up - down) / (2 * h));
      }
      CHECK_MESSAGE(support::distance(ours, theirs) < 1e-6, call << " on process " << r);
    }
  }
}

TEST_CASE("equal largest elements of several processes share the gradient") {
  constexpr int n = 4;
  auto const graph = one_call("all_reduce(%0, reduction=max, group=\"g\", group_size=4)", "f64[2]");
  Ranks x, weights;
  for (int r = 0; r < n; ++r) {
    x.push_back(support::array(DType::f64, {2}, std::array{r < 2 ? 3.0 : 1.0, static_cast<double>(r)}));
    weights.push_back(support::array(DType::f64, {2}, std::array{1.0 + r, 1.0}));
  }
  auto const gradients = run(support::gradient_graph(graph, std::array{0}), {x, weights})[1];
  Reals got;
  for (auto const& gradient : gradients) got.push_back(support::reals(gradient.at));
  CHECK(got == Reals{{5, 0}, {5, 0}, {0, 0}, {0, 4}});
}

TEST_CASE("what collectives refuse") {
  auto const refusal = [](std::string_view call, std::string_view operand) { return support::caught([&] { one_call(call, operand); }); };
  CHECK(refusal("reduce_scatter(%0, group=\"g\", group_size=3)", "f64[4, 3]") == "reduce_scatter: size 4 does not divide among 3 processes");
  CHECK(refusal("all_reduce(%0, group=\"\")", "f64[4]") == "all_reduce: the group needs a name");
  CHECK(refusal("all_reduce(%0, group=\"g\", group_size=0)", "f64[4]") == "all_reduce: a group of 0 processes");
  CHECK(refusal("all_reduce(%0, reduction=avg, group=\"g\")", "i64[4]") == "all_reduce: an average needs floating elements, not i64[4]");
  CHECK(refusal("broadcast(%0, src=3, group=\"g\", group_size=3)", "f64[4]") == "broadcast: process 3 is not in a group of 3");
  CHECK(support::says(refusal("all_gather(%0, dim=2, group=\"g\")", "f64[4, 3]"), "all_gather: "));
  CHECK(refusal("all_gather(%0, group=\"g\")", "f64[]") == "all_gather: a 0-d tensor has no dim to cut or join");
  CHECK(support::says(refusal("all_gather(%0, group=\"g\", group_size=4611686018427387904)", "f64[4]"), "overflows"));
  auto const graph = one_call("all_gather(%0, group=\"data\", group_size=2)", "f64[2]");
  auto const x = support::array(DType::f64, {2});
  CHECK(support::caught([&] { support::run(graph, std::array{x.at}); }) == "all_gather: a group of 2 processes (\"data\") cannot run on one process");
}

TEST_CASE("passes merge equal collectives and drop dead ones, and keep different groups apart") {
  auto const graph = ir::parse_graph(
      "graph g(%0: f64[2]) {\n%1 = all_reduce(%0, group=\"a\", group_size=2): f64[2]\n%2 = all_reduce(%0, group=\"a\", group_size=2): f64[2]\n"
      "%3 = all_reduce(%0, group=\"b\", group_size=2): f64[2]\n%4 = all_reduce(%0, reduction=max, group=\"a\", group_size=2): f64[2]\n"
      "%5 = add(%1, %2): f64[2]\n%6 = add(%5, %3): f64[2]\nreturn %6\n}");
  ir::verify(graph);
  CHECK(ir::merge_common(graph).nodes.size() == 5);
  CHECK(ir::eliminate_dead_code(ir::merge_common(graph)).nodes.size() == 4);
}
