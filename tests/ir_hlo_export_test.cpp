// Graphs as StableHLO and HLO: every sample call is written, some against texts by hand. With TENON_EXPORT_TO=FOLDER the programs go there with their inputs
// and outputs, for scripts/check_export.py, which runs them through XLA.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_random.hpp"
using namespace tenon;
using base::DType;
using support::Call;

namespace {

/// Both texts, read back, compute what the graph computes.
void check_reading(ir::Graph const& graph, std::span<ir::Strided const> inputs) {
  auto const wanted = support::run(graph, inputs);
  for (bool const stable : {true, false}) {
    CAPTURE(stable);
    auto const text = stable ? ir::to_stablehlo(graph) : ir::to_hlo(graph);
    CAPTURE(text);
    auto const back = stable ? ir::parse_stablehlo(text) : ir::parse_hlo(text);
    ir::verify(back);
    auto const got = support::run(back, inputs);
    REQUIRE(got.outputs.size() == wanted.outputs.size());
    for (std::size_t k = 0; k < got.outputs.size(); ++k) {
      auto const &a = wanted.outputs[k], &b = got.outputs[k];
      REQUIRE(a.dtype == b.dtype);
      REQUIRE(a.sizes == b.sizes);
      auto const x = support::reals(a), y = support::reals(b);
      double const close = !base::is_real(a.dtype) ? 0 : a.dtype == DType::f64 ? 1e-9 : a.dtype == DType::f32 ? 3e-5 : 2e-2;
      CHECK(support::distance(x, y) <= close * support::scale_of(x));
    }
  }
}

/// Where programs go that another system shall run; empty: nowhere.
std::filesystem::path export_folder() {
  char const* const path = std::getenv("TENON_EXPORT_TO");
  return path ? path : "";
}
base::FileTensor file_tensor(ir::Strided const& x, std::vector<std::vector<std::byte>>& memory) {
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  auto& elements = memory.emplace_back();
  ir::walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { elements.insert(elements.end(), x.at(at[0]), x.at(at[0]) + bytes); });
  return {x.dtype, x.sizes, elements};
}
void save(std::filesystem::path const& path, std::span<ir::Strided const> tensors) {
  std::vector<std::vector<std::byte>> memory;
  std::map<std::string, base::FileTensor> named;
  memory.reserve(tensors.size());
  for (std::size_t k = 0; k < tensors.size(); ++k) named[std::format("{}", k)] = file_tensor(tensors[k], memory);
  base::save_safetensors(path, named);
}
void write_file(std::filesystem::path const& path, std::string const& text) { std::ofstream(path, std::ios::binary) << text; }
void export_program(std::string const& name, ir::Graph const& graph, std::span<ir::Strided const> inputs) {
  static int count = 0;
  auto const stem = export_folder() / std::format("{:04}_{}", count++, name);
  auto const with = [&](std::string_view suffix) { return std::filesystem::path(stem.string() + std::string(suffix)); };
  auto const evaluated = support::run(graph, inputs);
  write_file(with(".mlir"), ir::to_stablehlo(graph));
  write_file(with(".hlo"), ir::to_hlo(graph));
  save(with(".in.safetensors"), inputs);
  save(with(".out.safetensors"), evaluated.outputs);
}

