// Elements of ops as C: one walk over the row's source text, with tables of names.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :c_text;

namespace tenon::fusion {
using base::DType;

namespace {

/// Texts that replace a row's source: of floats where the prelude does better, of whole numbers where C's own arithmetic would overflow or trap.
struct Override {
  std::string_view op, real{}, whole{};
};
constexpr std::array overrides{
    Override{.op = "gelu", .real = "({a0} == 0 ? 0.5 * {0} * (1 + erf({0} * 0.7071067811865476)) : tn_gelu_tanh({0}))"},
    Override{.op = "sigmoid", .real = "tn_sigmoid({0})"},
    Override{.op = "silu", .real = "({0} * tn_sigmoid({0}))"},
    Override{.op = "floor", .whole = "{0}"},
    Override{.op = "ceil", .whole = "{0}"},
    Override{.op = "trunc", .whole = "{0}"},
    Override{.op = "round", .whole = "{0}"},
    Override{.op = "neg", .whole = "tn_neg_i64({0})"},
    Override{.op = "abs", .whole = "tn_abs_i64({0})"},
    Override{.op = "square", .whole = "tn_mul_i64({0}, {0})"},
    Override{.op = "add", .whole = "tn_add_i64({0}, tn_mul_i64({a0}, {1}))"},
    Override{.op = "sub", .whole = "tn_sub_i64({0}, tn_mul_i64({a0}, {1}))"},
    Override{.op = "mul", .whole = "tn_mul_i64({0}, {1})"},
    Override{.op = "pow", .whole = "tn_pow_i64({0}, {1})"},
    Override{.op = "fmod", .whole = "tn_fmod_i64({0}, {1})"},
    Override{.op = "remainder", .whole = "tn_remainder_i64({0}, {1})"},
    Override{.op = "floor_divide", .whole = "tn_floordiv_i64({0}, {1})"},
    Override{.op = "bitwise_and", .whole = "({0} & {1})"},
    Override{.op = "bitwise_or", .whole = "({0} | {1})"},
    Override{.op = "bitwise_xor", .whole = "({0} ^ {1})"},
};

/// Functions that the prelude has for floats; all others are the compiler's, which knows those of <math.h> under these names.
constexpr std::array<std::string_view, 11> own_functions{"exp", "expm1", "log", "log1p", "log2", "tanh", "erf", "erfc", "sin", "cos", "pow"};
/// Functions that a whole number passes through.
constexpr std::array<std::string_view, 5> roundings{"floor", "ceil", "trunc", "rint", "round"};

bool contains(std::span<std::string_view const> names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }
bool is_letter(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool is_word(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c) || c == '.'; });
}
/// A text that may stand beside any operator.
std::string closed(std::string const& text) { return is_word(text) ? text : "(" + text + ")"; }

/// The number that a text begins with and what follows it; NaN if it begins with none.
std::pair<double, std::string> leading_number(std::string_view text) {
  std::string const copy(text);
  char* end = nullptr;
  double const value = std::strtod(copy.c_str(), &end);
  return {end == copy.c_str() ? std::numeric_limits<double>::quiet_NaN() : value, end};
}

std::string function_name(std::string_view name, DType compute) {
  if (name.starts_with("tn_")) return std::string(name);
  if (compute == DType::i64) {
    if (name == "fabs") return "tn_abs_i64";
    return contains(roundings, name) ? "" : std::format("(tn_i64)__builtin_{}", name);
  }
  if (compute == DType::f64) return std::format("__builtin_{}", name);
  return contains(own_functions, name) ? std::format("tn_{}", name) : std::format("__builtin_{}f", name);
}

std::string real_text(double value, DType compute) {
  bool const narrow = compute == DType::f32;
  std::string_view const suffix = narrow ? "f" : "";
  if (narrow) value = static_cast<double>(static_cast<float>(value));
  if (std::isnan(value)) return std::format("__builtin_nan{}(\"\")", suffix);
  if (std::isinf(value)) return std::format("{}__builtin_inf{}()", value < 0 ? "-" : "", suffix);
  std::string text = narrow ? std::format("{}", static_cast<float>(value)) : std::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text.append(suffix);
}

std::string whole_text(std::int64_t value) {
  if (value == std::numeric_limits<std::int64_t>::min()) return "(-9223372036854775807LL - 1)";
  bool const plain = std::numeric_limits<std::int32_t>::min() < value && value <= std::numeric_limits<std::int32_t>::max();
  return std::format("{}{}", value, plain ? "" : "LL");
}

/// A literal of a source, which may be whole ("1", as C has it) or real ("0.5", "9e18").
std::string literal(std::string_view text, DType compute, ir::OpDef const& op) {
  if (text.find_first_of(".eE") == std::string_view::npos) return std::string(text);
  if (compute != DType::i64) return std::format("{}{}", text, compute == DType::f32 ? "f" : "");
  double const value = leading_number(text).first;
  base::ensure(value == std::trunc(value) && std::fabs(value) < 0x1p63,
               std::format("{}: its source has {} in it and cannot be computed over whole numbers", op.name, text));
  return whole_text(static_cast<std::int64_t>(value));
}

