#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_ops.hpp"
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using support::Array;
using support::caught;
using support::says;

namespace {
std::vector<double> evaluated(ir::Graph const& graph, std::vector<Array> const& inputs, std::size_t output = 0) {
  std::vector<ir::Strided> views;
  for (auto const& input : inputs) views.push_back(input.at);
  return support::reals(support::run(graph, views).outputs.at(output));
}
Array numbers(DType dtype, base::Shape sizes, std::vector<double> values) { return support::array(dtype, std::move(sizes), values); }
// A function of one text around operations.
std::string main_of(std::string_view parameters, std::string_view results, std::string_view operations) {
  return std::format("module {{\n  func.func public @main({}) -> ({}) {{\n{}\n  }}\n}}\n", parameters, results, operations);
}
}  // namespace

TEST_CASE("golden StableHLO programs give XLA's values") { golden::check_programs("golden stablehlo", "stablehlo", "text", support::run); }
TEST_CASE("golden StableHLO programs of every kind of operation give XLA's values") {
  golden::check_programs("golden stablehlo_more", "stablehlo_more", "text", support::run);
}
TEST_CASE("golden HLO programs give XLA's values") { golden::check_programs("golden hlo", "stablehlo_more", "hlo_text", support::run); }

// The program of xla.json: gradients of sum(softmax(tanh(x w + b))), which are 0, since every softmax sums to 1.
TEST_CASE("golden HLO and StableHLO texts of one gradient give its values") {
  if (!golden::load("xla.json", "hlo_text")) return;
  golden::Tally tally{.name = "golden xla texts"};
  auto const wave = [](std::int64_t n, double step) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(std::sin(step * static_cast<double>(i + 1)));
    return values;
  };
  auto const x = wave(32, 0.7), w = wave(128, 1.3), b = wave(16, 2.1);
  std::vector<Array> const inputs{numbers(DType::f32, {4, 8}, x), numbers(DType::f32, {8, 16}, w), numbers(DType::f32, {16}, b)};
  std::vector<double> softmax;  // in f64, by hand
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<double> row;
    for (std::size_t j = 0; j < 16; ++j) {
      double total = b[j];
      for (std::size_t k = 0; k < 8; ++k) total += x[i * 8 + k] * w[k * 16 + j];
      row.push_back(std::exp(std::tanh(total)));
    }
    double const sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double value : row) softmax.push_back(value / sum);
  }
  struct Text {
    std::string key, returns, instead;
    ir::Graph (*parse)(std::string_view);
  };
  for (auto const& [key, returns, instead, parse] :
       {Text{"stablehlo_text", "return %41", "%99 = stablehlo.divide %16, %29 : tensor<4x16xf32>\n return %99", ir::parse_stablehlo},
        Text{"hlo_text", "tuple(dot_general.5", "tuple(soft.1", ir::parse_hlo}}) {
    auto const loaded = golden::load("xla.json", key);
    if (!loaded) continue;
    auto text = loaded->get<std::string>();
    auto const graph = parse(text);
    CHECK(graph.outputs.size() == 3);
    ir::verify(graph);
    for (std::size_t k = 0; k < 3; ++k)
      for (double value : evaluated(graph, inputs, k)) CHECK(std::fabs(value) < 1e-6);
    // The softmax inside, which is not 0, as the first result.
    auto const replace = [&](std::string_view from, std::string_view to) {
      auto const at = text.find(from);
      REQUIRE(at != std::string::npos);
      text.replace(at, from.size(), to);
    };
    replace(returns, instead);
    if (key == "stablehlo_text") {
      replace("-> (tensor<4x8xf32>", "-> (tensor<4x16xf32>");
      replace("%38 : tensor<4x8xf32>", "%38 : tensor<4x16xf32>");
    } else {
      text.insert(text.rfind("  ROOT "), "  soft.1 = f32[4,16]{1,0} divide(exp.1, div.8)\n");
    }
    CHECK(support::distance(evaluated(parse(text), inputs), softmax) < 1e-6);
    ++tally.checked;
  }
}