/// The call in other floating dtypes, and with NaN, infinities and zeros of both signs among its real elements; without those that are no legal calls.
std::vector<std::pair<std::string, Call>> variants(Call const& call, std::mt19937& random) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr std::array special{std::numeric_limits<double>::quiet_NaN(), inf, -inf, 0.0, -0.0, 0.5, -2.5, 1.5};
  auto const converted = [&](DType dtype) {
    Call other = call;
    for (auto& operand : other.operands)
      if (operand.tensor && operand.tensor->at.dtype == DType::f64) operand.tensor = support::converted(operand.tensor->at, dtype);
    return other;
  };
  std::vector<std::pair<std::string, Call>> others{{"f32", converted(DType::f32)}, {"bf16", converted(DType::bf16)}, {"special", converted(DType::f64)}};
  for (auto& operand : others[2].second.operands)
    if (operand.tensor && base::is_real(operand.tensor->at.dtype))
      for (std::int64_t i = 0, n = base::numel(operand.tensor->at.sizes); i < n; ++i)
        if (random() % 2) operand.tensor->at.set(i, special[random() % special.size()]);
  if (std::ranges::none_of(call.operands, [](auto const& operand) { return operand.tensor && operand.tensor->at.dtype == DType::f64; })) return {};
  std::erase_if(others, [](auto const& other) {
    return support::caught([&] { support::run(support::graph_of(other.second), support::inputs_of(other.second)); }) != "nothing";
  });
  return others;
}
/// Its gradients by every real operand, where it has any.
void export_gradient(ir::OpDef const& op, ir::Graph const& graph, Call const& call, std::mt19937& random) {
  std::vector<support::Array> cotangents;
  auto inputs = support::inputs_of(call);
  std::vector<int> wrt;
  for (std::size_t k = 0; k < inputs.size(); ++k)
    if (base::is_real(inputs[k].dtype)) wrt.push_back(static_cast<int>(k));
  bool const real = std::ranges::any_of(graph.outputs, [&](int output) { return base::is_real(graph.values[static_cast<std::size_t>(output)].meta->dtype); });
  if (wrt.empty() || !real) return;
  ir::Graph joint;
  if (support::caught([&] { joint = support::gradient_graph(graph, wrt); }) != "nothing") return;
  std::normal_distribution<> normal;
  for (std::size_t k = inputs.size(); k < joint.inputs.size(); ++k) {
    auto const& meta = *joint.values[static_cast<std::size_t>(joint.inputs[k])].meta;
    cotangents.push_back(support::array(meta.dtype, ir::values(meta.sizes)));
    for (std::int64_t i = 0, n = base::numel(cotangents.back().at.sizes); i < n; ++i) cotangents.back().at.set(i, normal(random));
  }
  for (auto const& cotangent : cotangents) inputs.push_back(cotangent.at);
  export_program(std::string(op.name) + "-gradient", joint, inputs);
}

