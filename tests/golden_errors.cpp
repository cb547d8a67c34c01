// Calls that PyTorch refuses: ours refuse them too, each with one line that names the op.
#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_forms.hpp"
#include "golden_forms_windows.hpp"
using namespace tenon;

namespace {
using golden::Json;

/// What ours take and PyTorch refuses, because the result is right (docs/ir.md). An empty name: any op.
struct Taken {
  std::string_view op, reason;
  bool (*when)(support::Call const& call);
};
bool mixes_numbers(support::Call const& call) {
  return call.op->kind == ir::Kind::pointwise &&
         std::ranges::any_of(call.operands, [](support::Operand const& x) { return !x.tensor && x.number.kind != ir::ScalarKind::none; });
}
constexpr Taken taken[] = {
    {{}, "a number may stand for any operand that is broadcast, as long as one tensor is left", mixes_numbers},
};
/// Ops that refuse an index out of range: the file gives no elements, so that with one the call must be refused where zeros pass.
constexpr std::string_view by_elements[] = {"gather",     "scatter", "scatter_add",    "index_select", "index_add",
                                            "index_copy", "take",    "take_along_dim", "embedding"};

/// Tensors of the file by shape and dtype, under keys of their own.
struct Tensors {
  std::map<std::string, support::Array> by_key;
  Json keyed(Json argument) {
    if (argument.is_array() && !argument.empty() && argument[0].is_object()) {  // a list of tensors
      Json keys = Json::array();
      for (auto const& item : argument) {
        if (!item.contains("tensor")) throw golden::Unfit("a list of tensors holds " + item.dump());
        keys.push_back(keyed(item)["tensor"]);
      }
      return Json{{"tensors", keys}};
    }
    if (!argument.is_object()) return Json{{"value", argument}};
    if (argument.contains("tensors")) return keyed(argument["tensors"]);
    if (!argument.contains("tensor")) return argument;
    auto const key = std::format("#{}", by_key.size());
    base::Shape sizes;
    for (auto const& size : argument["tensor"]) sizes.push_back(size.get<std::int64_t>());
    auto const name = argument["dtype"].get<std::string>();
    if (name.starts_with("complex")) throw golden::Unfit("no dtype " + name);
    by_key.emplace(key, support::array(base::dtype_of(name), sizes));
    return Json{{"tensor", key}};
  }
};

/// What the call says when it is made and run: the text of its Error, or "nothing".
std::string answer(support::Call const& call) {
  return support::caught([&] {
    auto const open = call.op->measured && support::says(support::caught([&] { support::graph_of(call); }), "depends on elements");
    if (open)
      (void)support::run_at_once(call);
    else
      (void)support::run(support::graph_of(call), support::inputs_of(call));
  });
}
support::Call out_of_range(support::Call call) {
  for (auto& operand : call.operands)
    if (operand.tensor && operand.tensor->at.dtype == base::DType::i64)
      for (std::int64_t i = 0; i < base::numel(operand.tensor->at.sizes); ++i) operand.tensor->at.set_whole(i, 1 << 20);
  return call;
}
}  // namespace

TEST_CASE("golden opinfo errors") {
  auto const cases = golden::load<Json>("opinfo_errors.json", "cases");
  if (!cases) return;
  golden::Tally tally{.name = "golden opinfo errors"};
  std::string notes;
  for (auto const& given : *cases) {
    auto const what = given.dump();
    try {
      if (!golden::row_of(given["op"].get<std::string>())) throw golden::Unfit("no row");
      Tensors tensors;
      Json call = golden::windows_form(given);
      for (auto& argument : call["args"]) argument = tensors.keyed(argument);
      for (auto& argument : call["kwargs"]) argument = tensors.keyed(argument);
      auto const made = golden::call_of(call, [&](Json const& key) { return tensors.by_key.at(key.get<std::string>()); });
      auto text = answer(made);
      if (text == "nothing" && std::ranges::find(by_elements, made.op->name) != std::end(by_elements)) text = answer(out_of_range(made));
      ++tally.checked;
      auto const exception = std::ranges::find_if(taken, [&](Taken const& row) { return (row.op.empty() || row.op == made.op->name) && row.when(made); });
      if (text == "nothing" && exception != std::end(taken)) {
        notes += std::format("  taken: {}: {}\n", what, exception->reason);
        continue;
      }
      bool const clear = text != "nothing" && !text.starts_with("Bug") && text.find('\n') == std::string::npos && text.starts_with(made.op->name);
      CHECK_MESSAGE(clear, what << " says: " << text);
    } catch (golden::Unfit const& reason) {
      ++tally.skipped;
      notes += std::format("  can't be written: {}: {}\n", what, reason.what());
    }
  }
  std::cout << "golden opinfo errors:\n" << notes;
}
