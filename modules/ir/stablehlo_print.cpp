// A module as StableHLO's MLIR text: short forms where StableHLO has one, `"stablehlo.op"(…) <{…}>` for the others.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;

std::string_view element_name(DType dtype) {
  static constexpr std::string_view names[base::dtype_count] = {"f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E5M2", "i64", "i32", "i16", "i8", "ui8", "i1"};
  return names[static_cast<std::size_t>(dtype)];
}
std::string text_of(Type const& type) {
  std::string text = "tensor<";
  for (auto const size : type.sizes) text += std::format("{}x", size);
  return text + std::string(element_name(type.dtype)) + ">";
}
std::string list_of(Sizes const& list) {
  std::string text = "[";
  for (std::size_t k = 0; k < list.size(); ++k) text += std::format("{}{}", k ? ", " : "", list[k]);
  return text + "]";
}
std::string matrix_of(std::vector<Sizes> const& rows) {
  std::string text = "[";
  for (std::size_t k = 0; k < rows.size(); ++k) text += (k ? ", " : "") + list_of(rows[k]);
  return text + "]";
}

// A number as MLIR reads it back exactly: with a point; NaN and infinities by their bits.
std::string real_text(double value, DType dtype) {
  if (!std::isfinite(value)) {
    std::array<std::byte, 8> element{};
    base::store_real(dtype, element.data(), value);
    return std::format("0x{:0{}X}", std::bit_cast<std::uint64_t>(element), 2 * base::bytes_of(dtype));
  }
  auto text = dtype == DType::f64 ? std::format("{}", value) : std::format("{}", static_cast<float>(value));
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}
std::string elements_of(Literal const& literal) {
  auto const& type = literal.type;
  bool const real = base::is_real(type.dtype);
  std::size_t const given = real ? literal.reals.size() : literal.wholes.size();
  auto const element = [&](std::size_t k) {
    if (real) return real_text(literal.reals[k], type.dtype);
    return type.dtype == DType::boolean ? std::string(literal.wholes[k] ? "true" : "false") : std::format("{}", literal.wholes[k]);
  };
  std::string text = "dense<";
  if (given == 1) {
    text += element(0);
  } else {
    for (std::size_t k = 0; k < given; ++k) {
      std::size_t block = 1, depth = 0;  // dims that start, and end, with this element
      for (std::size_t d = type.sizes.size(); d-- > 0 && k % (block *= static_cast<std::size_t>(type.sizes[d])) == 0;) ++depth;
      text += (k ? ", " : "") + std::string(depth, '[') + element(k);
      for (std::size_t d = type.sizes.size(), ended = 1; d-- > 0 && (k + 1) % (ended *= static_cast<std::size_t>(type.sizes[d])) == 0;) text += ']';
    }
  }
  return text + "> : " + text_of(type);
}
std::string attribute_text(Attribute const& attribute) {
  struct Visitor {
    std::string operator()(I number) const { return std::format("{} : i64", number); }
    std::string operator()(double number) const { return real_text(number, DType::f64) + " : f64"; }
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(std::string const& words) const { return ir::quoted(words); }
    std::string operator()(Sizes const& list) const {
      auto const numbers = list_of(list);
      return list.empty() ? "array<i64>" : "array<i64: " + numbers.substr(1, numbers.size() - 2) + ">";
    }
    std::string operator()(std::vector<Sizes> const& rows) const {
      return std::format("dense<{}> : tensor<{}x{}xi64>", rows.empty() ? "" : matrix_of(rows), rows.size(), rows.empty() ? 2 : rows[0].size());
    }
    std::string operator()(Literal const& literal) const { return elements_of(literal); }
  };
  return std::visit(Visitor{}, attribute);
}
// "offset_dims = [1], index_vector_dim = 1", empty lists left out.
std::string numbers_text(Op const& op, std::initializer_list<std::string_view> keys) {
  std::string text;
  for (auto const key : keys) {
    auto const* attribute = op.find(key);
    auto const* list = attribute ? std::get_if<Sizes>(attribute) : nullptr;
    if (!attribute || (list && list->empty())) continue;
    text += std::format("{}{} = {}", text.empty() ? "" : ", ", key, list ? list_of(*list) : std::format("{}", std::get<I>(*attribute)));
  }
  return text;
}

