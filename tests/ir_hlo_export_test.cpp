// Graphs as StableHLO and HLO: every sample call is written, some against texts by hand. With TENON_EXPORT_TO=FOLDER the programs go there with their inputs and
// outputs, for scripts/check_export.py, which runs them through XLA.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_random.hpp"
using namespace tenon;
using base::DType;
using support::Call;

namespace {

/// Ops whose calls no foreign text can say, with what the Error says of them.
struct Refused {
  std::string_view op, because;
};
constexpr Refused refused[] = {
    {"nonzero", "depend on elements"},
    {"masked_select", "depend on elements"},
    {"unique", "depend on elements"},
};

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

TEST_CASE("hlo: every sample call is written, or refused by name") {
  std::mt19937 random(5);
  int written = 0;
  std::set<std::string_view> unwritten;
  bool const exporting = !export_folder().empty();
  for (auto const* op : ir::all_ops())
    for (auto const& call : support::samples(*op, random)) {
      CAPTURE(call.text);
      auto const* reason = std::ranges::find(refused, op->name, &Refused::op);
      if (reason != std::end(refused)) {
        CHECK(support::says(support::caught([&] { ir::to_stablehlo(support::graph_of(call)); }), reason->because));
        unwritten.insert(op->name);
        continue;
      }
      std::string const error = support::caught([&] {
        auto const graph = support::graph_of(call);
        CHECK(ir::to_stablehlo(graph).ends_with("}\n"));
        CHECK(ir::to_hlo(graph).ends_with("}\n"));
        ++written;
        if (!exporting) return;
        export_program(std::string(op->name), graph, support::inputs_of(call));
        for (auto const& [what, other] : variants(call, random)) export_program(std::format("{}-{}", op->name, what), support::graph_of(other), support::inputs_of(other));
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
