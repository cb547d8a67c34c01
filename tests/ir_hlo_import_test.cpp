#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
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

/// Elements of a golden file as the graph's input wants them.
Array stored(base::SafetensorsFile const& file, std::string const& key, DType dtype) {
  auto const& tensor = file.at(key);
  return support::converted({const_cast<std::byte*>(tensor.data.data()), tensor.dtype, tensor.shape, base::contiguous_strides(tensor.shape)}, dtype);
}
double tolerance(DType dtype, double largest) {
  if (!base::is_real(dtype)) return 0;
  return dtype == DType::bf16 ? largest * 0x1p-7 : dtype == DType::f16 ? largest * 0x1p-10 : 2e-5 * std::max(1.0, largest);
}
void check_program(nlohmann::json const& program, base::SafetensorsFile const& file, ir::Graph const& graph) {
  auto const name = program["name"].get<std::string>();
  CAPTURE(name);
  ir::verify(graph);
  std::vector<Array> inputs;
  REQUIRE(graph.outputs.size() == program["outputs"].size());
  std::size_t next = 0;  // JAX leaves out arguments that a program does not read
  for (int input : graph.inputs) {
    auto const& meta = *graph.values[static_cast<std::size_t>(input)].meta;
    while (next < program["inputs"].size() && file.at(program["inputs"][next]).shape != ir::values(meta.sizes)) ++next;
    REQUIRE(next < program["inputs"].size());
    inputs.push_back(stored(file, program["inputs"][next++], meta.dtype));
  }
  std::vector<ir::Strided> views;
  for (auto const& input : inputs) views.push_back(input.at);
  auto const made = support::run(graph, views);
  for (std::size_t k = 0; k < made.outputs.size(); ++k) {
    auto const dtype = made.outputs[k].dtype;
    auto const want = support::reals(stored(file, program["outputs"][k], DType::f64).at), have = support::reals(made.outputs[k]);
    CHECK_MESSAGE(file.at(program["outputs"][k]).shape == made.outputs[k].sizes, name << " output " << k);
    double largest = 0;
    for (double x : want)
      if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    CHECK_MESSAGE(support::distance(want, have) <= tolerance(dtype, largest), name << " output " << k << ": off by " << support::distance(want, have));
  }
}
void check_programs(std::string const& stem, std::string const& key, golden::Tally& tally) {
  auto const programs = golden::load(stem + ".json", "programs");
  if (!programs) return;
  base::SafetensorsFile const file(golden::file(stem + ".safetensors"));
  for (auto const& program : *programs) {
    if (!program.contains(key)) {
      ++tally.skipped;
      continue;
    }
    auto const text = program[key].get<std::string>();
    try {
      check_program(program, file, key == "text" ? ir::parse_stablehlo(text) : ir::parse_hlo(text));
    } catch (base::Error const& error) {
      FAIL_CHECK(program["name"].get<std::string>() << ": " << std::string(error.what()));
    }
    ++tally.checked;
  }
}
}  // namespace

TEST_CASE("golden StableHLO programs give XLA's values") {
  golden::Tally tally{.name = "golden stablehlo"};
  check_programs("stablehlo", "text", tally);
}
TEST_CASE("golden StableHLO programs of every kind of operation give XLA's values") {
  golden::Tally tally{.name = "golden stablehlo_more"};
  check_programs("stablehlo_more", "text", tally);
}
TEST_CASE("golden HLO programs give XLA's values") {
  golden::Tally tally{.name = "golden hlo"};
  check_programs("stablehlo_more", "hlo_text", tally);
}