struct Printer {
  std::vector<std::string> names{};  ///< of the values, numbered over the function
  std::vector<Type> types{};
  std::string out{};
  int results = 0, arguments = 0;  ///< named so far, in order of appearance

  void name(int value, std::string text, Type const& type) {
    auto const at = static_cast<std::size_t>(value);
    if (names.size() <= at) names.resize(at + 1), types.resize(at + 1);
    names[at] = std::move(text), types[at] = type;
  }
  std::string const& name(int value) const { return names[static_cast<std::size_t>(value)]; }
  std::string type(int value) const { return text_of(types[static_cast<std::size_t>(value)]); }
  std::string list(std::span<int const> values) const {
    std::string text;
    for (auto const value : values) text += (text.empty() ? "" : ", ") + name(value);
    return text;
  }
  std::string type_list(std::span<int const> values) const {
    std::string text;
    for (auto const value : values) text += (text.empty() ? "" : ", ") + type(value);
    return text;
  }
  std::string signature(Op const& op) const {
    auto const results = type_list(op.results);
    return "(" + type_list(op.operands) + ") -> " + (op.results.size() == 1 ? results : "(" + results + ")");
  }
  void body(Function const& function, std::string const& indent, std::string_view leave);
  void region(Function const& function, std::string const& indent);
  void operation(Op const& op, std::string const& indent);
};

Sizes const& sizes(Op const& op, std::string_view key) { return std::get<Sizes>(*op.find(key)); }
I number(Op const& op, std::string_view key) { return std::get<I>(*op.find(key)); }
std::string words(Op const& op, std::string_view key) { return std::get<std::string>(*op.find(key)); }

// How the dims of one side stand: "b, f, 0, 1".
std::string layout(Op const& op, std::string_view first, std::string_view second, std::string_view space, std::string_view marks) {
  auto const& places = sizes(op, space);
  std::vector<std::string> dims(places.size() + 2);
  dims[static_cast<std::size_t>(number(op, first))] = marks[0], dims[static_cast<std::size_t>(number(op, second))] = marks[1];
  for (std::size_t k = 0; k < places.size(); ++k) dims[static_cast<std::size_t>(places[k])] = std::format("{}", k);
  std::string text;
  for (auto const& dim : dims) text += (text.empty() ? "[" : ", ") + dim;
  return text + "]";
}

