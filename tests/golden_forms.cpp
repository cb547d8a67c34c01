#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_forms.hpp"
using namespace tenon;

namespace golden {
namespace {

bool given(Json const& argument) { return !argument.contains("value") || !argument["value"].is_null(); }
bool missing(Json const& argument) { return !given(argument); }
bool any(Json const&) { return true; }
bool tensor(Json const& argument) { return argument.contains("tensor"); }
bool flag(Json const& argument) { return argument.contains("value") && argument["value"].is_boolean(); }
bool number(Json const& argument) { return argument.contains("value") && argument["value"].is_number(); }
bool lists(Json const& argument) { return argument.contains("value") && argument["value"].is_array(); }
bool word(Json const& argument) {  // a text that is no number
  if (!argument.contains("value") || !argument["value"].is_string()) return false;
  auto const text = argument["value"].get<std::string>();
  return text != "inf" && text != "-inf" && text != "nan";
}

/// One argument of a call on its way: by position or by keyword.
struct Place {
  Json& call;
  std::size_t at;
  std::string name;
  ReadTensor const& read;
  Json* find() const {
    if (at < call["args"].size()) return &call["args"][at];
    auto const found = call["kwargs"].find(name);
    return found == call["kwargs"].end() ? nullptr : &*found;
  }
  void drop() const {
    if (at < call["args"].size())
      call["args"].erase(at);
    else
      call["kwargs"].erase(name);
  }
};
std::vector<double> elements(Place const& place) { return support::reals(place.read((*place.find())["tensor"]).at); }

void need_whole(Place const& place) {
  auto const type = place.read((*place.find())["tensor"]).at.dtype;
  if (type != base::DType::i64 && type != base::DType::i32) throw Unfit(std::format("{} is a tensor of {}", place.name, base::info(type).name));
}
void as_number(Place const& place) {
  need_whole(place);
  if (!place.read((*place.find())["tensor"]).at.sizes.empty()) throw Unfit(place.name + " has dims");
  *place.find() = Json{{"value", static_cast<std::int64_t>(elements(place).at(0))}};
}
void as_sections(Place const& place) {  // without dims how many parts, with one where they begin
  need_whole(place);
  bool const count = place.read((*place.find())["tensor"]).at.sizes.empty();
  Json list = Json::array();
  for (double const n : elements(place)) list.push_back(static_cast<std::int64_t>(n));
  *place.find() = Json{{"value", count ? list[0] : list}};
}
void as_correction(Place const& place) {  // unbiased: one is taken from the count
  auto const value = place.find()->is_object() ? (*place.find())["value"] : *place.find();
  place.drop();
  place.call["kwargs"]["correction"] = Json{{"value", value.get<bool>() ? 1 : 0}};
}
void two_lists(Place const& place) {
  Json const both = (*place.find())["value"];
  place.drop();
  for (auto const& list : both) place.call["args"].push_back(Json{{"value", list}});
}
void dropped(Place const& place) { place.drop(); }
void values_first(Place const& place) {  // lists of operands stand last in a row
  auto& args = place.call["args"];
  if (args.size() > 2) std::swap(args[1], args[2]);
}
void equation_first(Place const& place) {
  Json equation, keys = Json::array();
  for (auto const& argument : place.call["args"])
    if (argument.contains("tensors"))
      for (auto const& key : argument["tensors"]) keys.push_back(key);
    else if (argument.contains("tensor"))
      keys.push_back(argument["tensor"]);
    else
      equation = argument["value"];
  if (auto const named = place.call["kwargs"].find("equation"); named != place.call["kwargs"].end()) {
    equation = named->is_object() ? (*named)["value"] : *named;
    place.call["kwargs"].erase("equation");
  }
  place.call["args"] = Json::array({Json{{"value", equation}}, Json{{"tensors", keys}}});
}

/// An argument that stands where `when` holds: the call is one of the row `as`, or its arguments are rewritten.
struct Form {
  std::string_view op;
  std::size_t at;
  std::string_view name;
  bool (*when)(Json const& argument);
  std::string_view as;
  void (*rewrite)(Place const& place);
};
constexpr std::size_t keyword = 99;  // never by position
// clang-format off
constexpr Form forms[] = {
    {"clamp", 1, "min", tensor, "clamp.Tensor", nullptr},
    {"clamp", 2, "max", tensor, "clamp.Tensor", nullptr},
    {"div", 2, "rounding_mode", given, "div.Tensor_mode", nullptr},
    {"masked_fill", 2, "value", tensor, "masked_fill.Tensor", nullptr},
    {"round", 1, "decimals", given, "round.decimals", nullptr},
    {"repeat_interleave", 1, "repeats", tensor, "repeat_interleave.self_Tensor", nullptr},
    {"index_fill", 3, "value", tensor, "index_fill.int_Tensor", nullptr},
    {"scatter", 3, "src", number, "scatter.value", nullptr},
    {"scatter", keyword, "value", number, "scatter.value", nullptr},
    {"linalg.norm", 1, "ord", word, "linalg.norm.ord_str", nullptr},
    {"linalg.matrix_norm", 1, "ord", word, "linalg.matrix_norm.str_ord", nullptr},
    {"narrow", 2, "start", tensor, {}, as_number},
    {"tensor_split", 1, "indices_or_sections", tensor, {}, as_sections},
    {"std", keyword, "unbiased", given, {}, as_correction},
    {"var", keyword, "unbiased", given, {}, as_correction},
    {"std_mean", keyword, "unbiased", given, {}, as_correction},
    {"var_mean", keyword, "unbiased", given, {}, as_correction},
    {"std", 1, "dim", flag, {}, as_correction},
    {"var", 1, "dim", flag, {}, as_correction},
    {"std_mean", 1, "dim", flag, {}, as_correction},
    {"var_mean", 1, "dim", flag, {}, as_correction},
    {"std", keyword, "correction", missing, {}, dropped},
    {"var", keyword, "correction", missing, {}, dropped},
    {"std_mean", keyword, "correction", missing, {}, dropped},
    {"var_mean", keyword, "correction", missing, {}, dropped},
    {"tensordot", 2, "dims", lists, "tensordot.lists", two_lists},
    {"cdist", 3, "compute_mode", any, {}, dropped},
    {"nonzero", 1, "as_tuple", any, {}, dropped},
    {"index_put", 1, "indices", any, {}, values_first},
    {"einsum", 0, "equation", any, {}, equation_first},
};
// clang-format on

/// where(x > 0, x, 0).sum(): a name of the golden files, not of PyTorch.
constinit ir::OpDef const masked_select_sum{
    .name = "masked_select_sum", .kind = ir::Kind::reduction, .signature = "Tensor input", .terms = "-", .mono = "+", .decompose = [](ir::Body& b) {
      ir::Var const chosen = ir::call(ir::ops::where, {ir::call(ir::ops::gt, {b.x(), 0.0}), b.x(), 0.0});
      b.out.push_back(ir::call(ir::ops::sum, {chosen}, ir::default_attrs(ir::ops::sum)));
    }};

support::Array column(support::Array const& matrix, std::int64_t k) {
  auto view = matrix.at;
  view.data = view.at(k * view.strides[1]);
  view.sizes.pop_back(), view.strides.pop_back();
  return support::converted(view, view.dtype);
}
bool asks(Json const& golden, std::string const& name) {
  auto const found = golden["kwargs"].find(name);
  if (found == golden["kwargs"].end()) return false;
  auto const& value = found->is_object() ? (*found)["value"] : *found;
  return value.is_boolean() && value.get<bool>();
}
}  // namespace

ir::OpDef const* row_of(std::string_view name) { return name == masked_select_sum.name ? &masked_select_sum : ir::find_op(name); }

Json respelled(Json call, ReadTensor const& read) {
  auto const op = call["op"].get<std::string>();
  for (auto const& form : forms) {
    if (form.op != op) continue;
    Place const place{call, form.at, std::string(form.name), read};
    auto* const argument = place.find();
    if (!argument || !form.when(argument->is_object() ? *argument : Json{{"value", *argument}})) continue;
    if (!form.as.empty()) call["op"] = form.as;
    if (form.rewrite) form.rewrite(place);
  }
  return call;
}

std::vector<support::Array> results_of(Json const& golden, std::vector<support::Array> results) {
  auto const op = golden["op"].get<std::string>();
  std::vector<support::Array> wanted;
  if (op == "nonzero" && asks(golden, "as_tuple") && results[0].at.sizes[1] == 0)  // of a 0-d tensor, as if it had one dim
    wanted.push_back(support::array(base::DType::i64, {results[0].at.sizes[0]}));
  else if (op == "nonzero" && asks(golden, "as_tuple"))
    for (std::int64_t k = 0; k < results[0].at.sizes[1]; ++k) wanted.push_back(column(results[0], k));
  else if (op == "unique")
    for (std::size_t k = 0; k < results.size(); ++k)
      if (k == 0 || asks(golden, k == 1 ? "return_inverse" : "return_counts")) wanted.push_back(results[k]);
  return wanted.empty() ? results : wanted;
}

}  // namespace golden
