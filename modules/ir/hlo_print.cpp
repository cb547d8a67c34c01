// A module as HLO text: regions become computations before the one that calls them, several results a tuple and its elements.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;

std::string text_of(Type const& type) {
  static constexpr std::string_view names[base::dtype_count] = {"f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "s64", "s32", "s16", "s8", "u8", "pred"};
  std::string text = std::string(names[static_cast<std::size_t>(type.dtype)]) + "[", layout;
  for (std::size_t d = 0; d < type.sizes.size(); ++d) {
    text += std::format("{}{}", d ? "," : "", type.sizes[d]);
    layout = std::format("{}{}{}", d, d ? "," : "", layout);
  }
  return text + "]" + (layout.empty() ? "" : "{" + layout + "}");
}
std::string tuple_text(std::span<Type const> types) {
  std::string text = "(";
  for (std::size_t k = 0; k < types.size(); ++k) text += (k ? ", " : "") + text_of(types[k]);
  return text + ")";
}
std::string list_of(Sizes const& list) {
  std::string text = "{";
  for (std::size_t k = 0; k < list.size(); ++k) text += std::format("{}{}", k ? "," : "", list[k]);
  return text + "}";
}
std::string crossed(Sizes const& list) {  // "2x3"
  std::string text;
  for (std::size_t k = 0; k < list.size(); ++k) text += std::format("{}{}", k ? "x" : "", list[k]);
  return text;
}
std::string elements_of(Literal const& literal) {
  auto const& type = literal.type;
  bool const real = base::is_real(type.dtype);
  std::size_t const given = real ? literal.reals.size() : literal.wholes.size();
  auto const element = [&](std::size_t k) {
    if (!real) return type.dtype == DType::boolean ? std::string(literal.wholes[k] ? "true" : "false") : std::format("{}", literal.wholes[k]);
    double const value = literal.reals[k];
    if (value != value) return std::string("nan");
    return type.dtype == DType::f64 ? std::format("{}", value) : std::format("{}", static_cast<float>(value));
  };
  std::string text;
  for (std::size_t k = 0; k < given; ++k) {
    std::size_t block = 1;
    if (k) text += ", ";
    for (std::size_t d = type.sizes.size(); d-- > 0 && k % (block *= static_cast<std::size_t>(type.sizes[d])) == 0;) text += '{';
    text += element(k);
    for (std::size_t d = type.sizes.size(), ended = 1; d-- > 0 && (k + 1) % (ended *= static_cast<std::size_t>(type.sizes[d])) == 0;) text += '}';
  }
  return text;
}
std::string identifier(std::string_view text) {
  std::string name;
  for (unsigned char const c : text) name += std::isalnum(c) || c == '_' || c == '-' || c == '.' ? static_cast<char>(c) : '_';
  return name.empty() || !(std::isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_') ? "_" + name : name;
}

Sizes const& sizes(Op const& op, std::string_view key) { return std::get<Sizes>(*op.find(key)); }
I number(Op const& op, std::string_view key) { return std::get<I>(*op.find(key)); }
Sizes sizes_or(Op const& op, std::string_view key, std::size_t rank) { return op.find(key) ? sizes(op, key) : Sizes(rank, 1); }

// "window={size=2x3 stride=1x2 pad=0_0x1_1}": what is usual is left out.
std::string window_text(Op const& op, Sizes const& size, std::string_view base_key, std::string_view window_key) {
  if (size.empty()) return {};
  std::string text = ", window={size=" + crossed(size);
  auto const add = [&](std::string_view word, std::string_view key) {
    auto const list = sizes_or(op, key, size.size());
    if (std::ranges::any_of(list, [](I n) { return n != 1; })) text += std::format(" {}={}", word, crossed(list));
  };
  add("stride", "window_strides");
  if (auto const* padding = op.find("padding")) {
    std::string ends;
    bool any = false;
    for (auto const& row : std::get<std::vector<Sizes>>(*padding)) {
      ends += std::format("{}{}_{}", ends.empty() ? "" : "x", row[0], row[1]);
      any = any || row[0] != 0 || row[1] != 0;
    }
    if (any) text += " pad=" + ends;
  }
  add("lhs_dilate", base_key);
  add("rhs_dilate", window_key);
  return text + "}";
}
std::string labels(Op const& op, std::string_view first, std::string_view second, std::string_view space, std::string_view marks) {
  auto const& places = sizes(op, space);
  std::string text(places.size() + 2, ' ');
  text[static_cast<std::size_t>(number(op, first))] = marks[0], text[static_cast<std::size_t>(number(op, second))] = marks[1];
  for (std::size_t k = 0; k < places.size(); ++k) text[static_cast<std::size_t>(places[k])] = static_cast<char>('0' + k);
  return text;
}

// HLO's word for an operation (where it is not StableHLO's with hyphens) and what follows its operands.
struct Form {
  std::string_view op, opcode;
  std::string (*rest)(Op const&, std::span<Type const> operands) = nullptr;
};
std::string dims_text(Op const& op, std::string_view key) { return ", dimensions=" + list_of(sizes(op, key)); }
constexpr Form forms[] = {
    {"chlo.erf", "erf"},
    {"iota", "iota", [](Op const& op, std::span<Type const>) { return std::format(", iota_dimension={}", number(op, "iota_dimension")); }},
    {"broadcast_in_dim", "broadcast", [](Op const& op, std::span<Type const>) { return dims_text(op, "broadcast_dimensions"); }},
    {"transpose", "transpose", [](Op const& op, std::span<Type const>) { return dims_text(op, "permutation"); }},
    {"reverse", "reverse", [](Op const& op, std::span<Type const>) { return dims_text(op, "dimensions"); }},
    {"reduce", "reduce", [](Op const& op, std::span<Type const>) { return dims_text(op, "dimensions"); }},
    {"concatenate", "concatenate", [](Op const& op, std::span<Type const>) { return std::format(", dimensions={{{}}}", number(op, "dimension")); }},
    {"compare", "compare", [](Op const& op, std::span<Type const>) { return ", direction=" + std::get<std::string>(*op.find("comparison_direction")); }},
    {"sort", "sort",
     [](Op const& op, std::span<Type const>) {
       return std::format(", dimensions={{{}}}{}", number(op, "dimension"), std::get<bool>(*op.find("is_stable")) ? ", is_stable=true" : "");
     }},
    {"slice", "slice",
     [](Op const& op, std::span<Type const>) {
       auto const &start = sizes(op, "start_indices"), &limit = sizes(op, "limit_indices"), &step = sizes(op, "strides");
       std::string text;
       for (std::size_t d = 0; d < start.size(); ++d)
         text += std::format("{}[{}:{}{}]", d ? ", " : "", start[d], limit[d], step[d] == 1 ? "" : std::format(":{}", step[d]));
       return ", slice={" + text + "}";
     }},
    {"pad", "pad",
     [](Op const& op, std::span<Type const>) {
       auto const &low = sizes(op, "edge_padding_low"), &high = sizes(op, "edge_padding_high"), &between = sizes(op, "interior_padding");
       std::string text;
       for (std::size_t d = 0; d < low.size(); ++d)
         text += std::format("{}{}_{}{}", d ? "x" : "", low[d], high[d], between[d] ? std::format("_{}", between[d]) : "");
       return ", padding=" + text;
     }},
    {"dot_general", "dot",
     [](Op const& op, std::span<Type const>) {
       auto const &left = sizes(op, "lhs_batching_dimensions"), &right = sizes(op, "rhs_batching_dimensions");
       return std::format("{}, lhs_contracting_dims={}{}, rhs_contracting_dims={}", left.empty() ? "" : ", lhs_batch_dims=" + list_of(left),
                          list_of(sizes(op, "lhs_contracting_dimensions")), right.empty() ? "" : ", rhs_batch_dims=" + list_of(right),
                          list_of(sizes(op, "rhs_contracting_dimensions")));
     }},
    {"convolution", "convolution",
     [](Op const& op, std::span<Type const> operands) {
       Sizes size;
       for (auto const dim : sizes(op, "kernel_spatial_dimensions")) size.push_back(operands[1].sizes[static_cast<std::size_t>(dim)]);
       I const groups = number(op, "feature_group_count"), batches = number(op, "batch_group_count");
       return std::format("{}, dim_labels={}_{}->{}{}{}", window_text(op, size, "lhs_dilation", "rhs_dilation"),
                          labels(op, "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions", "bf"),
                          labels(op, "kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions", "oi"),
                          labels(op, "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions", "bf"),
                          groups == 1 ? "" : std::format(", feature_group_count={}", groups), batches == 1 ? "" : std::format(", batch_group_count={}", batches));
     }},
    {"reduce_window", "reduce-window",
     [](Op const& op, std::span<Type const>) { return window_text(op, sizes(op, "window_dimensions"), "base_dilations", "window_dilations"); }},
    {"gather", "gather",
     [](Op const& op, std::span<Type const>) {
       return std::format(", offset_dims={}, collapsed_slice_dims={}, start_index_map={}, index_vector_dim={}, slice_sizes={}", list_of(sizes(op, "offset_dims")),
                          list_of(sizes(op, "collapsed_slice_dims")), list_of(sizes(op, "start_index_map")), number(op, "index_vector_dim"),
                          list_of(sizes(op, "slice_sizes")));
     }},
    {"scatter", "scatter",
     [](Op const& op, std::span<Type const>) {
       return std::format(", update_window_dims={}, inserted_window_dims={}, scatter_dims_to_operand_dims={}, index_vector_dim={}",
                          list_of(sizes(op, "update_window_dims")), list_of(sizes(op, "inserted_window_dims")),
                          list_of(sizes(op, "scatter_dims_to_operand_dims")), number(op, "index_vector_dim"));
     }},
};

struct Printer {
  std::string computations{};
  int regions = 0;

  // The lines of one computation, its regions' computations before it.
  void computation(Function const& function, std::string const& head, bool entry) {
    std::vector<std::string> names;
    std::vector<Type> types;
    std::string body;
    auto const name = [&](int value, std::string text, Type const& type) {
      auto const at = static_cast<std::size_t>(value);
      if (names.size() <= at) names.resize(at + 1), types.resize(at + 1);
      names[at] = std::move(text), types[at] = type;
    };
    auto const named = [&](int value) { return names[static_cast<std::size_t>(value)]; };
    int const root = entry || function.returns.empty() ? -1 : function.returns[0];
    for (std::size_t k = 0; k < function.parameters.size(); ++k) {
      int const value = function.parameters[k];
      bool const given = k < function.names.size() && !function.names[k].empty();
      name(value, std::format("{}.{}", given ? identifier(function.names[k]) : "arg", value), function.types[k]);
      body += std::format("  {}{} = {} parameter({})\n", value == root ? "ROOT " : "", named(value), text_of(function.types[k]), k);
    }
    for (auto const& op : function.ops) {
      auto const* form = std::ranges::find(forms, std::string_view(op.name), &Form::op);
      auto opcode = form == std::end(forms) ? op.name : std::string(form->opcode);
      std::ranges::replace(opcode, '_', '-');
      std::vector<Type> operand_types;
      std::string operands, rest;
      for (int const operand : op.operands) {
        operands += (operands.empty() ? "" : ", ") + named(operand);
        operand_types.push_back(types[static_cast<std::size_t>(operand)]);
      }
      if (op.name == "constant") operands = elements_of(std::get<Literal>(*op.find("value")));
      if (form != std::end(forms) && form->rest) rest = form->rest(op, operand_types);
      for (auto const& region : op.regions) {
        auto const called = std::format("region_{}", regions++);
        computation(region, called, false);
        rest += ", to_apply=" + called;
      }
      auto const line = std::format("{}.{}", opcode, op.results[0]);
      if (op.results.size() == 1) {
        name(op.results[0], line, op.types[0]);
        body += std::format("  {}{} = {} {}({}){}\n", op.results[0] == root ? "ROOT " : "", line, text_of(op.types[0]), opcode, operands, rest);
        continue;
      }
      body += std::format("  {} = {} {}({}){}\n", line, tuple_text(op.types), opcode, operands, rest);
      for (std::size_t k = 0; k < op.results.size(); ++k) {
        name(op.results[k], std::format("{}.{}", line, k), op.types[k]);
        body += std::format("  {} = {} get-tuple-element({}), index={}\n", named(op.results[k]), text_of(op.types[k]), line, k);
      }
    }
    if (entry) {
      std::string results;
      std::vector<Type> result_types;
      for (int const value : function.returns) {
        results += (results.empty() ? "" : ", ") + named(value);
        result_types.push_back(types[static_cast<std::size_t>(value)]);
      }
      body += std::format("  ROOT results = {} tuple({})\n", tuple_text(result_types), results);
      auto const parameters = tuple_text(function.types), outputs = tuple_text(result_types);
      computations = std::format("HloModule {}, entry_computation_layout={{{}->{}}}\n\n{}", head, parameters, outputs, computations);
    }
    computations += std::format("{} {{\n{}}}\n{}", entry ? "ENTRY main" : head, body, entry ? "" : "\n");
  }
};
}  // namespace

std::string print_hlo(Module const& module) {
  auto const main = std::ranges::find(module.functions, "main", &Function::name);
  base::ensure(main != module.functions.end(), "a module without main");
  Printer printer;
  printer.computation(*main, identifier(module.name), true);
  return printer.computations;
}

}  // namespace tenon::ir::hlo