// Operations with a form of their own; each gives what stands behind the result's name.
struct Form {
  std::string_view op;
  std::string (*text)(Printer const&, Op const&);
};
constexpr Form forms[] = {
    {"constant", [](Printer const&, Op const& op) { return "stablehlo.constant " + elements_of(std::get<Literal>(*op.find("value"))); }},
    {"iota", [](Printer const&, Op const& op) { return std::format("stablehlo.iota dim = {} : {}", number(op, "iota_dimension"), text_of(op.types[0])); }},
    {"convert", [](Printer const& p, Op const& op) { return std::format("stablehlo.convert {} : {}", p.list(op.operands), p.signature(op)); }},
    {"reshape", [](Printer const& p, Op const& op) { return std::format("stablehlo.reshape {} : {}", p.list(op.operands), p.signature(op)); }},
    {"select",
     [](Printer const& p, Op const& op) {
       return std::format("stablehlo.select {} : {}, {}", p.list(op.operands), p.type(op.operands[0]), p.type(op.operands[1]));
     }},
    {"broadcast_in_dim",
     [](Printer const& p, Op const& op) {
       return std::format("stablehlo.broadcast_in_dim {}, dims = {} : {}", p.list(op.operands), list_of(sizes(op, "broadcast_dimensions")), p.signature(op));
     }},
    {"transpose",
     [](Printer const& p, Op const& op) {
       return std::format("stablehlo.transpose {}, dims = {} : {}", p.list(op.operands), list_of(sizes(op, "permutation")), p.signature(op));
     }},
    {"reverse",
     [](Printer const& p, Op const& op) {
       return std::format("stablehlo.reverse {}, dims = {} : {}", p.list(op.operands), list_of(sizes(op, "dimensions")), p.type(op.operands[0]));
     }},
    {"concatenate",
     [](Printer const& p, Op const& op) { return std::format("stablehlo.concatenate {}, dim = {} : {}", p.list(op.operands), number(op, "dimension"), p.signature(op)); }},
    {"slice",
     [](Printer const& p, Op const& op) {
       auto const &start = sizes(op, "start_indices"), &limit = sizes(op, "limit_indices"), &step = sizes(op, "strides");
       std::string text;
       for (std::size_t d = 0; d < start.size(); ++d)
         text += std::format("{}{}:{}{}", d ? ", " : "", start[d], limit[d], step[d] == 1 ? "" : std::format(":{}", step[d]));
       return std::format("stablehlo.slice {} [{}] : {}", p.list(op.operands), text, p.signature(op));
     }},
    {"pad",
     [](Printer const& p, Op const& op) {
       return std::format("stablehlo.pad {}, low = {}, high = {}, interior = {} : {}", p.list(op.operands), list_of(sizes(op, "edge_padding_low")),
                          list_of(sizes(op, "edge_padding_high")), list_of(sizes(op, "interior_padding")), p.signature(op));
     }},
    {"compare",
     [](Printer const& p, Op const& op) {
       auto const* type = op.find("compare_type");
       return std::format("stablehlo.compare {}, {}{} : {}", words(op, "comparison_direction"), p.list(op.operands),
                          type ? ", " + std::get<std::string>(*type) : std::string(), p.signature(op));
     }},
    {"dot_general",
     [](Printer const& p, Op const& op) {
       auto const &left = sizes(op, "lhs_batching_dimensions"), &right = sizes(op, "rhs_batching_dimensions");
       auto const batch = left.empty() ? std::string() : std::format(", batching_dims = {} x {}", list_of(left), list_of(right));
       return std::format("stablehlo.dot_general {}{}, contracting_dims = {} x {} : {}", p.list(op.operands), batch,
                          list_of(sizes(op, "lhs_contracting_dimensions")), list_of(sizes(op, "rhs_contracting_dimensions")), p.signature(op));
     }},
    {"convolution",
     [](Printer const& p, Op const& op) {
       return std::format(
           "stablehlo.convolution({}) dim_numbers = {}x{}->{}, window = {{stride = {}, pad = {}, lhs_dilate = {}, rhs_dilate = {}}} {{batch_group_count = {} : "
           "i64, feature_group_count = {} : i64}} : {}",
           p.list(op.operands), layout(op, "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions", "bf"),
           layout(op, "kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions", "oi"),
           layout(op, "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions", "bf"), list_of(sizes(op, "window_strides")),
           matrix_of(std::get<std::vector<Sizes>>(*op.find("padding"))), list_of(sizes(op, "lhs_dilation")), list_of(sizes(op, "rhs_dilation")),
           number(op, "batch_group_count"), number(op, "feature_group_count"), p.signature(op));
     }},
    {"reduce",
     [](Printer const& p, Op const& op) {
       return std::format("stablehlo.reduce({} init: {}) applies stablehlo.{} across dimensions = {} : {}", p.name(op.operands[0]), p.name(op.operands[1]),
                          op.regions[0].ops[0].name, list_of(sizes(op, "dimensions")), p.signature(op));
     }},
    {"gather",
     [](Printer const& p, Op const& op) {
       auto const slices = attribute_text(*op.find("slice_sizes"));
       return std::format("\"stablehlo.gather\"({}) <{{dimension_numbers = #stablehlo.gather<{}>, indices_are_sorted = false, slice_sizes = {}}}> : {}",
                          p.list(op.operands),
                          numbers_text(op, {"offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map",
                                            "index_vector_dim"}),
                          slices, p.signature(op));
     }},
    {"scatter",
     [](Printer const& p, Op const& op) {
       return std::format("\"stablehlo.scatter\"({}) <{{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{}>, unique_indices = false}}>",
                          p.list(op.operands),
                          numbers_text(op, {"update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
                                            "scatter_dims_to_operand_dims", "index_vector_dim"}));
     }},
};

