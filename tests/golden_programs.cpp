#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_ops.hpp"
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using support::Array;

namespace golden {
namespace {
/// Elements of a golden file as the graph's input wants them.
Array stored(base::SafetensorsFile const& file, std::string const& key, DType dtype) {
  auto const& tensor = file.at(key);
  return support::converted({const_cast<std::byte*>(tensor.data.data()), tensor.dtype, tensor.shape, base::contiguous_strides(tensor.shape)}, dtype);
}
double tolerance(DType dtype, double largest) {
  if (!base::is_real(dtype)) return 0;
  return dtype == DType::bf16 ? largest * 0x1p-7 : dtype == DType::f16 ? largest * 0x1p-10 : 2e-5 * std::max(1.0, largest);
}
void check_program(nlohmann::json const& program, base::SafetensorsFile const& file, ir::Graph const& graph, Run const& run) {
  auto const name = program["name"].get<std::string>();
  CAPTURE(name);
  ir::verify(graph);
  std::vector<Array> inputs;
  REQUIRE(graph.outputs.size() == program["outputs"].size());
  std::size_t next = 0;  // JAX leaves out arguments that a program does not read
  for (int input : graph.inputs) {
    auto const& meta = *graph.values[static_cast<std::size_t>(input)].meta;
    auto const fits = [&](base::FileTensor const& tensor) {
      return tensor.shape == ir::values(meta.sizes) && base::info(tensor.dtype).category == base::info(meta.dtype).category;
    };
    while (next < program["inputs"].size() && !fits(file.at(program["inputs"][next]))) ++next;
    REQUIRE(next < program["inputs"].size());
    inputs.push_back(stored(file, program["inputs"][next++], meta.dtype));
  }
  std::vector<ir::Strided> views;
  for (auto const& input : inputs) views.push_back(input.at);
  auto const made = run(graph, views);
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
}  // namespace

void check_programs(std::string const& name, std::string const& stem, std::string const& key, Run const& run) {
  auto const programs = golden::load(stem + ".json", "programs");
  if (!programs) return;
  golden::Tally tally{.name = name};
  base::SafetensorsFile const file(golden::file(stem + ".safetensors"));
  for (auto const& program : *programs) {
    if (!program.contains(key)) {
      ++tally.skipped;
      continue;
    }
    auto const text = program[key].get<std::string>();
    try {
      check_program(program, file, key == "text" ? ir::parse_stablehlo(text) : ir::parse_hlo(text), run);
    } catch (base::Error const& error) {
      FAIL_CHECK(program["name"].get<std::string>() << ": " << std::string(error.what()));
    }
    ++tally.checked;
  }
}

}  // namespace golden