TEST_CASE("StableHLO is read in its long form, with places and names of every kind") {
  auto const text = R"(#loc = loc(unknown)
module @"a b" attributes {mhlo.num_partitions = 1 : i32, x = #stablehlo.y<z = [1, 2], w = "}>">} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%arg0: tensor<2x3xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"} loc("x"), %arg1: tensor<f32> loc(unknown)) -> (tensor<3xf32> {jax.result_info = "result"}, tensor<2x3xf32>) attributes {a} {
    // a line of words
    %0 = "stablehlo.constant"() <{value = dense<[[1.0, 0x40000000, -3.0e0], [4.5, 5.0, 6.0]]> : tensor<2x3xf32>}> : () -> tensor<2x3xf32> loc(#loc1)
    %1 = "stablehlo.add"(%arg0, %0) {mhlo.frontend_attributes = {x = "y"}} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %2:2 = "func.call"(%1, %arg1) <{callee = @both}> : (tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<f32>)
    %3 = "stablehlo.reduce"(%2#0, %2#1) <{dimensions = array<i64: 0>}> ({
    ^bb0(%a: tensor<f32> loc("a"), %b: tensor<f32>):
      %4 = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
      "stablehlo.return"(%4) : (tensor<f32>) -> ()
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
    %5 = stablehlo.custom_call @Sharding(%2#0) {backend_config = "", mhlo.sharding = "{replicated}"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    "func.return"(%3, %5) : (tensor<3xf32>, tensor<2x3xf32>) -> ()
  } loc(#loc)
  func.func private @both(%arg0: tensor<2x3xf32>, %arg1: tensor<f32>) -> (tensor<2x3xf32>, tensor<f32>) {
    %0 = "stablehlo.compare"(%arg0, %arg0) <{compare_type = #stablehlo<comparison_type FLOAT>, comparison_direction = #stablehlo<comparison_direction GE>}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %1 = stablehlo.negate %arg0 : tensor<2x3xf32>
    %2 = stablehlo.select %0, %1, %arg0 : tensor<2x3xi1>, tensor<2x3xf32>
    return %2, %arg1 : tensor<2x3xf32>, tensor<f32>
  }
}
#loc1 = loc("file.py":3:4)
)";
  auto const graph = ir::parse_stablehlo(text);
  CHECK(graph.name == "a b");
  CHECK(graph.values[static_cast<std::size_t>(graph.inputs[0])].name == "arg0");
  std::vector<Array> const inputs{numbers(DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}), numbers(DType::f32, {}, {100})};
  CHECK(evaluated(graph, inputs) == std::vector<double>{100 - 2 - 8.5, 100 - 4 - 10, 100 - 0 - 12});
  CHECK(evaluated(graph, inputs, 1) == std::vector<double>{-2, -4, 0, -8.5, -10, -12});
}

TEST_CASE("constants are read from lists, one element, patterns of bits and bytes") {
  struct Case {
    std::string type, elements;
    std::vector<double> want;
  };
  double const inf = std::numeric_limits<double>::infinity();
  for (auto const& [type, elements, want] :
       std::initializer_list<Case>{{"tensor<3xf32>", "2.5", {2.5, 2.5, 2.5}},
                                   {"tensor<f32>", "0xFF800000", {-inf}},
                                   {"tensor<2xbf16>", "[0x3F80, 0xC020]", {1, -2.5}},
                                   {"tensor<2xf16>", "\"0x003C00C1\"", {1, -2.5}},
                                   {"tensor<2xf64>", "\"0x000000000000F03F00000000000000C0\"", {1, -2}},
                                   {"tensor<2x2xi32>", "\"0x01000000FEFFFFFF0300000000000080\"", {1, -2, 3, -2147483648.0}},
                                   {"tensor<2xi32>", "\"0x07000000\"", {7, 7}},
                                   {"tensor<3xi8>", "[-128, 0, 127]", {-128, 0, 127}},
                                   {"tensor<2xui8>", "\"0xFF01\"", {255, 1}},
                                   {"tensor<10xi1>", "\"0x0503\"", {1, 0, 1, 0, 0, 0, 0, 0, 1, 1}},
                                   {"tensor<3xi1>", "[true, false, true]", {1, 0, 1}},
                                   {"tensor<2xf8E4M3FN>", "[1.0, 448.0]", {1, 448}},
                                   {"tensor<1x2x1xi64>", "[[[9223372036854775807], [-1]]]", {9223372036854775807.0, -1}},
                                   {"tensor<0x3xf32>", "", {}}}) {
    CAPTURE(type);
    CHECK(evaluated(ir::parse_stablehlo(main_of("", type, std::format("%0 = stablehlo.constant dense<{}> : {}\nreturn %0 : {}", elements, type, type))), {}) ==
          want);
  }
}

TEST_CASE("operations mean what StableHLO says where ours differ") {
  struct Case {
    std::string parameters, result, operations;
    std::vector<Array> inputs;
    std::vector<double> want;
  };
  double const nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  auto const f = [](std::vector<double> values) { return numbers(DType::f32, {static_cast<std::int64_t>(values.size())}, values); };
  auto const i = [](std::vector<double> values) { return numbers(DType::i32, {static_cast<std::int64_t>(values.size())}, values); };
  auto const two = [](std::string_view op, std::string_view type) { return std::format("%0 = stablehlo.{} %a, %b : {}\nreturn %0 : {}", op, type, type); };
  for (auto const& [parameters, result, operations, inputs, want] : std::initializer_list<Case>{
           {"%a: tensor<4xi32>, %b: tensor<4xi32>",
            "tensor<4xi32>",
            two("divide", "tensor<4xi32>"),
            {i({7, -7, 5, -2147483648.0}), i({-2, 2, 0, -1})},
            {-3, -3, -1, -2147483648.0}},
           {"%a: tensor<4xi32>, %b: tensor<4xi32>",
            "tensor<4xi32>",
            two("remainder", "tensor<4xi32>"),
            {i({7, -7, 5, -2147483648.0}), i({-2, 2, 0, -1})},
            {1, -1, 5, 0}},
           {"%a: tensor<3xf32>, %b: tensor<3xf32>", "tensor<3xf32>", two("remainder", "tensor<3xf32>"), {f({5.5, -5.5, 5}), f({2, 2, inf})}, {1.5, -1.5, 5}},
           {"%a: tensor<4xi32>, %b: tensor<4xi32>",
            "tensor<4xi32>",
            two("shift_left", "tensor<4xi32>"),
            {i({1, 3, 1, 1}), i({31, 31, 32, -1})},
            {-2147483648.0, -2147483648.0, 0, 0}},
           {"%a: tensor<3xi32>, %b: tensor<3xi32>",
            "tensor<3xi32>",
            two("shift_right_arithmetic", "tensor<3xi32>"),
            {i({-8, -8, 8}), i({1, 40, 40})},
            {-4, -1, 0}},
           {"%a: tensor<3xi32>, %b: tensor<3xi32>",
            "tensor<3xi32>",
            two("shift_right_logical", "tensor<3xi32>"),
            {i({-1, -1, -1}), i({28, 0, 32})},
            {15, -1, 0}},
           {"%a: tensor<3xf32>, %b: tensor<3xf32>", "tensor<3xf32>", two("maximum", "tensor<3xf32>"), {f({1, nan, -inf}), f({2, 1, nan})}, {2, nan, nan}},
           {"%a: tensor<4xf32>",
            "tensor<4xf32>",
            "%0 = stablehlo.round_nearest_afz %a : tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            {f({2.5, -2.5, 0.49999997, -0.5})},
            {3, -3, 0, -1}},
           {"%a: tensor<4xf32>, %b: tensor<4xf32>",
            "tensor<4xi1>",
            "%0 = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>\nreturn %0 : tensor<4xi1>",
            {f({-0.0, 0, 1, nan}), f({0, -0.0, nan, 1})},
            {1, 0, 1, 0}},
           {"%a: tensor<3xf32>",
            "tensor<3xi32>",
            "%0 = stablehlo.convert %a : (tensor<3xf32>) -> tensor<3xi32>\nreturn %0 : tensor<3xi32>",
            {f({1.9, -1.9, 0.5})},
            {1, -1, 0}},
           {"%a: tensor<4xf32>",
            "tensor<3xf32>",
            "%c = stablehlo.constant dense<9> : tensor<i32>\n%0 = stablehlo.dynamic_slice %a, %c, sizes = [3] : (tensor<4xf32>, tensor<i32>) -> "
            "tensor<3xf32>\nreturn %0 : tensor<3xf32>",
            {f({1, 2, 3, 4})},
            {2, 3, 4}},
           {"%a: tensor<3xf32>, %b: tensor<f32>",
            "tensor<5xf32>",  // a padding value that is an operand
            "%0 = stablehlo.pad %a, %b, low = [1], high = [-1], interior = [1] : (tensor<3xf32>, tensor<f32>) -> tensor<5xf32>\nreturn %0 : tensor<5xf32>",
            {f({1, 2, 3}), numbers(DType::f32, {}, {9})},
            {9, 1, 9, 2, 9}},
           {"%a: tensor<0x2xf32>, %b: tensor<f32>",
            "tensor<2xf32>",
            "%0 = stablehlo.reduce(%a init: %b) applies stablehlo.maximum across dimensions = [0] : (tensor<0x2xf32>, tensor<f32>) -> tensor<2xf32>\nreturn %0 "
            ": tensor<2xf32>",
            {numbers(DType::f32, {0, 2}, {}), numbers(DType::f32, {}, {3})},
            {3, 3}},
           {"%a: tensor<3xf32>, %b: tensor<f32>",
            "tensor<f32>",  // an init that is not neutral, and a region that only a tree does
            "%0 = stablehlo.reduce(%a init: %b) across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>\n reducer(%x: tensor<f32>, %y: "
            "tensor<f32>) {\n"
            "%1 = stablehlo.constant dense<2.0> : tensor<f32>\n%2 = stablehlo.add %x, %y : tensor<f32>\n%3 = stablehlo.maximum %2, %1 : "
            "tensor<f32>\nstablehlo.return %3 : tensor<f32>\n}\n"
            "return %0 : tensor<f32>",
            {f({-5, 1, 4}), numbers(DType::f32, {}, {0})},
            {6}},
           {"%a: tensor<4xf32>",
            "tensor<4xf32>",  // a comparator of distances from 2, which is no order of keys; 1 and 3 tie
            "%0 = \"stablehlo.sort\"(%a) <{dimension = 0 : i64, is_stable = true}> ({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n%c = stablehlo.constant "
            "dense<2.0> : tensor<f32>\n"
            "%1 = stablehlo.subtract %x, %c : tensor<f32>\n%2 = stablehlo.subtract %y, %c : tensor<f32>\n%3 = stablehlo.abs %1 : tensor<f32>\n%4 = "
            "stablehlo.abs %2 : tensor<f32>\n"
            "%5 = stablehlo.compare LT, %3, %4 : (tensor<f32>, tensor<f32>) -> tensor<i1>\nstablehlo.return %5 : tensor<i1>\n}) : (tensor<4xf32>) -> "
            "tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            {f({9, 3, 1, 2})},
            {2, 3, 1, 9}},
           {"%a: tensor<4xf32>",
            "tensor<4xf32>",  // descending
            "%0 = \"stablehlo.sort\"(%a) <{dimension = 0 : i64}> ({\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
            "%5 = stablehlo.compare LT, %y, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>\nstablehlo.return %5 : tensor<i1>\n}) : (tensor<4xf32>) -> "
            "tensor<4xf32>\nreturn %0 : tensor<4xf32>",
            {f({1, 9, 3, 2})},
            {9, 3, 2, 1}}}) {
    CAPTURE(operations);
    auto const graph = ir::parse_stablehlo(main_of(parameters, result, operations));
    ir::verify(graph);
    CHECK(support::distance(evaluated(graph, inputs), want) == 0);
  }
}

TEST_CASE("a comparator that puts NaN behind all numbers is one sort, of any length") {
  auto const text = [](int n, std::string_view a, std::string_view b) {
    return main_of(std::format("%a: tensor<{}xf32>", n), std::format("tensor<{}xf32>", n),
                   std::format("%0 = \"stablehlo.sort\"(%a) <{{dimension = 0 : i64, is_stable = true}}> ({{\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"
                               "%1 = stablehlo.compare LT, %{1}, %{2}, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
                               "%2 = stablehlo.compare NE, %{2}, %{2}, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
                               "%3 = stablehlo.compare EQ, %{1}, %{1}, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
                               "%4 = stablehlo.and %2, %3 : tensor<i1>\n%5 = stablehlo.or %1, %4 : tensor<i1>\nstablehlo.return %5 : tensor<i1>\n"
                               "}}) : (tensor<{0}xf32>) -> tensor<{0}xf32>\nreturn %0 : tensor<{0}xf32>",
                               n, a, b));
  };
  double const nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<Array> const inputs{numbers(DType::f32, {5}, {3, nan, -1, nan, 2})};
  CHECK(support::distance(evaluated(ir::parse_stablehlo(text(5, "x", "y")), inputs), std::vector<double>{-1, 2, 3, nan, nan}) == 0);
  CHECK(support::distance(evaluated(ir::parse_stablehlo(text(5, "y", "x")), inputs), std::vector<double>{nan, nan, 3, 2, -1}) == 0);
  CHECK(ir::parse_stablehlo(text(100000, "x", "y")).nodes.size() == 1);
}

TEST_CASE("HLO is read with types on operands, tuples, fusions and branches") {
  auto const text = R"(HloModule a-b, is_scheduled=true, entry_computation_layout={(f32[3]{0}, pred[])->f32[3]{0}}
FileNames
1 "x.py"

StackFrames
1 {file_location_id=1}

%fused (p.0: f32[3], p.1: (f32[3], f32[])) -> f32[3] {
  %p.1 = (f32[3]{0:T(128)}, /*index=1*/f32[]) parameter(1)
  %p.0 = f32[3]{0} parameter(0)
  %g.0 = f32[3]{0} get-tuple-element((f32[3]{0}, f32[]) %p.1), index=0
  %g.1 = f32[] get-tuple-element(%p.1), index=1
  %wide = f32[3]{0} broadcast(f32[] %g.1), dimensions={}
  %m = f32[3]{0} multiply(f32[3]{0} %g.0, f32[3]{0} %wide), metadata={op_name="a, b" source_line=3}
  ROOT %r = f32[3]{0} add(%p.0, %m), sharding={devices=[2,1]<=[2]}
}

double { x = f32[] parameter(0) two = f32[] constant(2) ROOT y = f32[] multiply(x, two) }
yes { x = f32[3] parameter(0) ROOT y = f32[3] map(x), dimensions={0}, to_apply=double }
no { ROOT x = f32[3] parameter(0) }

ENTRY %main.9 (a: f32[3], b: pred[]) -> f32[3] {
  %a = f32[3]{0} parameter(0)
  %b = pred[] parameter(1)
  %c = f32[] constant(0.5)
  %t = (f32[3]{0}, f32[]) tuple(%a, %c)
  %f = f32[3]{0} fusion(%a, %t), kind=kLoop, calls=%fused
  ROOT %out = f32[3]{0} conditional(%b, %f, %a), true_computation=yes, false_computation=no
}
)";
  auto const graph = ir::parse_hlo(text);
  auto const a = numbers(DType::f32, {3}, {2, 4, 6});
  CHECK(evaluated(graph, {a, numbers(DType::boolean, {}, {1})}) == std::vector<double>{6, 12, 18});
  CHECK(evaluated(graph, {a, numbers(DType::boolean, {}, {0})}) == std::vector<double>{2, 4, 6});
}

TEST_CASE("what StableHLO says and we have not is refused at its line") {
  struct Case {
    std::string parameters, result, operations, says;
  };
  std::string const t = "tensor<2xf32>";
  for (auto const& [parameters, result, operations, message] : std::initializer_list<Case>{
           {"%a: tensor<?xf32>", t, "return %a : tensor<?xf32>", "line 2, column 30: a dynamic size is not supported"},
           {"%a: tensor<2xui16>", t, "return %a : tensor<2xui16>", "line 2, column 30: elements of type ui16 are not supported"},
           {"%a: tensor<2xcomplex<f32>>", t, "", "complex elements are not supported"},
           {"%a: !stablehlo.token", t, "", "type !stablehlo.token is not supported"},
           {"%a: tensor<2x!quant.uniform<i8:f32, 1.0>>", t, "", "quantised elements are not supported"},
           {"%a: tensor<99999999x99999999xf32>", t, "", "more than 2^40 elements"},
           {"%a: tensor<99999999999999999999xf32>", t, "", "does not fit 64 bits"},
           {"", t, "%0 = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<2xf32>", "line 3, column 30: lists of sizes [3] for f32[2]"},
           {"", t, "%0 = stablehlo.constant dense<[[1.0], [2.0, 3.0]]> : tensor<2xf32>", "a list of 2 elements beside one of 1"},
           {"", t, "%0 = stablehlo.constant dense<\"0x0000\"> : tensor<2xf32>", "2 bytes of elements given, 2 of 4 bytes needed"},
           {"", t, "%0 = stablehlo.constant dense<1.5.2> : tensor<f32>", "'1.5.2' is no number"},
           {"", t, "%0 = stablehlo.constant dense<300> : tensor<i8>", "300 is no i8"},
           {"", t, "%0 = stablehlo.constant dense_resource<__elided__> : tensor<2xf32>", "expected dense, not 'dense_resource'"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.frobnicate %a : tensor<2xf32>\nreturn %0 : tensor<2xf32>",
            "line 3, column 1: frobnicate: this operation is not supported"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.add %a, %b : tensor<2xf32>", "line 3, column 24: %b is not made yet"},
           {"%a: tensor<2xf32>", "tensor<3xf32>", "%0 = stablehlo.add %a, %a : tensor<3xf32>\nreturn %0 : tensor<3xf32>", "result 0 is f32[2], not f32[3]"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.negate %a : (tensor<3xf32>) -> tensor<3xf32>", "operand 0 is f32[2], not f32[3]"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.reshape %a : (tensor<2xf32>) -> tensor<3xf32>\nreturn %a : tensor<2xf32>",
            "reshape: f32[2] has other elements than f32[3]"},
           {"%a: tensor<2xf32>", "tensor<3xf32>", "return %a : tensor<2xf32>", "returns other types than it states"},
           {"%a: tensor<2xf32>", t, "%0 = call @main(%a) : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>", "call: function main calls itself"},
           {"%a: tensor<2xf32>", t, "%0 = call @gone(%a) : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>", "there is no function gone"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.custom_call @lapack(%a) : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>",
            "line 3, column 1: custom_call: the target lapack is not supported"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.transpose %a, dims = [1] : (tensor<2xf32>) -> tensor<2xf32>\nreturn %0 : tensor<2xf32>",
            "permutation names dim 1 of rank 1"},
           {"%a: tensor<2xf32>", t, "%0 = stablehlo.bitcast_convert %a : (tensor<2xf32>) -> tensor<2xi16>\nreturn %a : tensor<2xf32>",
            "the bits of f32[2] as i16[2] are not supported"},
           {"%a: tensor<i32>", "tensor<i32>",
            "%0 = stablehlo.while(%i = %a) : tensor<i32>\ncond {\n%c = stablehlo.constant dense<5> : tensor<i32>\n%1 = stablehlo.compare LT, %i, %c : "
            "(tensor<i32>, tensor<i32>) -> "
            "tensor<i1>\nstablehlo.return %1 : tensor<i1>\n} do {\nstablehlo.return %i : tensor<i32>\n}\nreturn %0 : tensor<i32>",
            "line 3, column 1: while: the loop does not count up to a constant"},
           {"", "tensor<i32>",
            "%a = stablehlo.constant dense<0> : tensor<i32>\n%0 = stablehlo.while(%i = %a) : tensor<i32>\ncond {\n%c = stablehlo.constant dense<5> : "
            "tensor<i32>\n%1 = "
            "stablehlo.compare LT, %i, %c : (tensor<i32>, tensor<i32>) -> tensor<i1>\nstablehlo.return %1 : tensor<i1>\n} do {\nstablehlo.return %i : "
            "tensor<i32>\n}\nreturn %0 : "
            "tensor<i32>",
            "operations after inlining and unrolling"}}) {
    CAPTURE(operations);
    auto const text = main_of(parameters, result, operations);
    auto const error = caught([&] { ir::parse_stablehlo(text); });
    CHECK_MESSAGE(says(error, message), error);
    CHECK_MESSAGE(error.starts_with("StableHLO text: line "), error);
  }
  for (auto const& [text, message] : std::initializer_list<std::pair<std::string, std::string>>{
           {"", "HLO text: line 1, column 1: expected HloModule"},
           {"HloModule m", "there is no ENTRY"},
           {"HloModule m\nENTRY e { }", "computation e has no ROOT"},
           {"HloModule m\nENTRY e {\n  ROOT a = u16[2] parameter(0)\n}", "line 3, column 12: elements of type u16 are not supported"},
           {"HloModule m\nENTRY e {\n  ROOT a = f32[<=2] parameter(0)\n}", "a dynamic size is not supported"},
           {"HloModule m\nENTRY e {\n  ROOT a = f32[2] constant({...})\n}", "the constant's elements were left out of the text"},
           {"HloModule m\nENTRY e {\n  ROOT a = f32[2] constant({1, 2, 3})\n}", "3 elements given, 2 needed by f32[2]"},
           {"HloModule m\nENTRY e {\n  a = f32[2] parameter(1)\n  ROOT b = f32[2] negate(a)\n}", "computation e lacks parameter 0"},
           {"HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  ROOT b = f32[2] call(a), to_apply=e\n}", "line 4, column 8: computation e is not there yet"},
           {"HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  ROOT b = f32[2] all-reduce(a), replica_groups={}\n}",
            "line 4, column 8: all_reduce: this operation is not supported"},
           {"HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  t = (f32[2]) tuple(a)\n  ROOT b = f32[2] get-tuple-element(t), index=1\n}",
            "the tuple of 1 has no element 1"}}) {
    auto const error = caught([&] { ir::parse_hlo(text); });
    CHECK_MESSAGE(says(error, message), error);
  }
}

TEST_CASE("many brackets and regions in one another are refused") {
  auto const many = [](std::string_view part, int n) {
    std::string text;
    for (int k = 0; k < n; ++k) text += part;
    return text;
  };
  CHECK(says(caught([&] { ir::parse_stablehlo(main_of("", "", "%0 = stablehlo.constant dense<" + many("[", 100000) + "> : tensor<f32>")); }),
             "too many brackets"));
  CHECK(says(caught([&] { ir::parse_stablehlo(main_of("%a: tensor<i1>", "", many("\"stablehlo.if\"(%a) ({\n", 100000))); }), "regions in one another"));
  CHECK(says(caught([&] { ir::parse_stablehlo(main_of("%a: tensor<i1>", "", "\"x\"(%a) {" + many("dimension_numbers = #stablehlo.gather<", 100000))); }),
             "attributes in one another"));
  CHECK(says(caught([&] { ir::parse_hlo("HloModule m\nENTRY e {\n  ROOT a = f32[] constant(" + many("{", 100000)); }), "too many brackets"));
  // f0 calls f1 twice, which calls f2 twice, ..
  std::string chain = main_of("%a: tensor<f32>", "tensor<f32>", "%0 = call @f0(%a) : (tensor<f32>) -> tensor<f32>\nreturn %0 : tensor<f32>");
  chain.resize(chain.rfind('}'));
  for (int k = 0; k < 40; ++k) {
    auto const next =
        k < 39 ? std::format("%0 = call @f{}(%a) : (tensor<f32>) -> tensor<f32>\n%1 = call @f{}(%0) : (tensor<f32>) -> tensor<f32>\nreturn %1 : tensor<f32>",
                             k + 1, k + 1)
               : std::string("return %a : tensor<f32>");
    chain += std::format("func.func private @f{}(%a: tensor<f32>) -> tensor<f32> {{\n{}\n}}\n", k, next);
  }
  CHECK(says(caught([&] { ir::parse_stablehlo(chain + "}\n"); }), "operations after inlining and unrolling"));
}

TEST_CASE("golden mutated texts of StableHLO and HLO are read or refused") {
  std::vector<std::pair<std::string, ir::Graph (*)(std::string_view)>> texts;
  if (auto const programs = golden::load("stablehlo_more.json", "programs"))
    for (auto const& program : *programs) {
      texts.emplace_back(program["text"].get<std::string>(), ir::parse_stablehlo);
      texts.emplace_back(program["hlo_text"].get<std::string>(), ir::parse_hlo);
    }
  std::erase_if(texts, [](auto const& text) { return text.first.size() > 20000; });
  if (texts.empty()) return;
  golden::Tally tally{.name = "golden mutated texts"};
  static constexpr std::string_view pieces[] = {"0",   "1",           "-1",      "7",    "99999999999", "9223372036854775807",
                                                "{",   "}",           "(",       ")",    "[",           "]",
                                                "<",   ">",           "\"",      ",",    ":",           "%",
                                                "%0",  "%arg0",       "#",       "x",    "f32",         "i1",
                                                "i64", "tensor<f32>", "dense<",  "add",  "while",       "\n",
                                                "->",  "=",           "applies", "ROOT", "true",        "e",
                                                "."};
  std::mt19937 random(20);
  int read = 0;
  for (int round = 0, rounds = support::tier(300, 2000, 100000); round < rounds; ++round) {
    auto const& [original, parse] = texts[random() % texts.size()];
    auto text = original;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      auto const at = random() % text.size();
      auto const length = std::min<std::size_t>(random() % 8, text.size() - at);
      switch (random() % 4) {
        case 0:
          text.erase(at, length + 1);
          break;
        case 1:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
        default:
          text.replace(at, length, pieces[random() % std::size(pieces)]);
      }
      if (text.empty()) text = " ";
    }
    try {
      parse(text);
      ++read;
    } catch (base::Error const& error) {
      CHECK(says(error.what(), "HLO text: "));
    }
    ++tally.checked;
  }
  CHECK(read < tally.checked);
}
