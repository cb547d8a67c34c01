// Folding, the table of rules, and all passes in any order on random graphs: what stays is the same, bit for bit.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "bits.hpp"
#include "ir_random.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;
using support::bits;

namespace {
void check_same(ir::Evaluated const& ours, ir::Evaluated const& theirs, std::string const& what) {
  REQUIRE_MESSAGE(ours.outputs.size() == theirs.outputs.size(), what);
  for (std::size_t k = 0; k < theirs.outputs.size(); ++k) {
    CHECK_MESSAGE(ours.outputs[k].dtype == theirs.outputs[k].dtype, what);
    CHECK_MESSAGE(ours.outputs[k].sizes == theirs.outputs[k].sizes, what);
    CHECK_MESSAGE(bits(ours.outputs[k]) == bits(theirs.outputs[k]), what << ": output " << k);
  }
}
/// Random inputs of a graph, special numbers among them.
std::vector<support::Array> drawn(Graph const& graph, std::mt19937& random) {
  std::vector<support::Array> inputs;
  constexpr std::array special{0.0, -0.0, std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
  for (int input : graph.inputs) {
    auto const& meta = *graph.values[static_cast<std::size_t>(input)].meta;
    auto x = support::array(meta.dtype, ir::values(meta.sizes));
    for (std::int64_t i = 0; i < base::numel(x.at.sizes); ++i)
      if (base::is_real(meta.dtype))
        x.at.set(i, random() % 4 == 0 ? special[random() % special.size()] : std::uniform_real_distribution(-3.0, 3.0)(random));
      else
        x.at.set_whole(i, meta.dtype == DType::boolean ? static_cast<std::int64_t>(random() % 2) : std::uniform_int_distribution<std::int64_t>(-9, 9)(random));
    inputs.push_back(x);
  }
  return inputs;
}
std::vector<ir::Strided> elements(std::vector<support::Array> const& inputs) {
  std::vector<ir::Strided> list;
  for (auto const& x : inputs) list.push_back(x.at);
  return list;
}
/// "graph g(INPUTS) { CALLS }" with the result types inferred: a line is "op(%0, 1.5, dim=1)".
Graph built(std::vector<std::string> const& inputs, std::vector<std::string> const& calls) {
  Graph graph;
  for (auto const& type : inputs) {
    auto const one = ir::parse_graph("graph one(%0: " + type + ") { return %0 }");
    graph.input(*one.values[0].meta);
  }
  for (auto const& call : calls) {  // the reader takes any type for a result, so it is inferred behind it
    std::string text = "graph one(";
    for (std::size_t v = 0; v < graph.values.size(); ++v) text += std::format("{}%{}: {}", v ? ", " : "", v, ir::to_string(*graph.values[v].meta));
    auto const one = ir::parse_graph(text + std::format(") {{ %{} = {}: f32[] return %{} }}", graph.values.size(), call, graph.values.size()));
    graph.add(*one.nodes[0].op, one.nodes[0].inputs, one.nodes[0].attrs, {});
  }
  graph.outputs = {static_cast<int>(graph.values.size()) - 1};
  return graph;
}
std::string body(Graph const& graph) {  // "add(%0, 1) mul(%2, %1) -> %3"
  std::string text;
  for (auto const& node : graph.nodes) {
    text += std::string(node.op->name) + "(";
    for (std::size_t k = 0; k < node.inputs.size(); ++k)
      text += (k ? ", " : "") + (node.inputs[k].value >= 0 ? std::format("%{}", node.inputs[k].value) : graph.symbols.to_string(node.inputs[k].scalar));
    auto const attributes = ir::to_string(*node.op, node.attrs, &graph.symbols);
    text += (attributes.empty() || node.inputs.empty() ? "" : ", ") + attributes + ") ";
  }
  return text + "-> %" + std::to_string(graph.outputs[0]);
}

struct Example {
  std::string_view rule;
  std::vector<std::string> inputs, calls;
  std::string becomes;
  bool exact = true;
};
// "relu(%0)" and "exp(..)" around a call keep outputs from being inputs, which no rule makes them.
std::vector<Example> const examples{
    {"x + 0 -> x", {"i64[3]"}, {"add(%0, 0)", "neg(%1)"}, "neg(%0) -> %1"},
    {"x + 0 -> x", {"f32[3]"}, {"add(%0, -0.0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"x + 0 -> x", {"f32[3]"}, {"add(%0, 0.0)", "exp(%1)"}, "exp(%0) -> %1", false},
    {"0 + x -> x", {"i64[3]"}, {"add(0, %0)", "neg(%1)"}, "neg(%0) -> %1"},
    {"x + -y -> x - y", {"f32[3]", "f32[3]"}, {"neg(%1)", "add(%0, %2, alpha=2)"}, "sub(%0, %1, alpha=2) -> %2"},
    {"x - 0 -> x", {"f32[3]"}, {"sub(%0, 0.0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"x - -y -> x + y", {"f32[3]", "f32[3]"}, {"neg(%1)", "sub(%0, %2)"}, "add(%0, %1) -> %2"},
    {"x - x -> 0", {"i64[3]"}, {"sub(%0, %0)"}, "full(size=[3], fill_value=0, dtype=i64) -> %1"},
    {"x * 1 -> x", {"f32[3]"}, {"mul(%0, 1.0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"x * 1 -> x", {"f32[3]"}, {"full(size=[3], fill_value=1.0)", "mul(%0, %1)", "exp(%2)"}, "exp(%0) -> %1"},
    {"1 * x -> x", {"f32[3]"}, {"mul(1, %0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"x * 0 -> 0", {"i64[3]"}, {"mul(%0, 0)"}, "full(size=[3], fill_value=0, dtype=i64) -> %1"},
    {"x * 0 -> 0", {"f32[3]"}, {"mul(%0, 0)"}, "full(size=[3], fill_value=0.0) -> %1", false},
    {"x * -1 -> -x", {"f32[3]"}, {"mul(%0, -1.0)"}, "neg(%0) -> %1"},
    {"-x * -y -> x * y", {"f32[3]", "f32[3]"}, {"neg(%0)", "neg(%1)", "mul(%2, %3)"}, "mul(%0, %1) -> %2"},
    {"x / 1 -> x", {"f32[3]"}, {"div(%0, 1.0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"x / -1 -> -x", {"f32[3]"}, {"div(%0, -1)"}, "neg(%0) -> %1"},
    {"x ** 1 -> x", {"f32[3]"}, {"pow(%0, 1)", "exp(%1)"}, "exp(%0) -> %1"},
    {"x ** 0 -> 1", {"f32[3]"}, {"pow(%0, 0)"}, "full(size=[3], fill_value=1.0) -> %1"},
    {"x ** 2 -> square(x)", {"i64[3]"}, {"pow(%0, 2)"}, "square(%0) -> %1"},
    {"max(x, x) -> x", {"f32[3]"}, {"maximum(%0, %0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"min(x, x) -> x", {"f32[3]"}, {"minimum(%0, %0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"--x -> x", {"f32[3]"}, {"neg(%0)", "neg(%1)", "exp(%2)"}, "exp(%0) -> %1"},
    {"-(x - y) -> y - x", {"i64[3]", "i64[3]"}, {"sub(%0, %1)", "neg(%2)"}, "sub(%1, %0) -> %2"},
    {"abs(abs(x)) -> abs(x)", {"f32[3]"}, {"abs(%0)", "abs(%1)"}, "abs(%0) -> %1"},
    {"abs(-x) -> abs(x)", {"f32[3]"}, {"neg(%0)", "abs(%1)"}, "abs(%0) -> %1"},
    {"square(-x) -> square(x)", {"f32[3]"}, {"abs(%0)", "square(%1)"}, "square(%0) -> %1"},
    {"cos(-x) -> cos(x)", {"f32[3]"}, {"neg(%0)", "cos(%1)"}, "cos(%0) -> %1"},
    {"relu(relu(x)) -> relu(x)", {"f32[3]"}, {"relu(%0)", "relu(%1)"}, "relu(%0) -> %1"},
    {"sign(sign(x)) -> sign(x)", {"f32[3]"}, {"sign(%0)", "sign(%1)"}, "sign(%0) -> %1"},
    {"floor(whole x) -> x", {"f32[3]"}, {"round(%0)", "floor(%1)"}, "round(%0) -> %1"},
    {"ceil(whole x) -> x", {"f32[3]"}, {"floor(%0)", "ceil(%1)"}, "floor(%0) -> %1"},
    {"round(whole x) -> x", {"i64[3]"}, {"round(%0)", "neg(%1)"}, "neg(%0) -> %1"},
    {"trunc(whole x) -> x", {"f32[3]"}, {"trunc(%0)", "trunc(%1)"}, "trunc(%0) -> %1"},
    {"not not x -> x", {"bool[3]"}, {"logical_not(%0)", "logical_not(%1)", "logical_and(%2, %0)"}, "logical_and(%0, %0) -> %1"},
    {"x and true -> x", {"bool[3]"}, {"logical_and(%0, true)", "logical_not(%1)"}, "logical_not(%0) -> %1"},
    {"x or false -> x", {"bool[3]"}, {"logical_or(%0, false)", "logical_not(%1)"}, "logical_not(%0) -> %1"},
    {"where(true, x, y) -> x",
     {"f32[1, 3]", "f32[2, 1]"},
     {"full(size=[], fill_value=1, dtype=bool)", "where(%2, %0, %1)"},
     "expand(%0, size=[2, 3]) clone(%2) -> %3"},
    {"where(false, x, y) -> y", {"f32[3]", "f32[3]"}, {"full(size=[3], fill_value=0, dtype=bool)", "where(%2, %0, %1)", "exp(%3)"}, "exp(%1) -> %2"},
    {"where(c, x, x) -> x", {"bool[3]", "f32[3]"}, {"where(%0, %1, %1)", "exp(%2)"}, "exp(%1) -> %2"},
    {"masked_fill(x, false) -> x", {"f32[3]"}, {"full(size=[], fill_value=0, dtype=bool)", "masked_fill(%0, %1, value=2.0)", "exp(%2)"}, "exp(%0) -> %1"},
    {"clamp(x) -> x", {"f32[3]"}, {"clamp(%0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"to(x, own dtype) -> x", {"f32[3]"}, {"to(%0, dtype=f32)", "exp(%1)"}, "exp(%0) -> %1"},
    {"to(to(x)) -> to(x)", {"bf16[3]"}, {"to(%0, dtype=f32)", "to(%1, dtype=f64)"}, "to(%0, dtype=f64) -> %1"},
    {"to(to(x)) -> to(x)", {"i32[3]"}, {"to(%0, dtype=f64)", "to(%1, dtype=i32)", "neg(%2)"}, "neg(%0) -> %1"},
    {"clone(x) -> x", {"f32[3]"}, {"clone(%0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"permute(x, identity) -> x", {"f32[2, 3]"}, {"permute(%0, dims=[0, -1])", "exp(%1)"}, "exp(%0) -> %1"},
    {"permute(permute(x)) -> permute(x)",
     {"f32[2, 3, 4]"},
     {"permute(%0, dims=[1, 2, 0])", "permute(%1, dims=[1, 2, 0])", "exp(%2)"},
     "permute(%0, dims=[2, 0, 1]) exp(%1) -> %2"},
    {"transpose(x, d, d) -> x", {"f32[2, 3]"}, {"transpose(%0, dim0=1, dim1=-1)", "exp(%1)"}, "exp(%0) -> %1"},
    {"transpose(permute(x)) -> permute(x)", {"f32[2, 3]"}, {"transpose(%0, dim0=0, dim1=1)", "transpose(%1, dim0=0, dim1=1)", "exp(%2)"}, "exp(%0) -> %1"},
    {"reshape(x, own sizes) -> x", {"f32[2, 3]"}, {"reshape(%0, shape=[2, -1])", "exp(%1)"}, "exp(%0) -> %1"},
    {"reshape(reshape(x)) -> reshape(x)",
     {"f32[2, 3]"},
     {"reshape(%0, shape=[6])", "reshape(%1, shape=[3, 2])", "exp(%2)"},
     "reshape(%0, shape=[3, 2]) exp(%1) -> %2"},
    {"unsqueeze(squeeze(x)) -> x", {"f32[1, 3]"}, {"squeeze(%0, dim=[0])", "unsqueeze(%1, dim=0)", "exp(%2)"}, "exp(%0) -> %1"},
    {"squeeze(x, nothing) -> x", {"f32[2, 3]"}, {"squeeze(%0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"squeeze(unsqueeze(x)) -> x", {"f32[2, 3]"}, {"unsqueeze(%0, dim=1)", "squeeze(%1, dim=[1])", "exp(%2)"}, "exp(%0) -> %1"},
    {"expand(x, own sizes) -> x", {"f32[2, 3]"}, {"expand(%0, size=[2, 3])", "exp(%1)"}, "exp(%0) -> %1"},
    {"expand(expand(x)) -> expand(x)",
     {"f32[1, 3]"},
     {"expand(%0, size=[2, 3])", "expand(%1, size=[4, -1, -1])", "exp(%2)"},
     "expand(%0, size=[4, 2, 3]) exp(%1) -> %2"},
    {"slice(x, all) -> x", {"f32[2, 3]"}, {"slice(%0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"slice(slice(x)) -> slice(x)",
     {"f32[9]"},
     {"slice(%0, start=2, end=8)", "slice(%1, start=1, end=4)", "exp(%2)"},
     "slice(%0, start=3, end=6) exp(%1) -> %2"},
    {"slice_grad(g, all) -> g", {"f32[3]"}, {"slice_grad(%0, sizes=[3], dim=0, start=0, end=3, step=1)", "exp(%1)"}, "exp(%0) -> %1"},
    {"flip(x, no dims) -> x", {"f32[3]"}, {"flip(%0, dims=[])", "exp(%1)"}, "exp(%0) -> %1"},
    {"flip(flip(x)) -> x", {"f32[3]"}, {"flip(%0, dims=[0])", "flip(%1, dims=[0])", "exp(%2)"}, "exp(%0) -> %1"},
    {"cat(x) -> x", {"f32[2, 3]", "f32[0, 3]"}, {"cat(%0, %1)", "exp(%2)"}, "exp(%0) -> %2"},
    {"tril(tril(x)) -> tril(x)", {"f32[3, 3]"}, {"tril(%0)", "tril(%1)"}, "tril(%0) -> %1"},
    {"triu(triu(x)) -> triu(x)", {"f32[3, 3]"}, {"triu(%0, diagonal=1)", "triu(%1, diagonal=1)"}, "triu(%0, diagonal=1) -> %1"},
    {"sum(one element) -> x", {"f32[3, 1]"}, {"sum(%0, dim=[1])", "exp(%1)"}, "reshape(%0, shape=[3]) exp(%1) -> %2"},
    {"mean(one element) -> x", {"f32[]"}, {"mean(%0)", "exp(%1)"}, "exp(%0) -> %1"},
    {"prod(one element) -> x", {"f32[1]"}, {"prod(%0, dim=[0], keepdim=true)", "exp(%1)"}, "exp(%0) -> %1"},
    {"amax(one element) -> x", {"f32[3, 1]"}, {"amax(%0, dim=[1], keepdim=true)", "exp(%1)"}, "exp(%0) -> %1"},
    {"amin(one element) -> x", {"i64[3, 1]"}, {"amin(%0, dim=[1], keepdim=true)", "neg(%1)"}, "neg(%0) -> %1"},
};
// What must stay, and why not.
struct Stays {
  std::string_view why;
  std::vector<std::string> inputs, calls;
};
std::vector<Stays> const stays{
    {"the sum is a fraction", {"i64[3]"}, {"add(%0, 0.0)"}},
    {"-0 + 0 is 0", {"f32[3]"}, {"add(%0, 0.0)", "exp(%1)"}},
    {"inf * 0 is NaN", {"f32[3]"}, {"mul(%0, 0.0)"}},
    {"inf - inf is NaN", {"f32[3]"}, {"sub(%0, %0)"}},
    {"bf16 rounds", {"f32[3]"}, {"to(%0, dtype=bf16)", "to(%1, dtype=f32)"}},
    {"f32 rounds i64", {"i64[3]"}, {"to(%0, dtype=f32)", "to(%1, dtype=i64)"}},
    {"a quotient of integers is a fraction", {"i64[3]"}, {"div(%0, 1)"}},
    {"the sum broadcasts", {"f32[3]"}, {"full(size=[2, 3], fill_value=-0.0)", "add(%0, %1)"}},
    {"the clone has other strides", {"f32[3, 2] strides [1, 3]"}, {"clone(%0)", "exp(%1)"}},
    {"an output is not an input", {"f32[3]"}, {"mul(%0, 1.0)"}},
    {"an output is no view of an input", {"f32[3, 2]"}, {"mul(%0, 1.0)", "reshape(%1, shape=[6])"}},
    {"not not turns numbers into booleans", {"f32[3]"}, {"logical_not(%0)", "logical_not(%1)"}},
    {"exp(log x) is not x below 0", {"f32[3]"}, {"log(%0)", "exp(%1)"}},
};
}  // namespace

TEST_CASE("every rule of simplify has an example, which becomes what it says and keeps every bit") {
  std::mt19937 random(51);
  std::set<std::string_view> applied;
  for (auto const& example : examples) try {
      auto const graph = built(example.inputs, example.calls);
      bool seen = false;
      auto const less = ir::simplify(
          graph, {.exact = example.exact, .seen = [&](std::string_view rule, ir::Node const&) { applied.insert(rule), seen |= rule == example.rule; }});
      ir::verify(less);
      CHECK_MESSAGE(seen, std::string(example.rule));
      CHECK_MESSAGE(body(less) == example.becomes, std::string(example.rule));
      if (!example.exact) continue;
      for (int turn = 0; turn < 8; ++turn) {
        auto const inputs = drawn(graph, random);
        check_same(support::run(less, elements(inputs)), support::run(graph, elements(inputs)), std::string(example.rule));
      }
    } catch (std::exception const& error) {
      FAIL_CHECK(std::string(example.rule) << ": " << std::string(error.what()));
    }
  for (auto const rule : ir::simplify_rules()) CHECK_MESSAGE(applied.contains(rule), std::string(rule));
}

TEST_CASE("what simplify leaves alone") {
  for (auto const& row : stays) {
    auto const graph = built(row.inputs, row.calls);
    CHECK_MESSAGE(ir::equal(ir::simplify(graph), graph), std::string(row.why));
  }
}

TEST_CASE("two outputs do not become one") {
  Graph graph;
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, {3}));
  int const y = graph.add(ir::ops::exp, {{x, {}}}, {}, {});
  graph.outputs = {y, graph.add(ir::ops::mul, {{y, {}}, {-1, ir::Scalar(1.0)}}, {}, {})};
  CHECK(ir::equal(ir::simplify(graph), graph));
}

TEST_CASE("constants fold to full or constant, bit for bit") {
  struct Row {
    std::vector<std::string> calls;
    std::string becomes;
  };
  std::vector<Row> const rows{
      {{"full(size=[2, 3], fill_value=2.0)", "exp(%0)", "full(size=[3], fill_value=0.5, dtype=f64)", "mul(%2, 4)"},
       "full(size=[3], fill_value=2.0, dtype=f64) -> %0"},
      {{"full(size=[100000, 100000], fill_value=2.0)", "add(%0, 3.0)"}, "full(size=[100000, 100000], fill_value=5.0) -> %0"},
      {{"arange(start=0, end=5, step=1)", "mul(%0, %0)"}, "constant(elements=\"0 1 4 9 16\", size=[5], dtype=i64) -> %0"},
      {{"constant(elements=\"nan -0 inf -inf 0.1\", size=[5])", "neg(%0)"}, "constant(elements=\"-nan 0 -inf inf -0.1\", size=[5]) -> %0"},
      {{"full(size=[], fill_value=-0.0)", "mul(%0, 1)"}, "full(size=[], fill_value=-0.0) -> %0"},
      {{"full(size=[2], fill_value=-nan)", "abs(%0)"}, "full(size=[2], fill_value=nan) -> %0"},
      {{"arange(start=0, end=6, step=1)", "reshape(%0, shape=[2, 3])", "permute(%1, dims=[1, 0])", "sum(%2, dim=[0])"},
       "constant(elements=\"3 12\", size=[2], dtype=i64) -> %0"},
      {{"full(size=[3], fill_value=9007199254740993, dtype=i64)", "add(%0, 0)"}, "full(size=[3], fill_value=9007199254740993, dtype=i64) -> %0"},
      {{"full(size=[2], fill_value=0.1, dtype=f16)", "to(%0, dtype=f64)"}, "full(size=[2], fill_value=0.0999755859375, dtype=f64) -> %0"},
      {{"arange(start=0, end=4)", "gt(%0, 1)"}, "constant(elements=\"0 0 1 1\", size=[4], dtype=bool) -> %0"},
      {{"arange(start=0, end=5000)", "neg(%0)"}, "arange(start=0, end=5000) neg(%0) -> %1"},
      {{"rand(size=[2])", "neg(%0)"}, "rand(size=[2]) neg(%0) -> %1"},
  };
  for (auto const& row : rows) try {
      auto const graph = built({}, row.calls);
      auto const less = ir::fold_constants(graph);
      ir::verify(less);
      CHECK(body(less) == row.becomes);
      auto const again = ir::parse_graph(ir::to_string(less));
      if (base::numel(ir::values(graph.values.back().meta->sizes)) > 100'000) continue;
      check_same(support::run(less, {}), support::run(graph, {}), row.becomes);
      check_same(support::run(again, {}), support::run(graph, {}), row.becomes);
    } catch (std::exception const& error) {
      FAIL_CHECK(row.becomes << ": " << std::string(error.what()));
    }
}

TEST_CASE("a constant call that is not legal stays, and so do symbolic sizes") {
  auto const graph = built({}, {"full(size=[2], fill_value=7, dtype=i64)", "arange(start=0, end=3)", "index_select(%1, %0, dim=0)"});
  CHECK(ir::equal(ir::fold_constants(graph), graph));
  Graph symbolic;
  auto const rows = symbolic.symbols.symbol(4);
  int const ones = symbolic.add(ir::ops::full, {}, ir::Attrs{}.with(ir::Dims{rows, 3}).with(DType::f32).with(base::Device{}).with_num(1.0), {});
  symbolic.outputs = {symbolic.add(ir::ops::exp, {{ones, {}}}, {}, {})};
  auto const folded = ir::fold_constants(symbolic);
  ir::verify(folded);
  CHECK(body(folded) == "full(size=[s0, 3], fill_value=2.7182817459106445) -> %0");
  CHECK(ir::evaluate(folded, {}, {{7}, {}}).outputs[0].sizes == base::Shape{7, 3});
}

// Calls to which rules apply, and constants to fold.
std::vector<std::string_view> const algebra{"neg(f64[2, 3])",
                                            "abs(f64[2, 3])",
                                            "relu(f64[2, 3])",
                                            "add(f64[2, 3], -0.0)",
                                            "add(f64[2, 3], 0.0)",
                                            "sub(f64[2, 3], f64[2, 3])",
                                            "add(f64[2, 3], f64[2, 3])",
                                            "mul(f64[2, 3], 1.0)",
                                            "mul(f64[2, 3], f64[2, 3])",
                                            "mul(f64[2, 3], -1.0)",
                                            "permute(f64[2, 3], dims=[1, 0])",
                                            "permute(f64[3, 2], dims=[1, 0])",
                                            "reshape(f64[2, 3], shape=[3, 2])",
                                            "reshape(f64[3, 2], shape=[2, 3])",
                                            "floor(f64[2, 3])",
                                            "round(f64[2, 3])",
                                            "to(f64[2, 3], dtype=f32)",
                                            "to(f32[2, 3], dtype=f64)",
                                            "clone(f64[2, 3])",
                                            "slice(f64[3, 3], end=2)",
                                            "cat(f64[2, 3], f64[1, 3])",
                                            "maximum(f64[2, 3], f64[2, 3])",
                                            "full(size=[2, 3], fill_value=0.0, dtype=f64)",
                                            "full(size=[2, 3], fill_value=1.0, dtype=f64)",
                                            "constant(elements=\"1 -0 inf nan 2.5 -7\", size=[2, 3], dtype=f64)",
                                            "where(bool[2, 3], f64[2, 3], f64[2, 3])",
                                            "sum(f64[2, 1], dim=[1])"};

TEST_CASE("all passes in any order keep every bit of random graphs") {
  std::mt19937 random(52);
  int rules = 0, folded = 0;
  struct Pass {
    std::string_view name;
    std::function<Graph(Graph const&)> run;
  };
  std::vector<Pass> const passes{
      {"dead code", ir::eliminate_dead_code},
      {"merge", ir::merge_common},
      {"decompose", [](Graph const& g) { return ir::decompose(g); }},
      {"fold",
       [&](Graph const& g) {
         auto less = ir::fold_constants(g);
         folded += less.nodes.size() < g.nodes.size();
         return less;
       }},
      {"simplify", [&](Graph const& g) { return ir::simplify(g, {.seen = [&](auto, auto const&) { ++rules; }}); }},
      {"functionalize", [](Graph const& g) { return ir::functionalize(g).graph; }},
  };
  int const turns = support::tier(40, 300, 4000);
  for (int turn = 0; turn < turns; ++turn) {
    auto const made = support::random_graph(random, {.nodes = 1 + static_cast<int>(random() % 25),
                                                     .symbols = turn % 2 == 0,
                                                     .ornaments = turn % 3 == 0,
                                                     .calls = turn % 4 < 2 ? algebra : std::vector<std::string_view>{}});
    auto const text = ir::to_string(made.graph);
    std::string order;
    auto const why = support::caught([&] {
      auto const expected = support::run(made.graph, made.elements());
      Graph graph = made.graph;
      for (int k = 0; k < 5; ++k) {
        auto const& pass = passes[random() % passes.size()];
        order += std::string(pass.name) + ", ";
        graph = pass.run(graph);
        ir::verify(graph);
      }
      check_same(support::run(graph, made.elements()), expected, order + "of\n" + text);
      auto const once = ir::simplify(made.graph), folds = ir::fold_constants(made.graph);
      CHECK_MESSAGE(ir::equal(ir::simplify(once), once), text);
      CHECK_MESSAGE(ir::equal(ir::fold_constants(folds), folds), text);
    });
    CHECK_MESSAGE(why == "nothing", order << why << "\n" << text);
  }
  CHECK(rules > turns / 2);
  CHECK(folded > 0);
}

TEST_CASE("a chain, a wide graph and diamonds of 100000 nodes go through every pass") {
  int const length = support::tier(10'000, 100'000, 100'000);
  auto const attrs = ir::default_attrs(ir::ops::add);
  auto const grown = [&](auto step) {
    Graph graph;
    graph.input(ir::contiguous_meta(DType::f64, {}, {2, 3}));
    while (std::cmp_less(graph.nodes.size(), length)) step(graph, static_cast<int>(graph.values.size()) - 1);
    if (graph.outputs.empty()) graph.outputs = {static_cast<int>(graph.values.size()) - 1};
    return graph;
  };
  struct Shape {
    std::string_view name;
    Graph graph;
  };
  std::vector<Shape> const shapes{{"chain", grown([&](Graph& g, int x) {
                                     g.add(ir::ops::tanh, {{x, {}}}, {}, {});
                                     g.add(ir::ops::neg, {{x + 1, {}}}, {}, {});
                                     g.add(ir::ops::neg, {{x + 2, {}}}, {}, {});
                                     g.add(ir::ops::mul, {{x + 3, {}}, {-1, ir::Scalar(1.0)}}, {}, {});
                                   })},
                                  {"wide", grown([&](Graph& g, int last) {
                                     g.add(ir::ops::relu, {{0, {}}}, {}, {});
                                     g.add(ir::ops::relu, {{last + 1, {}}}, {}, {});
                                     g.outputs.push_back(g.add(ir::ops::mul, {{last + 2, {}}, {-1, ir::Scalar(static_cast<double>(last))}}, {}, {}));
                                   })},
                                  {"diamonds", grown([&](Graph& g, int x) {
                                     g.add(ir::ops::sin, {{x, {}}}, {}, {});
                                     g.add(ir::ops::cos, {{x, {}}}, {}, {});
                                     g.add(ir::ops::add, {{x + 1, {}}, {x + 2, {}}}, attrs, {});
                                   })}};
  ir::Rewrite const twice{ir::parse_graph("graph p(%0 x: f32[]) { %1 = relu(%0): f32[] %2 = relu(%1): f32[] return %2 }"),
                          ir::parse_graph("graph r(%0 x: f32[]) { %1 = relu(%0): f32[] return %1 }")};
  ir::Rewrite const pair{ir::parse_graph("graph p(%0 x: f32[]) { %1 = sin(%0): f32[] %2 = cos(%0): f32[] return %1, %2 }"),
                         ir::parse_graph("graph r(%0 x: f32[]) { %1 = cos(%0): f32[] %2 = sin(%0): f32[] return %2, %1 }")};
  std::vector<std::pair<std::string_view, std::function<Graph(Graph const&)>>> const passes{
      {"dead code", ir::eliminate_dead_code},
      {"merge", ir::merge_common},
      {"decompose", [](Graph const& g) { return ir::decompose(g); }},
      {"fold", [](Graph const& g) { return ir::fold_constants(g); }},
      {"simplify", [](Graph const& g) { return ir::simplify(g); }},
      {"rewrite", [&](Graph const& g) { return ir::rewrite(g, twice).graph; }},
      {"rewrite pairs", [&](Graph const& g) { return ir::rewrite(g, pair).graph; }},
      {"functionalize",
       [](Graph const& g) {
         Graph written = g;
         written.add(*ir::find_op("copy_"), {{0, {}}, {written.outputs[0], {}}}, {}, {});
         return ir::functionalize(written).graph;
       }},
      {"joint graph", [](Graph const& g) { return ir::joint_graph(g, std::array{0}).graph; }}};
  for (auto const& [name, graph] : shapes) {
    std::string times;
    double total = 0;
    for (auto const& [pass, run] : passes) {
      auto const start = std::clock();
      auto const done = run(graph);
      double const took = static_cast<double>(std::clock() - start) / 1e6;  // of this process: others may be busy
      times += std::format(" {} {:.2f}", pass, took);
      total += took;
      CHECK(done.outputs.size() >= graph.outputs.size());
    }
    std::cout << std::format("{} of {} nodes, CPU seconds:{}, together {:.2f}\n", name, graph.nodes.size(), times, total);
  }
}