/// A decoder of one block over 2 sequences of 5 tokens, its loss and the gradients of all parameters.
struct Decoder {
  ir::Graph graph{};
  std::vector<support::Array> inputs{};
  std::vector<int> parameters{};
  std::mt19937 random{7};
  int call(ir::OpDef const& op, std::initializer_list<int> in, ir::Attrs attrs) {
    std::vector<ir::Input> operands;
    for (int const value : in) operands.push_back(value < 0 ? ir::Input{} : ir::Input{value, {}});
    return graph.add(op, operands, std::move(attrs), {});
  }
  int call(ir::OpDef const& op, std::initializer_list<int> in) { return call(op, in, ir::default_attrs(op)); }
  int parameter(base::Shape sizes, double scale, double middle) {
    std::normal_distribution<> normal(middle, scale);
    inputs.push_back(support::array(DType::f32, sizes));
    for (std::int64_t i = 0, n = base::numel(sizes); i < n; ++i) inputs.back().at.set(i, normal(random));
    parameters.push_back(static_cast<int>(graph.inputs.size()));
    return graph.input(support::meta_of(inputs.back().at));
  }
  int tokens() {
    inputs.push_back(support::array(DType::i64, {2, 5}));
    for (std::int64_t i = 0; i < 10; ++i) inputs.back().at.set_whole(i, static_cast<std::int64_t>(random() % 11));
    return graph.input(support::meta_of(inputs.back().at));
  }
  int shaped(int x, std::initializer_list<ir::Dim> sizes) { return call(ir::ops::reshape, {x}, ir::Attrs{}.with(ir::Dims(sizes))); }
  int norm(int x) {
    auto attrs = ir::default_attrs(ir::ops::layer_norm);
    attrs.ints.clear();
    return call(ir::ops::layer_norm, {x, parameter({8}, 0.1, 1), parameter({8}, 0.1, 0)}, attrs.with(ir::Dims{8}));
  }
  int heads(int x) {
    int const apart = shaped(call(ir::ops::linear, {x, parameter({8, 8}, 0.3, 0), -1}), {2, 5, 2, 4});
    return call(ir::ops::transpose, {apart}, ir::Attrs{}.with(ir::Dim(1)).with(ir::Dim(2)));
  }
  Decoder() {
    int const given = tokens(), wanted = tokens();
    int const embedded = call(ir::ops::embedding, {parameter({11, 8}, 0.5, 0), given});
    int const x = call(ir::ops::add, {embedded, parameter({5, 8}, 0.5, 0)}), y = norm(x);
    auto attention = ir::default_attrs(ir::ops::scaled_dot_product_attention);
    attention.ints[0] = true;
    int const mixed = call(ir::ops::scaled_dot_product_attention, {heads(y), heads(y), heads(y), -1}, attention);
    int const joined = shaped(call(ir::ops::transpose, {mixed}, ir::Attrs{}.with(ir::Dim(1)).with(ir::Dim(2))), {2, 5, 8});
    int const second = call(ir::ops::add, {x, call(ir::ops::linear, {joined, parameter({8, 8}, 0.3, 0), -1})});
    int const inner = call(ir::ops::gelu, {call(ir::ops::linear, {norm(second), parameter({16, 8}, 0.3, 0), parameter({16}, 0.1, 0)})});
    int const third = call(ir::ops::add, {second, call(ir::ops::linear, {inner, parameter({8, 16}, 0.3, 0), -1})});
    int const logits = shaped(call(ir::ops::linear, {norm(third), parameter({11, 8}, 0.3, 0), -1}), {10, 11});
    graph.outputs = {call(ir::ops::cross_entropy, {logits, shaped(wanted, {10}), -1})};
    graph = ir::with_gradients(graph, parameters);
  }
  std::vector<ir::Strided> elements() const {
    std::vector<ir::Strided> list;
    for (auto const& input : inputs) list.push_back(input.at);
    return list;
  }
};

}  // namespace

TEST_CASE("hlo: every sample call is written") {
  std::mt19937 random(5);
  int written = 0;
  bool const exporting = !export_folder().empty();
  for (auto const* op : ir::all_ops())
    for (auto const& call : support::samples(*op, random)) {
      if (ir::writes(*op)) continue;  // functionalize takes writes out first
      CAPTURE(call.text);
      std::string const error = support::caught([&] {
        auto const graph = support::graph_of(call);
        CHECK(ir::to_stablehlo(graph).ends_with("}\n"));
        CHECK(ir::to_hlo(graph).ends_with("}\n"));
        ++written;
        if (!exporting) return;
        export_program(std::string(op->name), graph, support::inputs_of(call));
        for (auto const& [what, other] : variants(call, random))
          export_program(std::format("{}-{}", op->name, what), support::graph_of(other), support::inputs_of(other));
        export_gradient(*op, graph, call, random);
      });
      CHECK(error == "nothing");
    }
  MESSAGE(std::format("{} sample calls written as StableHLO and HLO", written));
}

TEST_CASE("hlo: a decoder with its gradients is written") {
  Decoder const decoder;
  CHECK(decoder.graph.outputs.size() == decoder.parameters.size() + 1);
  CHECK(ir::to_stablehlo(decoder.graph).find("stablehlo.dot_general") != std::string::npos);
  CHECK(ir::to_hlo(decoder.graph).find(" scatter(") != std::string::npos);
  if (!export_folder().empty()) export_program("decoder", decoder.graph, decoder.elements());
}

TEST_CASE("hlo: random graphs are written") {
  std::mt19937 random(9);
  for (int k = 0; k < support::tier(5, 30, 200); ++k) {
    auto const made = support::random_graph(random, {.ornaments = k % 2 == 0});
    CHECK(ir::to_stablehlo(made.graph).ends_with("}\n"));
    CHECK(ir::to_hlo(made.graph).ends_with("}\n"));
    if (!export_folder().empty()) export_program("graph", made.graph, made.elements());
  }
}

