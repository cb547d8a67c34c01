#include "golden.hpp"
import std;
import tenon.ir;
#include "golden_forms_windows.hpp"

namespace golden {
namespace {
using json = nlohmann::ordered_json;

// padding="same" is the attribute pad of the row.
void word_for_padding(json& golden) {
  auto& kwargs = golden["kwargs"];
  if (!kwargs.contains("padding")) return;
  auto const& given = kwargs["padding"];
  if (!(given.is_object() && given.contains("value") ? given["value"] : given).is_string()) return;
  kwargs["pad"] = kwargs["padding"];
  kwargs.erase("padding");
}
// A size None in a list is the absent number.
void holes_in_sizes(json& golden) {
  for (auto& argument : golden["args"])
    if (argument.contains("value") && argument["value"].is_array())
      for (auto& item : argument["value"])
        if (item.is_null()) item = tenon::ir::absent;
}
// interpolate.bilinear is interpolate(mode="bilinear").
void mode_in_name(json& golden) {
  auto const name = golden["op"].get<std::string>();
  auto const dot = name.find('.');
  golden["op"] = name.substr(0, dot);
  golden["kwargs"]["mode"] = name.substr(dot + 1);
}

struct Form {
  std::string_view prefix;
  void (*turn)(json&);
};
constexpr std::array forms{Form{"conv", word_for_padding}, Form{"adaptive_", holes_in_sizes}, Form{"interpolate.", mode_in_name}};
}  // namespace

json windows_form(json golden) {
  auto const name = golden["op"].get<std::string>();
  for (auto const& form : forms)
    if (name.starts_with(form.prefix)) form.turn(golden);
  return golden;
}

}  // namespace golden
