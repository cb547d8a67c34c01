#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_forms.hpp"
#include "golden_forms_windows.hpp"
#include "golden_ops.hpp"
using namespace tenon;
using base::DType;
using ir::Parameter;
using json = nlohmann::ordered_json;  // tensors among keywords count in the order in which they stand
using support::Array;

namespace golden {
namespace {

struct Case {
  support::Call call;
  std::vector<int> tensors;  ///< tensor argument K of the golden call → graph input
};

using Reader = ReadTensor;
/// Reads tensors of the file, floating ones as `real`.
Reader reader(base::SafetensorsFile const& file, DType real) {
  return [&file, real](json const& key) {
    auto const& stored = file.at(key.get<std::string>());
    ir::Strided const view{const_cast<std::byte*>(stored.data.data()), stored.dtype, stored.shape, base::contiguous_strides(stored.shape)};
    return support::converted(view, base::is_real(stored.dtype) ? real : stored.dtype);
  };
}

double number(json const& value) {
  if (value.is_string()) return std::strtod(value.get<std::string>().c_str(), nullptr);  // "inf", "-inf", "nan"
  return value.get<double>();
}
ir::Scalar scalar(json const& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number() || value.is_string()) return number(value);
  throw Unfit("not a number: " + value.dump());
}

ir::Dims whole_list(json const& value) {
  ir::Dims list;
  if (value.is_null()) return list;
  for (auto const& item : value.is_array() ? value : json::array({value})) {
    if (!item.is_number_integer()) throw Unfit("not a whole number: " + item.dump());
    list.push_back(item.get<std::int64_t>());
  }
  return list;
}

void attribute(Parameter const& parameter, json const& value, ir::Attrs& attrs) {
  using Type = Parameter::Type;
  auto const refuse = [&](std::string_view what) { throw Unfit(std::format("{} is not {}: {}", parameter.name, what, value.dump())); };
  switch (parameter.type) {
    case Type::wholes:
    case Type::sizes:
      attrs.with(whole_list(value));
      return;
    case Type::real:
      attrs.with_num(value.is_null() ? ir::Scalar() : scalar(value));
      return;
    case Type::reals: {
      auto const items = value.is_null() ? json::array() : value.is_array() ? value : json::array({value});
      attrs.with(ir::Dim(items.size()));
      for (auto const& item : items) attrs.with_num(number(item));
      return;
    }
    case Type::flag:
      if (!value.is_boolean()) refuse("a flag");
      attrs.with(ir::Dim(value.get<bool>()));
      return;
    case Type::choice: {
      auto const word = value.is_null() ? std::string("none") : value.is_string() ? value.get<std::string>() : value.dump();
      auto const found = std::ranges::find(parameter.choices, word);
      if (found == parameter.choices.end()) refuse("one of the choices");
      attrs.with(ir::Dim(found - parameter.choices.begin()));
      return;
    }
    case Type::dtype:
      attrs.with(value.is_null() ? ir::Dim(ir::absent) : ir::Dim(static_cast<int>(base::dtype_of(value.get<std::string>()))));
      return;
    case Type::text:
      attrs.with_text(value.get<std::string>());
      return;
    default:
      if (value.is_null())
        attrs.with(ir::Dim(ir::absent));
      else if (value.is_number_integer())
        attrs.with(ir::Dim(value.get<std::int64_t>()));
      else
        refuse("a whole number");
  }
}

/// The argument of one parameter: an operand (or several), or an attribute.
void take(Parameter const& parameter, json const& argument, Reader const& read, Case& result) {
  bool const operand = parameter.type == Parameter::Type::tensor || parameter.type == Parameter::Type::tensors;
  if (argument.contains("tensor") || argument.contains("tensors")) {
    if (!operand) throw Unfit(std::format("{} is a tensor", parameter.name));
    for (auto const& key : argument.contains("tensors") ? argument["tensors"] : json::array({argument["tensor"]}))
      result.call.operands.push_back({read(key), {}});
  } else if (operand) {
    auto const& value = argument["value"];
    if (parameter.type == Parameter::Type::tensors && value.is_array() && value.empty()) return;
    result.call.operands.push_back({std::nullopt, value.is_null() ? ir::Scalar() : scalar(value)});
  } else {
    attribute(parameter, argument["value"], result.call.attrs);
  }
}

/// Attributes left out take the row's default, as its text form has it.
void take_default(Parameter const& parameter, ir::AttrReader& usual, Case& result) {
  using Type = Parameter::Type;
  switch (parameter.type) {
    case Type::tensor:
      result.call.operands.push_back({});
      return;
    case Type::tensors:
      return;
    case Type::wholes:
    case Type::sizes:
      result.call.attrs.with(usual.list());
      return;
    case Type::real:
      result.call.attrs.with_num(usual.num());
      return;
    case Type::reals:
      result.call.attrs.with(usual.number());
      for (auto n = result.call.attrs.ints.back().value; n-- > 0;) result.call.attrs.with_num(usual.num());
      return;
    case Type::text:
      result.call.attrs.with_text(usual.attrs.text);
      return;
    default:
      result.call.attrs.with(usual.number());
  }
}

/// The arguments, a method's first operand moved to where the function has it: x.where(condition, y) is where(condition, x, y).
json arguments(json const& golden, Reader const& read) {
  auto args = golden["args"];
  bool const method = golden["op"] == "where" && args.size() == 3 && args[1].contains("tensor") && read(args[1]["tensor"]).at.dtype == DType::boolean;
  if (method) std::swap(args[0], args[1]);
  return args;
}

bool drops(json const& kwargs) {
  auto const found = kwargs.find("dropout_p");
  return found != kwargs.end() && number(found->is_object() ? (*found)["value"] : *found) != 0;
}
Case bound_case(json const& original, Reader const& read) {
  json const golden = respelled(original, read);
  auto const& op = *row_of(golden["op"].get<std::string>());
  Case result;
  result.call.op = &op;
  result.call.text = golden.value("id", std::string(op.name));
  auto const& parameters = ir::signature(op).parameters;
  auto const args = arguments(golden, read);
  auto kwargs = golden["kwargs"];
  kwargs.erase("note");
  if (op.kind == ir::Kind::random || drops(kwargs)) throw Unfit("random");
  if (args.size() > parameters.size()) throw Unfit("more arguments than parameters");
  for (auto const& [name, value] : kwargs.items()) {
    auto const found = std::ranges::find(parameters, name, &Parameter::name);
    if (found == parameters.end()) throw Unfit("no parameter " + name);
    if (std::cmp_less(found - parameters.begin(), args.size())) throw Unfit("twice: " + name);
  }
  ir::Attrs const defaults = ir::default_attrs(op);
  ir::AttrReader usual{defaults};
  std::map<std::string, int> place;  // a tensor's key → graph input
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    auto const& parameter = parameters[k];
    Case skipped;
    std::size_t const before = result.call.operands.size();
    auto const named = kwargs.find(std::string(parameter.name));
    if (k < args.size()) {
      take(parameter, args[k], read, result), take_default(parameter, usual, skipped);
    } else if (named != kwargs.end()) {
      take(parameter, named->is_object() ? *named : json{{"value", *named}}, read, result), take_default(parameter, usual, skipped);
    } else {
      if (parameter.fallback.empty()) throw Unfit(std::format("{} is missing", parameter.name));
      take_default(parameter, usual, result);
    }
    if (before == result.call.operands.size()) continue;
    auto const& argument = k < args.size() ? args[k] : named != kwargs.end() ? *named : json();
    int input = static_cast<int>(std::ranges::count_if(result.call.operands.begin(), result.call.operands.begin() + static_cast<std::ptrdiff_t>(before),
                                                       [](auto const& o) { return o.tensor.has_value(); }));
    if (!argument.is_object()) continue;
    if (argument.contains("tensor")) place[argument["tensor"].get<std::string>()] = input;
    if (argument.contains("tensors"))
      for (auto const& key : argument["tensors"]) place[key.get<std::string>()] = input++;
  }
  auto const count = [&](json const& argument) {
    if (!argument.is_object()) return;
    auto const input = [&](json const& key) {  // one that became a number is no input
      auto const found = place.find(key.get<std::string>());
      return found == place.end() ? -1 : found->second;
    };
    if (argument.contains("tensor")) result.tensors.push_back(input(argument["tensor"]));
    if (argument.contains("tensors"))
      for (auto const& key : argument["tensors"]) result.tensors.push_back(input(key));
  };
  for (auto const& argument : original["args"]) count(argument);
  for (auto const& argument : original["kwargs"]) count(argument);
  return result;
}