TEST_CASE("hlo: a program of the common operations, as written by hand") {
  auto const graph = ir::parse_graph(R"(graph scores(%0 x: f32[2, 3], %1 w: f32[3]) {
  %2 = add(%0, %1, alpha=2.0): f32[2, 3]
  %3 = relu(%2): f32[2, 3]
  %4 = sum(%3, dim=[1]): f32[2]
  %5 = transpose(%0, dim0=0, dim1=1): f32[3, 2] strides [1, 3]
  %6 = matmul(%3, %5): f32[2, 2]
  %7 = gt(%6, 0.5): bool[2, 2]
  return %4, %7
}
)");
  CHECK(ir::to_stablehlo(graph) == R"(module @scores {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3xf32>) -> (tensor<2xf32>, tensor<2x2xi1>) {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.constant dense<2.0> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %3 = stablehlo.multiply %0, %2 : tensor<2x3xf32>
    %4 = stablehlo.add %arg0, %3 : tensor<2x3xf32>
    %5 = stablehlo.constant dense<0.0> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %7 = stablehlo.maximum %4, %6 : tensor<2x3xf32>
    %8 = stablehlo.reduce(%7 init: %5) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
    %9 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %10 = stablehlo.dot_general %7, %9, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    %11 = stablehlo.constant dense<0.5> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %11, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
    %13 = stablehlo.compare GT, %10, %12, FLOAT : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xi1>
    return %8, %13 : tensor<2xf32>, tensor<2x2xi1>
  }
}
)");
  CHECK(ir::to_hlo(graph) == R"(HloModule scores, entry_computation_layout={(f32[2,3]{1,0}, f32[3]{0})->(f32[2]{0}, pred[2,2]{1,0})}

region_0 {
  arg.10 = f32[] parameter(0)
  arg.11 = f32[] parameter(1)
  ROOT add.12 = f32[] add(arg.10, arg.11)
}

ENTRY main {
  x.0 = f32[2,3]{1,0} parameter(0)
  w.1 = f32[3]{0} parameter(1)
  broadcast.2 = f32[2,3]{1,0} broadcast(w.1), dimensions={1}
  constant.3 = f32[] constant(2)
  broadcast.4 = f32[2,3]{1,0} broadcast(constant.3), dimensions={}
  multiply.5 = f32[2,3]{1,0} multiply(broadcast.2, broadcast.4)
  add.6 = f32[2,3]{1,0} add(x.0, multiply.5)
  constant.7 = f32[] constant(0)
  broadcast.8 = f32[2,3]{1,0} broadcast(constant.7), dimensions={}
  maximum.9 = f32[2,3]{1,0} maximum(add.6, broadcast.8)
  reduce.13 = f32[2]{0} reduce(maximum.9, constant.7), dimensions={1}, to_apply=region_0
  transpose.14 = f32[3,2]{1,0} transpose(x.0), dimensions={1,0}
  dot.15 = f32[2,2]{1,0} dot(maximum.9, transpose.14), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  constant.16 = f32[] constant(0.5)
  broadcast.17 = f32[2,2]{1,0} broadcast(constant.16), dimensions={}
  compare.18 = pred[2,2]{1,0} compare(dot.15, broadcast.17), direction=GT
  ROOT results = (f32[2]{0}, pred[2,2]{1,0}) tuple(reduce.13, compare.18)
}
)");
}

