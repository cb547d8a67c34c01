#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_forms_windows.hpp"
#include "golden_ops.hpp"
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Parameter;
using json = nlohmann::ordered_json;  // tensors among keywords count in the order in which they stand
using support::Array;

namespace golden {
namespace {

/// A call that the row's signature can't take.
struct Unfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Case {
  support::Call call;
  std::vector<int> tensors;  ///< tensor argument K of the golden call → graph input
};

/// Reads tensors of the file, floating ones as `real`.
struct Reader {
  base::SafetensorsFile const& file;
  DType real;
  Array operator()(json const& key) const {
    auto const& stored = file.at(key.get<std::string>());
    ir::Strided const view{const_cast<std::byte*>(stored.data.data()), stored.dtype, stored.shape, base::contiguous_strides(stored.shape)};
    return support::converted(view, base::is_real(stored.dtype) ? real : stored.dtype);
  }
};

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
  bool const method =
      golden["op"] == "where" && args.size() == 3 && args[1].contains("tensor") && read.file.at(args[1]["tensor"].get<std::string>()).dtype == DType::boolean;
  if (method) std::swap(args[0], args[1]);
  return args;
}

Case bind(ir::OpDef const& op, json const& golden, Reader const& read) {
  Case result;
  result.call.op = &op;
  result.call.text = golden["id"].get<std::string>();
  auto const& parameters = ir::signature(op).parameters;
  auto const args = arguments(golden, read);
  auto kwargs = golden["kwargs"];
  kwargs.erase("note");
  if (op.kind == ir::Kind::random || kwargs.value("dropout_p", 0.0) != 0) throw Unfit("random");
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
    if (argument.contains("tensor")) result.tensors.push_back(place.at(argument["tensor"].get<std::string>()));
    if (argument.contains("tensors"))
      for (auto const& key : argument["tensors"]) result.tensors.push_back(place.at(key.get<std::string>()));
  };
  for (auto const& argument : golden["args"]) count(argument);
  for (auto const& argument : golden["kwargs"]) count(argument);
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

void check(json const& golden, ir::OpDef const& op, base::SafetensorsFile const& file, DType real, Run const& run) {
  Reader const read{file, real};
  auto const bound = bind(op, golden, read);
  auto const graph = support::graph_of(bound.call);
  auto const what = std::format("{} in {}", golden["id"].get<std::string>(), base::info(real).name);
  double const tolerance = tolerance_of(op, golden);
  auto inputs = support::inputs_of(bound.call);
  auto const forward = run(graph, inputs);
  auto const& outputs = golden["outputs"];
  if (forward.outputs.size() != outputs.size()) {
    FAIL_CHECK(what << ": " << forward.outputs.size() << " outputs, expected " << outputs.size());
    return;
  }
  for (std::size_t k = 0; k < outputs.size(); ++k)
    compare(std::format("{}: output {}", what, k), forward.outputs[k], file.at(outputs[k].get<std::string>()), tolerance);
  if (!golden.contains("grads") || golden["grads"].empty()) return;
  std::vector<int> wrt;
  std::vector<std::string> keys;
  for (auto const& [name, key] : golden["grads"].items()) {
    wrt.push_back(bound.tensors.at(static_cast<std::size_t>(std::stoi(name.substr(2)))));
    keys.push_back(key.get<std::string>());
  }
  std::vector<Array> cotangents;
  std::size_t next = 0;
  for (int output : graph.outputs)
    if (auto const dtype = graph.values[static_cast<std::size_t>(output)].meta->dtype; base::is_real(dtype) && next < golden["cotangents"].size())
      cotangents.push_back(support::converted(Reader{file, dtype}(golden["cotangents"][next++]).at, dtype));
  for (auto const& cotangent : cotangents) inputs.push_back(cotangent.at);
  auto const backward = run(support::gradient_graph(graph, wrt), inputs);
  for (std::size_t k = 0; k < keys.size(); ++k)
    compare(std::format("{}: gradient of tensor {}", what, wrt[k]), backward.outputs[k + 1], file.at(keys[k]), tolerance);
}
}  // namespace

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
    auto const* op = ir::find_op(op_name);
    if (!op) {
      unknown.insert(op_name);
      ++tally.skipped;
      continue;
    }
    try {
      for (auto const real : {DType::f64, DType::f32}) check(golden, *op, tensors, real, run);
      ++tally.checked;
    } catch (Unfit const& reason) {
      unfit += std::format("  {}: {}\n", id, reason.what());
      ++tally.skipped;
    } catch (std::exception const& error) {
      if (support::says(error.what(), "depends on elements")) {  // the size of a result: no graph holds such a call
        unfit += std::format("  {}: {}\n", id, error.what());
        ++tally.skipped;
        continue;
      }
      FAIL_CHECK(id << ": " << std::string(error.what()));
    }
  }
  std::cout << "golden " << name << ": no row for";
  for (auto const& op : unknown) std::cout << ' ' << op;
  std::cout << "\ngolden " << name << ": calls that no signature takes:\n" << unfit;
}

}  // namespace golden