void compare(std::string const& what, ir::Strided const& got, base::FileTensor const& wanted, double tolerance) {
  ir::Strided const expected{const_cast<std::byte*>(wanted.data.data()), wanted.dtype, wanted.shape, base::contiguous_strides(wanted.shape)};
  if (got.sizes != wanted.shape) {
    FAIL_CHECK(what << ": sizes " << base::to_string(got.sizes) << ", expected " << base::to_string(wanted.shape));
    return;
  }
  if (!base::is_real(wanted.dtype) && got.dtype != wanted.dtype)
    FAIL_CHECK(what << ": dtype " << base::info(got.dtype).name << ", expected " << base::info(wanted.dtype).name);
  auto const ours = support::reals(got), theirs = support::reals(expected);
  double const allowed = base::is_real(wanted.dtype) ? tolerance * support::scale_of(theirs) : 0, gap = support::distance(ours, theirs);
  if (!(gap <= allowed)) FAIL_CHECK(what << ": differs by " << gap << ", allowed " << allowed);
}

double tolerance_of(ir::OpDef const& op, json const& golden) {  // README of the golden files: long reductions and attention
  bool const attention = op.name == "scaled_dot_product_attention";
  return attention || golden.value("tag", "") == "long" ? 1e-4 : 2e-5;
}

