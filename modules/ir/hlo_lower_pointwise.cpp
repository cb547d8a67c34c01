// Operations on elements: most are a row of ours; whole numbers divide toward zero and shift as StableHLO says.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using base::DType;

namespace {
bool flags(Step const& step, int k = 0) { return step.type(k).dtype == DType::boolean; }
bool real(Step const& step, int k = 0) { return base::is_real(step.type(k).dtype); }
int width(Step const& step) { return 8 * base::bytes_of(step.type(0).dtype); }

// Operands of which one at most is a number.
std::pair<Var, Var> pair(Step const& step, int a = 0, int b = 1) {
  Var const x = step.number_or_tensor(a);
  return x.is_tensor() ? std::pair(x, step.number_or_tensor(b)) : std::pair(x, step.x(b));
}
void unary(Step& step) { step.give(call(row(find_rule(step.op.name)->row), {step.x()})); }
void pairwise(Step& step, OpDef const& op) {
  auto const [x, y] = pair(step);
  step.give(&op == &ops::add ? x + y : &op == &ops::sub ? x - y : call(op, {x, y}));
}
void binary(Step& step) { pairwise(step, row(find_rule(step.op.name)->row)); }
// Of booleans a sum is or, a product and.
template <OpDef const& numbers, OpDef const& logic>
void numbers_or_flags(Step& step) {
  pairwise(step, flags(step) ? logic : numbers);
}
void same_value(Step& step) {
  for (auto* item : step.in) step.give(*item);
}

// -- whole numbers ------------------------------------------------------------------------------------------------------------------------

Var rest(Step& step) {  // of no division: the dividend
  auto const [x, y] = pair(step);
  Var const left = call(row("fmod"), {x, y});
  auto const divisor = step.known(1);
  return divisor && *divisor != 0 ? left : choose(call(ops::eq, {step.x(1), 0}), step.x(0), left);
}
void divide(Step& step) {
  if (real(step)) return pairwise(step, ops::div);
  if (flags(step)) step.refuse("booleans do not divide");
  auto const [x, y] = pair(step);
  step.give(call(ops::floor_divide, {x - call(row("fmod"), {x, y}), y}));  // by 0: -1, as XLA has it
}
void remainder(Step& step) {
  if (real(step)) return pairwise(step, row("fmod"));
  step.give(rest(step));
}
template <char name>
void bitwise(Step& step) {
  if (real(step)) step.refuse("floats have no bits here");
  pairwise(step, row(flags(step) ? (name == '&'   ? "logical_and"
                                    : name == '|' ? "logical_or"
                                                  : "logical_xor")
                                 : (name == '&'   ? "bitwise_and"
                                    : name == '|' ? "bitwise_or"
                                                  : "bitwise_xor")));
}
void negation(Step& step) {
  if (real(step)) step.refuse("floats have no bits here");
  step.give(call(flags(step) ? ops::logical_not : row("bitwise_not"), {step.x()}));
}
void magnitude(Step& step) { step.give(call(ops::abs, {step.x()})); }

Var wide(Var x) { return cast(x, DType::i64); }
Var power_of_two(Var exponent) { return call(ops::pow, {2, exponent}); }
// Shifts of i64 by 0 to 63 places toward the sign: divided twice, because 2^63 is no i64.
Var down(Var x, Var places) {
  Var const first = call(ops::minimum, {places, 32});
  return call(ops::floor_divide, {call(ops::floor_divide, {x, power_of_two(first)}), power_of_two(places - first)});
}
// Places to shift by, and whether they are all of an element's.
struct Shift {
  Var places, all;
};
Shift shift_of(Step& step, std::int64_t most) {
  Var const places = wide(step.x(1));
  Var const all = call(ops::logical_or, {call(ops::lt, {places, 0}), call(ops::ge, {places, width(step)})});
  return {choose(all, most, places), all};
}
Var without_sign(Step& step, Var x, Var places) {  // the bits above those that stay are 0
  return call(row("bitwise_and"), {down(x, places), power_of_two(Var(width(step)) - places) - 1});
}
void shift_left(Step& step) {
  auto const [places, all] = shift_of(step, 0);
  step.give(cast(choose(all, 0, wide(step.x()) * power_of_two(places)), step.type(0).dtype));
}
void shift_right_arithmetic(Step& step) { step.give(cast(down(wide(step.x()), shift_of(step, 63).places), step.type(0).dtype)); }
void shift_right_logical(Step& step) {
  auto const [places, all] = shift_of(step, 0);
  step.give(cast(choose(all, 0, without_sign(step, wide(step.x()), places)), step.type(0).dtype));
}
// x >> 0, x >> 1, .. along a last dim of its own.
Var all_shifts(Step& step) {
  Var const x = call(ops::unsqueeze, {wide(step.x())}, at_dim(-1));
  return without_sign(step, x, step.to.counting(width(step)));
}
void popcnt(Step& step) {
  Var const bits = call(row("bitwise_and"), {all_shifts(step), 1});
  step.give(cast(call(ops::sum, {bits}, summed(std::array{Dim(-1)}, false)), step.type(0).dtype));
}
void leading_zeros(Step& step) {
  Var const used = wide(call(ops::ne, {all_shifts(step), 0}));
  step.give(cast(Var(width(step)) - call(ops::sum, {used}, summed(std::array{Dim(-1)}, false)), step.type(0).dtype));
}

// -- comparing and choosing ---------------------------------------------------------------------------------------------------------------

struct Comparison {
  std::string_view direction;
  OpDef const* op;
  bool (*whole)(std::int64_t, std::int64_t);
};
constexpr Comparison comparisons[] = {
    {"EQ", &ops::eq, [](std::int64_t a, std::int64_t b) { return a == b; }}, {"NE", &ops::ne, [](std::int64_t a, std::int64_t b) { return a != b; }},
    {"LT", &ops::lt, [](std::int64_t a, std::int64_t b) { return a < b; }},  {"LE", &ops::le, [](std::int64_t a, std::int64_t b) { return a <= b; }},
    {"GT", &ops::gt, [](std::int64_t a, std::int64_t b) { return a > b; }},  {"GE", &ops::ge, [](std::int64_t a, std::int64_t b) { return a >= b; }}};
Comparison const& comparison(Step const& step) {
  auto const direction = step.text("comparison_direction");
  auto const found = std::ranges::find(comparisons, direction, &Comparison::direction);
  if (found == std::end(comparisons)) step.refuse(std::format("unknown direction '{}'", direction));
  return *found;
}
bool fold_compare(Step const& step, std::span<std::int64_t const> x, std::int64_t& y) {
  return x.size() == 2 && (y = comparison(step).whole(x[0], x[1]), true);
}
// -0 before 0, NaN behind all numbers, as places in that order: the sign of a zero decides, then NaN.
Var before(Var x, Var y) {
  Var const zeros = call(ops::logical_and, {call(ops::eq, {x, 0.0}), call(ops::eq, {y, 0.0})});
  Var const sign_x = call(ops::copysign, {call(ops::abs, {x}) * 0.0 + 1.0, x}), sign_y = call(ops::copysign, {call(ops::abs, {y}) * 0.0 + 1.0, y});
  Var const by_sign = call(ops::logical_and, {zeros, call(ops::lt, {sign_x, sign_y})});
  Var const by_nan = call(ops::logical_and, {call(ops::isnan, {y}), call(ops::logical_not, {call(ops::isnan, {x})})});
  return call(ops::logical_or, {call(ops::lt, {x, y}), call(ops::logical_or, {by_sign, by_nan})});
}
void compare(Step& step) {
  auto const& how = comparison(step);
  if (step.count() == 2 && !(step.type(0).dtype == step.type(1).dtype))
    step.refuse(std::format("{} against {}", to_string(step.type(0)), to_string(step.type(1))));
  auto const [x, y] = pair(step);
  if (step.text("compare_type") != "TOTALORDER" || !real(step)) return step.give(call(*how.op, {x, y}));
  Var const a = step.x(0), b = step.x(1), less = before(a, b), more = before(b, a);
  Var const differs = call(ops::logical_or, {less, more});
  step.give(how.direction == "LT"   ? less
            : how.direction == "GT" ? more
            : how.direction == "NE" ? differs
                                    : call(ops::logical_not, {how.direction == "EQ"   ? differs
                                                              : how.direction == "LE" ? more
                                                                                      : less}));
}
void select(Step& step) {
  if (step.count() != 3) step.refuse(std::format("{} operands, 3 needed", step.count()));
  if (auto const chosen = step.known(0)) {
    auto const& item = step.item(*chosen ? 1 : 2);
    if (step.spread || item.type == step.result()) return step.give(item);
  }
  auto const [yes, no] = pair(step, 1, 2);
  step.give(choose(step.x(0), yes, no));
}
void clamp(Step& step) {
  if (step.count() != 3) step.refuse(std::format("{} operands, 3 needed", step.count()));
  step.give(call(ops::minimum, {call(ops::maximum, {step.x(1), step.number_or_tensor(0)}), step.number_or_tensor(2)}));
}

// -- other -----------------------------------------------------------------------------------------------------------------------------------

void convert(Step& step) {
  auto const dtype = step.result().dtype;
  auto const& item = step.item(0);
  if (!item.made && item.splat) {
    std::array<std::byte, 8> bytes{};
    if (item.splat->kind == ScalarKind::real)
      base::store_real(dtype, bytes.data(), item.splat->real);
    else
      base::store_whole(dtype, bytes.data(), item.splat->whole);
    return step.give(Item{{dtype, item.type.sizes}, {}, scalar_of(dtype, base::load_real(dtype, bytes.data()), base::load_whole(dtype, bytes.data()))});
  }
  step.give(cast(step.x(), dtype));
}
void reduce_precision(Step& step) {
  struct Format {
    std::int64_t exponent, mantissa;
    DType dtype;
  };
  static constexpr Format formats[] = {{11, 52, DType::f64}, {8, 23, DType::f32}, {5, 10, DType::f16}, {8, 7, DType::bf16}, {5, 2, DType::f8e5m2}};
  auto const exponent = step.whole("exponent_bits"), mantissa = step.whole("mantissa_bits");
  auto const found = std::ranges::find_if(formats, [&](Format const& f) { return f.exponent == exponent && f.mantissa == mantissa; });
  if (found == std::end(formats)) step.refuse(std::format("no format has {} bits of exponent and {} of mantissa", exponent, mantissa));
  step.give(cast(cast(step.x(), found->dtype), step.type(0).dtype));
}
void nearest_away(Step& step) {  // halves away from 0; what is cut off is exact
  Var const x = step.x(), whole = call(ops::trunc, {x});
  step.give(choose(call(ops::ge, {call(ops::abs, {x - whole}), 0.5}), whole + call(ops::sign, {x}), whole));
}
void sign(Step& step) {
  Var const x = step.x(), y = call(ops::sign, {x});
  step.give(real(step) ? choose(call(ops::ne, {x, x}), x, y) : y);
}
void cube_root(Step& step) {
  Var const x = step.x();
  step.give(call(ops::copysign, {call(ops::pow, {call(ops::abs, {x}), 1.0 / 3}), x}));
}
void bitcast_convert(Step& step) {
  if (step.type(0).dtype != step.result().dtype)
    step.refuse(std::format("the bits of {} as {} are not supported", to_string(step.type(0)), to_string(step.result())));
  same_value(step);
}

using Span = std::span<std::int64_t const>;
std::uint64_t bits(std::int64_t x) { return static_cast<std::uint64_t>(x); }
template <auto f>
bool fold(Step const&, Span x, std::int64_t& y) {
  if (x.size() != 2) return false;
  return y = static_cast<std::int64_t>(f(bits(x[0]), bits(x[1]))), true;
}
template <auto f>
bool fold_one(Step const&, Span x, std::int64_t& y) {
  return x.size() == 1 && (y = f(x[0]), true);
}
bool fold_divide(Step const&, Span x, std::int64_t& y) { return x.size() == 2 && x[1] > 0 && (y = x[0] / x[1], true); }
bool fold_remainder(Step const&, Span x, std::int64_t& y) { return x.size() == 2 && x[1] > 0 && (y = x[0] % x[1], true); }
bool fold_minimum(Step const&, Span x, std::int64_t& y) { return x.size() == 2 && (y = std::min(x[0], x[1]), true); }
bool fold_maximum(Step const&, Span x, std::int64_t& y) { return x.size() == 2 && (y = std::max(x[0], x[1]), true); }
bool fold_clamp(Step const&, Span x, std::int64_t& y) { return x.size() == 3 && (y = std::min(std::max(x[1], x[0]), x[2]), true); }
bool fold_select(Step const&, Span x, std::int64_t& y) { return x.size() == 3 && (y = x[0] ? x[1] : x[2], true); }
bool fold_not(Step const& step, Span x, std::int64_t& y) { return x.size() == 1 && (y = flags(step) ? x[0] == 0 : ~x[0], true); }
bool fold_add(Step const& step, Span x, std::int64_t& y) {
  return x.size() == 2 && (y = flags(step) ? x[0] | x[1] : static_cast<std::int64_t>(bits(x[0]) + bits(x[1])), true);
}
using U = std::uint64_t;

// clang-format off
constexpr Rule rules[] = {
    {"add", numbers_or_flags<ops::add, ops::logical_or>, {}, true, fold_add},
    {"subtract", binary, "sub", true, fold<[](U a, U b) { return a - b; }>},
    {"multiply", numbers_or_flags<ops::mul, ops::logical_and>, {}, true, fold<[](U a, U b) { return a * b; }>},
    {"divide", divide, {}, true, fold_divide},
    {"remainder", remainder, {}, true, fold_remainder},
    {"maximum", numbers_or_flags<ops::maximum, ops::logical_or>, {}, true, fold_maximum},
    {"minimum", numbers_or_flags<ops::minimum, ops::logical_and>, {}, true, fold_minimum},
    {"power", binary, "pow", true},
    {"atan2", binary, "atan2", true},
    {"and", bitwise<'&'>, {}, true, fold<[](U a, U b) { return a & b; }>},
    {"or", bitwise<'|'>, {}, true, fold<[](U a, U b) { return a | b; }>},
    {"xor", bitwise<'^'>, {}, true, fold<[](U a, U b) { return a ^ b; }>},
    {"not", negation, {}, true, fold_not},
    {"shift_left", shift_left, {}, true},
    {"shift_right_arithmetic", shift_right_arithmetic, {}, true},
    {"shift_right_logical", shift_right_logical, {}, true},
    {"popcnt", popcnt, {}, true},
    {"count_leading_zeros", leading_zeros, {}, true},
    {"compare", compare, {}, true, fold_compare},
    {"select", select, {}, true, fold_select},
    {"clamp", clamp, {}, true, fold_clamp},
    {"convert", convert, {}, true},
    {"bitcast_convert", bitcast_convert, {}, true},
    {"reduce_precision", reduce_precision, {}, true},
    {"negate", unary, "neg", true, fold_one<[](std::int64_t x) { return static_cast<std::int64_t>(0 - bits(x)); }>},
    {"abs", magnitude, {}, true, fold_one<[](std::int64_t x) { return x < 0 ? static_cast<std::int64_t>(0 - bits(x)) : x; }>},
    {"sign", sign, {}, true, fold_one<[](std::int64_t x) { return static_cast<std::int64_t>((x > 0) - (x < 0)); }>},
    {"exponential", unary, "exp", true}, {"exponential_minus_one", unary, "expm1", true}, {"log", unary, "log", true}, {"log_plus_one", unary, "log1p", true},
    {"sqrt", unary, "sqrt", true}, {"rsqrt", unary, "rsqrt", true}, {"cbrt", cube_root, {}, true}, {"sine", unary, "sin", true}, {"cosine", unary, "cos", true},
    {"tan", unary, "tan", true}, {"tanh", unary, "tanh", true}, {"logistic", unary, "sigmoid", true}, {"floor", unary, "floor", true}, {"ceil", unary, "ceil", true},
    {"round_nearest_even", unary, "round", true}, {"round_nearest_afz", nearest_away, {}, true}, {"is_finite", unary, "isfinite", true},
    {"chlo.erf", unary, "erf", true}, {"chlo.erfc", unary, "erfc", true}, {"chlo.sinh", unary, "sinh", true}, {"chlo.cosh", unary, "cosh", true},
    {"chlo.tan", unary, "tan", true}, {"chlo.asin", unary, "asin", true}, {"chlo.acos", unary, "acos", true}, {"chlo.atan", unary, "atan", true},
    {"chlo.asinh", unary, "asinh", true}, {"chlo.acosh", unary, "acosh", true}, {"chlo.atanh", unary, "atanh", true}, {"chlo.square", unary, "square", true},
    {"chlo.is_inf", unary, "isinf", true},
    {"chlo.broadcast_add", numbers_or_flags<ops::add, ops::logical_or>, {}, true}, {"chlo.broadcast_subtract", binary, "sub", true},
    {"chlo.broadcast_multiply", numbers_or_flags<ops::mul, ops::logical_and>, {}, true}, {"chlo.broadcast_divide", divide, {}, true},
    {"chlo.broadcast_remainder", remainder, {}, true}, {"chlo.broadcast_maximum", numbers_or_flags<ops::maximum, ops::logical_or>, {}, true},
    {"chlo.broadcast_minimum", numbers_or_flags<ops::minimum, ops::logical_and>, {}, true}, {"chlo.broadcast_power", binary, "pow", true},
    {"chlo.broadcast_atan2", binary, "atan2", true}, {"chlo.broadcast_and", bitwise<'&'>, {}, true}, {"chlo.broadcast_or", bitwise<'|'>, {}, true},
    {"chlo.broadcast_xor", bitwise<'^'>, {}, true}, {"chlo.broadcast_compare", compare, {}, true}, {"chlo.broadcast_select", select, {}, true},
    {"optimization_barrier", same_value, {}, true},
};
// clang-format on
}  // namespace

std::span<Rule const> pointwise_rules() { return rules; }

}  // namespace tenon::ir::hlo