/// Where a source is "({a0} == 1 ? x : y)" and the attribute is a number, the arm that it selects.
std::string_view selected_arm(std::string_view source, std::span<std::string const> attributes) {
  auto const question = source.find(" ? ");
  if (!source.starts_with("({a") || question == std::string_view::npos) return source;
  auto const close = source.find('}'), sign = source.find(" == ");
  if (sign != close + 1 || sign > question) return source;
  std::size_t attribute = 0;
  std::from_chars(source.data() + 3, source.data() + close, attribute);
  auto const wanted = leading_number(source.substr(sign + 4, question - sign - 4));
  if (attribute >= attributes.size() || !is_word(attributes[attribute]) || !wanted.second.empty()) return source;
  double const actual = leading_number(attributes[attribute]).first;
  if (actual != actual) return source;  // a name
  int depth = 0;
  for (std::size_t at = question + 3; at < source.size(); ++at) {
    depth += source[at] == '(' ? 1 : source[at] == ')' ? -1 : 0;
    if (depth != 0 || !source.substr(at).starts_with(" : ")) continue;
    return actual == wanted.first ? source.substr(question + 3, at - question - 3) : source.substr(at + 3, source.size() - at - 4);
  }
  return source;
}

/// The source with its names, numbers, operands and attributes in place.
struct Writer {
  ir::OpDef const& op;
  std::string_view source;
  std::span<std::string const> attributes, operands;
  DType compute;
  std::string text{};
  std::size_t at = 0;

  std::string_view take(auto belongs) {
    auto const start = at;
    while (at < source.size() && belongs(source[at])) ++at;
    return source.substr(start, at - start);
  }
  void place() {
    bool const attribute = source[at + 1] == 'a';
    auto const end = source.find('}', at);
    std::size_t number = 0;
    std::from_chars(source.data() + at + 1 + attribute, source.data() + end, number);
    auto const& values = attribute ? attributes : operands;
    base::ensure(end != std::string_view::npos && number < values.size(),
                 std::format("{}: its source names {} {}, the call has {}", op.name, attribute ? "attribute" : "operand", number, values.size()));
    at = end + 1;
    bool const one = attribute && (values[number] == "1" || values[number] == "1.0" || values[number] == "1.0f");
    bool const first = text.ends_with("(") || text.ends_with("+ ") || text.ends_with("- ");
    if (one && first && source.substr(at).starts_with(" * "))
      at += 3;  // "x + 1 * y" reads better as "x + y" and is the same
    else
      text += closed(values[number]);
  }
  void word() {
    auto const name = take([](char c) { return is_letter(c) || is_digit(c); });
    if (at < source.size() && source[at] == '(')
      text += function_name(name, compute);
    else if (name == "INFINITY" || name == "NAN")
      text += real_text(name == "NAN" ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity(), compute);
    else
      text += name;
  }
  void number() {
    text +=
        literal(take([&](char c) { return is_digit(c) || c == '.' || c == 'e' || (c == '-' && source[at - 1] == 'e') || (c == '+' && source[at - 1] == 'e'); }),
                compute, op);
  }
  std::string run() {
    while (at < source.size()) {
      char const c = source[at];
      if (c == '{')
        place();
      else if (is_letter(c))
        word();
      else if (is_digit(c))
        number();
      else
        text += c, ++at;
    }
    return std::move(text);
  }
};

}  // namespace

std::vector<ir::Scalar> element_scalars(ir::OpDef const& op, ir::Attrs const& attrs) {
  using Type = ir::Parameter::Type;
  std::vector<ir::Scalar> scalars;
  ir::AttrReader reader{attrs};
  for (auto const& parameter : ir::signature(op).parameters) switch (parameter.type) {
      case Type::tensor:
      case Type::tensors:
      case Type::text:
        break;
      case Type::wholes:
      case Type::sizes:
        reader.list();
        break;
      case Type::reals:
        for (auto n = reader.number().value; n-- > 0;) reader.num();
        break;
      case Type::real:
        scalars.push_back(reader.num());
        break;
      default:
        scalars.emplace_back(reader.number());
    }
  return scalars;
}

std::string number_text(ir::Scalar const& number, DType compute) {
  bool const real = number.kind == ir::ScalarKind::real;
  if (number.kind == ir::ScalarKind::none) return compute == DType::i64 ? whole_text(ir::absent) : real_text(std::numeric_limits<double>::quiet_NaN(), compute);
  if (compute == DType::i64) return whole_text(real ? base::truncate(number.real) : number.whole);
  return real_text(real ? number.real : static_cast<double>(number.whole), compute);
}

std::string element_text(ir::OpDef const& op, std::span<std::string const> attributes, std::span<std::string const> operands, DType compute) {
  auto const* const row = std::ranges::find(overrides, op.name, &Override::op);
  std::string_view source = op.source;
  if (row != overrides.end() && ir::find_op(op.name) == &op) {
    auto const better = compute == DType::f32 ? row->real : compute == DType::i64 ? row->whole : std::string_view{};
    if (!better.empty()) source = better;
  }
  base::ensure(!source.empty(), std::format("{} has no source text", op.name));
  base::ensure(compute != DType::i64 || op.element.whole || op.source == "{0}", std::format("{} has no element over whole numbers", op.name));
  return Writer{op, selected_arm(source, attributes), attributes, operands, compute}.run();
}

std::string element_text(ir::OpDef const& op, ir::Attrs const& attrs, std::span<std::string const> operands, DType compute) {
  std::vector<std::string> attributes;
  for (auto const& scalar : element_scalars(op, attrs)) attributes.push_back(number_text(scalar, compute));
  return element_text(op, attributes, operands, compute);
}

}  // namespace tenon::fusion
