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

/// The call with every f64 operand (and f64 attribute) as another floating dtype.
std::optional<Call> as_dtype(Call const& call, DType dtype) {
  Call other = call;
  bool any = false;
  for (auto& operand : other.operands)
    if (operand.tensor && operand.tensor->at.dtype == DType::f64) operand.tensor = support::converted(operand.tensor->at, dtype), any = true;
  if (!any) return std::nullopt;
  return other;
}
/// The call with NaN, infinities and zeros of both signs among its real elements.
std::optional<Call> with_special(Call const& call, std::mt19937& random) {
  Call other = call;
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr std::array special{std::numeric_limits<double>::quiet_NaN(), inf, -inf, 0.0, -0.0, 0.5, -2.5, 1.5};
  bool any = false;
  for (auto& operand : other.operands) {
    if (!operand.tensor || !base::is_real(operand.tensor->at.dtype)) continue;
    operand.tensor = support::converted(operand.tensor->at, operand.tensor->at.dtype);
    auto const& x = operand.tensor->at;
    for (std::int64_t i = 0, n = base::numel(x.sizes); i < n; ++i)
      if (random() % 2) x.set(i, special[random() % special.size()]), any = true;
  }
  if (!any) return std::nullopt;
  return other;
}

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
        for (DType const dtype : {DType::f32, DType::bf16})
          if (auto const other = as_dtype(call, dtype)) {
            bool legal = true;
            try {
              support::run(support::graph_of(*other), support::inputs_of(*other));
            } catch (base::Error const&) {
              legal = false;
            }
            if (legal) export_program(std::string(op->name) + "-" + std::string(base::info(dtype).name), support::graph_of(*other), support::inputs_of(*other));
          }
        if (auto const other = with_special(call, random)) {
          bool legal = true;
          try {
            support::run(support::graph_of(*other), support::inputs_of(*other));
          } catch (base::Error const&) {
            legal = false;
          }
          if (legal) export_program(std::string(op->name) + "-special", support::graph_of(*other), support::inputs_of(*other));
        }
      });
      CHECK(error == "nothing");
    }
  MESSAGE(std::format("{} sample calls written as StableHLO and HLO", written));
}