/// The inputs that have a golden gradient, with its key.
std::vector<std::pair<int, std::string>> gradients_of(json const& golden, Case const& bound) {
  std::vector<std::pair<int, std::string>> list;
  if (golden.contains("grads") && golden["grads"].is_object())
    for (auto const& [name, key] : golden["grads"].items())
      list.emplace_back(bound.tensors.at(static_cast<std::size_t>(std::stoi(name.substr(2)))), key.get<std::string>());
  return list;
}
/// A call whose results' sizes depend on elements is evaluated at once: no graph holds it, and so no backend.
bool at_once(support::Call const& call) {
  return call.op->measured && support::says(support::caught([&] { support::graph_of(call); }), "depends on elements");
}

void check(json const& golden, base::SafetensorsFile const& file, DType real, Run const& run) {
  auto const bound = bound_case(golden, reader(file, real));
  auto const what = std::format("{} in {}", golden["id"].get<std::string>(), base::info(real).name);
  double const tolerance = tolerance_of(*bound.call.op, golden);
  auto const& outputs = golden["outputs"];
  auto const wanted = gradients_of(golden, bound);
  std::vector<int> wrt;
  for (auto const& [input, key] : wanted) wrt.push_back(input);
  std::vector<Array> cotangents;
  auto const cotangent = [&](DType dtype) {
    if (auto const next = cotangents.size(); base::is_real(dtype) && next < golden["cotangents"].size())
      cotangents.push_back(reader(file, dtype)(golden["cotangents"][next]));
  };
  std::vector<ir::Strided> results, gradients;
  ir::Evaluated forward, backward;  // what the results and the gradients point into
  support::AtOnce immediate;
  if (at_once(bound.call)) {
    if (!wrt.empty()) cotangent(real);
    immediate = support::run_at_once(bound.call, cotangents, wrt);
    immediate.results = results_of(golden, std::move(immediate.results));
    for (auto const& y : immediate.results) results.push_back(y.at);
    for (auto const& g : immediate.gradients) gradients.push_back(g.at);
  } else {
    auto const graph = support::graph_of(bound.call);
    auto inputs = support::inputs_of(bound.call);
    forward = run(graph, inputs);
    results = forward.outputs;
    if (!wrt.empty()) {
      for (int output : graph.outputs) cotangent(graph.values[static_cast<std::size_t>(output)].meta->dtype);
      for (auto const& given : cotangents) inputs.push_back(given.at);
      backward = run(support::gradient_graph(graph, wrt), inputs);
      gradients.assign(backward.outputs.begin() + 1, backward.outputs.end());
    }
  }
  if (results.size() != outputs.size()) {
    FAIL_CHECK(what << ": " << results.size() << " outputs, expected " << outputs.size());
    return;
  }
  for (std::size_t k = 0; k < outputs.size(); ++k)
    compare(std::format("{}: output {}", what, k), results[k], file.at(outputs[k].get<std::string>()), tolerance);
  for (std::size_t k = 0; k < wanted.size(); ++k)
    compare(std::format("{}: gradient of tensor {}", what, wrt[k]), gradients[k], file.at(wanted[k].second), tolerance);
}
}  // namespace

support::Call call_of(Json const& golden, ReadTensor const& read) { return bound_case(golden, read).call; }

void check_ops(std::string const& name, Run const& run) {
  auto const cases = load<json>(name + ".json", "cases");
  if (!cases) return;
  base::SafetensorsFile const tensors(file(name + ".safetensors"));
  Tally tally{.name = "golden " + name};
  std::set<std::string> unknown;
  std::string unfit;
  for (auto const& stated : *cases) {
    auto const golden = windows_form(stated);
    auto const op_name = golden["op"].get<std::string>();
    auto const id = golden["id"].get<std::string>();
    if (!row_of(op_name)) {
      unknown.insert(op_name);
      ++tally.skipped;
      continue;
    }
    try {
      for (auto const real : {DType::f64, DType::f32}) check(golden, tensors, real, run);
      ++tally.checked;
    } catch (Unfit const& reason) {
      unfit += std::format("  {}: {}\n", id, reason.what());
      ++tally.skipped;
    } catch (std::exception const& error) {
      FAIL_CHECK(id << ": " << std::string(error.what()));
    }
  }
  std::cout << "golden " << name << ": no row for";
  for (auto const& op : unknown) std::cout << ' ' << op;
  std::cout << "\ngolden " << name << ": calls that no signature takes:\n" << unfit;
}

}  // namespace golden