TEST_CASE("hlo: operations with regions, small floats and elements of constants, as written by hand") {
  auto const graph = ir::parse_graph(R"(graph "two words"(%0: bf16[4], %1: i64[2, 1]) {
  %2, %3 = sort(%0, descending=true): bf16[4], i64[4]
  %4 = exp(%2): bf16[4]
  %5 = constant(elements="1.5 inf nan -0", size=[4]): f32[4]
  %6 = reshape(%5, shape=[4, 1]): f32[4, 1]
  %7 = embedding(%6, %1): f32[2, 1, 1]
  return %4, %7
}
)");
  CHECK(ir::to_stablehlo(graph) == R"(module @"two words" {
  func.func public @main(%arg0: tensor<4xbf16>, %arg1: tensor<2x1xi64>) -> (tensor<4xbf16>, tensor<2x1x1xf32>) {
    %0 = stablehlo.iota dim = 0 : tensor<4xi64>
    %1:2 = "stablehlo.sort"(%arg0, %0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg2: tensor<bf16>, %arg3: tensor<bf16>, %arg4: tensor<i64>, %arg5: tensor<i64>):
      %2 = stablehlo.compare LT, %arg3, %arg2, FLOAT : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %3 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %4 = stablehlo.compare EQ, %arg3, %arg3, FLOAT : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
      %5 = stablehlo.and %3, %4 : tensor<i1>
      %6 = stablehlo.or %2, %5 : tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<4xbf16>, tensor<4xi64>) -> (tensor<4xbf16>, tensor<4xi64>)
    %7 = stablehlo.convert %1#0 : (tensor<4xbf16>) -> tensor<4xf32>
    %8 = stablehlo.exponential %7 : tensor<4xf32>
    %9 = stablehlo.convert %8 : (tensor<4xf32>) -> tensor<4xbf16>
    %10 = stablehlo.constant dense<[1.5, 0x7F800000, 0x7FC00000, -0.0]> : tensor<4xf32>
    %11 = stablehlo.reshape %10 : (tensor<4xf32>) -> tensor<4x1xf32>
    %12 = "stablehlo.gather"(%11, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}> : (tensor<4x1xf32>, tensor<2x1xi64>) -> tensor<2x1x1xf32>
    return %9, %12 : tensor<4xbf16>, tensor<2x1x1xf32>
  }
}
)");
  auto const text = ir::to_hlo(graph);
  CHECK(text.starts_with("HloModule two_words, entry_computation_layout={(bf16[4]{0}, s64[2,1]{1,0})->(bf16[4]{0}, f32[2,1,1]{2,1,0})}\n\nregion_0 {\n"));
  CHECK(text.find(" = f32[4]{0} constant({1.5, inf, nan, -0})\n") != std::string::npos);
  CHECK(text.find(" = (bf16[4]{0}, s64[4]{0}) sort(arg.0, iota.11), dimensions={0}, is_stable=true, to_apply=region_0\n") != std::string::npos);
  CHECK(text.find("  sort.12.0 = bf16[4]{0} get-tuple-element(sort.12), index=0\n") != std::string::npos);
}

TEST_CASE("hlo: what has no such form is refused by name") {
  ir::Graph symbolic;
  ir::Dim const size = symbolic.symbols.symbol(4);
  int const x = symbolic.input(ir::contiguous_meta(DType::f32, {}, ir::Dims{size, ir::Dim(2)}));
  symbolic.outputs = {symbolic.add(ir::ops::neg, {{x, {}}}, {}, {})};
  CHECK(support::says(support::caught([&] { ir::to_stablehlo(symbolic); }), "s0 is symbolic"));
  CHECK(support::says(support::caught([&] { ir::to_hlo(symbolic); }), "s0 is symbolic"));

  static constinit ir::OpDef const own{.name = "own",
                                       .kind = ir::Kind::pointwise,
                                       .signature = "Tensor input",
                                       .terms = "-",
                                       .mono = ".",
                                       .element = {[](double const* element, double const*) { return element[0]; }},
                                       .source = "lgamma({0})"};
  ir::Graph graph;
  int const y = graph.input(ir::contiguous_meta(DType::f32, {}, ir::Dims{ir::Dim(2)}));
  graph.outputs = {graph.add(own, {{y, {}}}, {}, {})};
  CHECK(support::says(support::caught([&] { ir::to_stablehlo(graph); }), "own: no operation at column 1 of its source 'lgamma({0})'"));

  std::mt19937 random(3);
  auto const reduced = support::sample("all_reduce(f64[2], group=\"data\", group_size=4)", random);
  CHECK(support::says(support::caught([&] { ir::to_hlo(support::graph_of(reduced)); }), "all_reduce has no form in the text of one process: its group has 4"));
  auto const masked = support::sample("index_put(f64[2, 3], f64[], bool[2], i64[1], dims=[0, 1])", random);
  CHECK(support::says(support::caught([&] { ir::to_hlo(support::graph_of(masked)); }), "a mask beside other indices"));
  for (auto const* op : ir::all_ops())  // no graph holds a call whose sizes depend on elements
    for (auto const& call : support::measured_samples(*op, random)) {
      CAPTURE(call.text);
      CHECK(support::caught([&] { ir::to_stablehlo(support::graph_of(call)); }) != "nothing");
    }
}