// One operation on both parameters, which `reduce` may say in one word.
bool is_word(Op const& op) {
  if (op.operands.size() != 2 || op.regions.size() != 1) return false;
  auto const& region = op.regions[0];
  return region.ops.size() == 1 && region.parameters.size() == 2 && region.ops[0].operands == region.parameters && region.ops[0].attributes.empty() &&
         region.returns == region.ops[0].results;
}

void Printer::operation(Op const& op, std::string const& indent) {
  auto const number = op.results.empty() ? std::string() : std::format("%{}", results++);
  for (std::size_t k = 0; k < op.results.size(); ++k) name(op.results[k], op.results.size() == 1 ? number : std::format("{}#{}", number, k), op.types[k]);
  out += indent;
  if (op.results.size() == 1) out += number + " = ";
  if (op.results.size() > 1) out += std::format("{}:{} = ", number, op.results.size());
  auto const* form = std::ranges::find(forms, std::string_view(op.name), &Form::op);
  auto const full = op.name.find('.') == std::string::npos ? "stablehlo." + op.name : op.name;
  if (form != std::end(forms) && (op.name != "reduce" || is_word(op))) {
    out += form->text(*this, op);
    if (op.name == "scatter") out += " (", region(op.regions[0], indent), out += ") : " + signature(op);
  } else if (op.attributes.empty() && op.regions.empty()) {
    out += std::format("{} {} : {}", full, list(op.operands), type(op.operands[0]));
    if (op.name == "chlo.erf" || op.name == "chlo.erfc") out += " -> " + text_of(op.types[0]);
  } else {
    out += std::format("\"{}\"({}) <{{", full, list(op.operands));
    for (bool first = true; auto const& [key, value] : op.attributes) out += std::format("{}{} = {}", std::exchange(first, false) ? "" : ", ", key, attribute_text(value));
    out += "}>";
    for (std::size_t k = 0; k < op.regions.size(); ++k) out += k ? ", " : " (", region(op.regions[k], indent);
    out += std::format("{} : {}", op.regions.empty() ? "" : ")", signature(op));
  }
  out += "\n";
}
void Printer::region(Function const& function, std::string const& indent) {
  out += "{\n";
  if (!function.parameters.empty()) out += indent + "^bb0(";
  for (std::size_t k = 0; k < function.parameters.size(); ++k) {
    name(function.parameters[k], std::format("%arg{}", arguments++), function.types[k]);
    out += std::format("{}{}: {}", k ? ", " : "", name(function.parameters[k]), text_of(function.types[k]));
  }
  if (!function.parameters.empty()) out += "):\n";
  body(function, indent + "  ", "stablehlo.return");
  out += indent + "}";
}
void Printer::body(Function const& function, std::string const& indent, std::string_view leave) {
  for (auto const& op : function.ops) operation(op, indent);
  out += indent + std::string(leave);
  if (!function.returns.empty()) out += std::format(" {} : {}", list(function.returns), type_list(function.returns));
  out += "\n";
}
std::string symbol(std::string_view text) {
  bool const plain = !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '_'; }) && !std::isdigit(static_cast<unsigned char>(text[0]));
  return "@" + (plain ? std::string(text) : ir::quoted(text));
}
}  // namespace

std::string print_stablehlo(Module const& module) {
  std::string text = std::format("module {} {{\n", symbol(module.name));
  for (auto const& function : module.functions) {
    Printer printer;
    std::string parameters;
    for (std::size_t k = 0; k < function.parameters.size(); ++k) {
      printer.name(function.parameters[k], std::format("%arg{}", printer.arguments++), function.types[k]);
      parameters += std::format("{}{}: {}", k ? ", " : "", printer.name(function.parameters[k]), text_of(function.types[k]));
    }
    printer.body(function, "    ", "return");
    auto const results = printer.type_list(function.returns);
    text += std::format("  func.func {} {}({}){} {{\n{}  }}\n", function.name == "main" ? "public" : "private", symbol(function.name), parameters,
                        function.returns.empty() ? "" : function.returns.size() == 1 ? " -> " + results : " -> (" + results + ")", printer.out);
  }
  return text + "}\n";
}

}  // namespace tenon::ir::hlo