TEST_CASE("hlo: what is written is read back and computes the same") {
  std::mt19937 random(5);
  for (auto const* op : ir::all_ops()) {
    for (auto const& call : support::samples(*op, random)) {
      if (ir::writes(*op)) continue;
      CAPTURE(call.text);
      CHECK(support::caught([&] { check_reading(support::graph_of(call), support::inputs_of(call)); }) == "nothing");
      for (auto const& [what, other] : variants(call, random)) {
        CAPTURE(what);
        if (what != "f32") CHECK(support::caught([&] { check_reading(support::graph_of(other), support::inputs_of(other)); }) == "nothing");
      }
    }
  }
  Decoder const decoder;
  check_reading(decoder.graph, decoder.elements());
  for (int k = 0; k < support::tier(5, 30, 200); ++k) {
    auto const made = support::random_graph(random, {.ornaments = true});
    CAPTURE(k);
    CHECK(support::caught([&] { check_reading(made.graph, made.elements()); }) == "nothing");
  }
}

TEST_CASE("hlo: an op without a rule is written by the source of its element") {
  std::mt19937 random(6);
  int written = 0;
  std::string not_told;
  for (auto const* op : ir::all_ops()) {
    if (op->kind != ir::Kind::pointwise || !op->element.real || op->source.empty()) continue;
    static std::deque<ir::OpDef> rows;  // an op is its address: no rule knows these, and none is used again
    auto& row = rows.emplace_back(*op);
    row.name = "row_of_a_user";
    for (auto const& call : support::samples(*op, random)) {
      CAPTURE(call.text);
      auto graph = support::graph_of(call);
      auto const meta = *graph.values[static_cast<std::size_t>(graph.outputs[0])].meta;
      bool const reals = std::ranges::all_of(call.operands, [](auto const& x) { return !x.tensor || base::is_real(x.tensor->at.dtype); });
      if (!reals || (!base::is_real(meta.dtype) && op->types != ir::Types::boolean)) continue;  // C counts whole numbers otherwise
      graph.nodes[0].op = &row;
      auto const error = support::caught([&] { check_reading(graph, support::inputs_of(call)); });
      bool const untold = support::says(error, "of its source");
      if (untold) not_told += std::format(" {}", op->name);
      CHECK((untold || error == "nothing"));
      written += !untold;
    }
  }
  std::cout << "hlo: " << written << " calls written by their source; not told:" << not_told << "\n";
  CHECK(written > 70);
  CHECK(not_told == "");
}

TEST_CASE("hlo: writing takes time linear in the nodes") {
  ir::Graph graph;
  int x = graph.input(ir::contiguous_meta(DType::f32, {}, ir::Dims{ir::Dim(2)}));
  int const count = support::tier(1'000, 20'000, 100'000);
  for (int k = 0; k < count; ++k) x = graph.add(ir::ops::mul, {{x, {}}, {x, {}}}, {}, {});
  graph.outputs = {x};
  auto const text = ir::to_stablehlo(graph);
  CHECK(std::ranges::count(text, '\n') == count + 5);
}
