// Rules of pointwise ops: an operation of the same meaning, or a formula. Terms are f32, f64 or whole; NaN and infinities go where the op's element puts them.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using X = std::span<Term const>;
using A = std::span<double const>;
using W = std::string_view;
constexpr double inf = std::numeric_limits<double>::infinity(), sqrt_half = std::numbers::sqrt2 / 2;

bool real(Term x) { return base::is_real(x.dtype()); }
Term word_of_one(X x, A, W word) { return unary(word, x[0]); }
Term word_of_two(X x, A, W word) { return binary(word, x[0], x[1]); }
Term comparison(X x, A, W word) { return compare(word, x[0], x[1]); }
Term rounding(X x, A, W word) { return real(x[0]) ? unary(word, x[0]) : x[0]; }
Term itself(X x, A, W) { return x[0]; }
Term truth(Term x) { return convert(x, DType::boolean); }
Term same(Term x, Term y) { return compare("EQ", x, y); }
Term less(Term x, Term y) { return compare("LT", x, y); }
Term more(Term x, Term y) { return compare("GT", x, y); }
Term nan(Term x) { return compare("NE", x, x); }
Term erf(Term x) { return unary("chlo.erf", x); }
// HLO has no word for it: 1 - erf x below 1, beyond the trapezoidal sum of an integral over a line, with the residue of its pole (Chiarella and Reichl, 1968).
Term erfc(X x, A, W) {
  if (x[0].to->chlo) return unary("chlo.erfc", x[0]);
  Term const v = convert(x[0], DType::f64), far = binary("minimum", binary("maximum", v, 1), 30), square = far * far;
  constexpr double step = 0.5;
  Term sum = Term(0.5) / square;
  for (int n = 1; n <= 12; ++n) sum = sum + Term(std::exp(-(n * step) * (n * step))) / (square + (n * step) * (n * step));
  Term const line = far * unary("exponential", -square) * sum * (2 * step / std::numbers::pi);
  Term const pole = Term(2) / (unary("exponential", far * (2 * std::numbers::pi / step)) - 1);
  Term const tail = choose(less(far, std::numbers::pi / step), line - pole, line);
  return convert(choose(less(v, 1), Term(1) - erf(v), tail), x[0].dtype());
}
Term absolute(Term x) { return x.dtype() == DType::u8 ? x : unary("abs", x); }

template <bool minus>
Term sum(X x, A a, W) {
  if (a[0] == 1) return minus ? x[0] - x[1] : x[0] + x[1];
  Term const scaled = x[1] * (real(x[1]) ? Term(a[0]) : Term(base::truncate(a[0])));
  return minus ? x[0] - scaled : x[0] + scaled;
}
Term sign(X x, A, W) { return choose(more(x[0], 0), x[0].to->number(1, x[0].type()), choose(less(x[0], 0), x[0].to->number(-1, x[0].type()), 0)); }
Term trunc(X x, A, W) { return real(x[0]) ? choose(less(x[0], 0), unary("ceil", x[0]), unary("floor", x[0])) : x[0]; }
Term gelu(X x, A a, W) {
  Term const v = x[0];
  if (a[0] == 0) return v * 0.5 * (erf(v * sqrt_half) + 1);
  return v * 0.5 * (unary("tanh", (v + v * v * v * 0.044715) * 0.7978845608028654) + 1);
}
Term softplus(X x, A a, W) {
  Term const scaled = x[0] * a[0];
  return choose(more(scaled, a[1]), x[0], unary("log_plus_one", unary("exponential", scaled)) / a[0]);
}
Term clamp(X x, A a, W) {  // an absent bound is NaN
  Term y = x[0];
  if (a[0] == a[0]) y = choose(less(y, a[0]), a[0], y);
  return a[1] == a[1] ? choose(more(y, a[1]), a[1], y) : y;
}
Term lerp(X x, A, W) {
  Term const gap = x[1] - x[0];
  return choose(less(absolute(x[2]), 0.5), x[0] + x[2] * gap, x[1] - gap * (Term(1) - x[2]));
}

// Quotients and remainders of whole numbers: division by 0 gives -1, by -1 wraps.
struct Parts {
  Term none, divisor, quotient, rest;
};
Parts parts(Term a, Term b) {
  Term const none = same(b, 0), divisor = choose(none, 1, b);
  return {none, divisor, a / divisor, binary("remainder", a, divisor)};
}
Term differ(Term rest, Term b) { return compare("NE", rest, 0) & compare("NE", less(rest, 0), less(b, 0)); }
Term fmod(X x, A, W) {
  if (real(x[0])) return binary("remainder", x[0], x[1]);
  auto const p = parts(x[0], x[1]);
  return choose(p.none, x[0].to->number(-1, x[0].type()), p.rest);
}
Term remainder(X x, A, W) {
  auto const p = real(x[0]) ? Parts{{}, x[1], {}, binary("remainder", x[0], x[1])} : parts(x[0], x[1]);
  Term const rest = choose(differ(p.rest, p.divisor), p.rest + p.divisor, p.rest);
  return real(x[0]) ? rest : choose(p.none, x[0].to->number(-1, x[0].type()), rest);
}
Term floor_divide(X x, A, W) {
  if (!real(x[0])) {
    auto const p = parts(x[0], x[1]);
    return choose(p.none, x[0].to->number(-1, x[0].type()), choose(differ(p.rest, p.divisor), p.quotient - 1, p.quotient));
  }
  Term const rest = binary("remainder", x[0], x[1]), ratio = x[0] / x[1];  // what is left over decides, not a rounded quotient
  Term const whole = (x[0] - rest) / x[1], quotient = unary("round_nearest_even", choose(differ(rest, x[1]), whole - 1, whole));
  Term const zero = choose(less(ratio, 0) | less(Term(1) / ratio, 0), x[0].to->number(-0.0, ratio.type()), 0.0);
  return choose(same(x[1], 0), ratio, choose(same(quotient, 0), zero, quotient));
}
Term power(X x, A, W) {
  if (real(x[0])) return binary("power", x[0], x[1]);
  Term const positive = binary("power", x[0], binary("maximum", x[1], 0));
  if (x[0].dtype() == DType::u8) return positive;
  Term const odd = compare("NE", x[1] & 1, 0), one = x[0].to->number(1, x[0].type());
  Term const inverse = choose(same(x[0], 1), one, choose(same(x[0], -1), choose(odd, -one, one), 0));
  return choose(less(x[1], 0), inverse, positive);
}
Term hypot(X x, A, W) {
  Term const a = absolute(x[0]), b = absolute(x[1]), high = binary("maximum", a, b), low = binary("minimum", a, b), ratio = low / high;
  Term const length = choose(same(high, 0), high, high * unary("sqrt", ratio * ratio + 1));
  return choose(same(a, inf) | same(b, inf), inf, length);
}
Term copysign(X x, A, W) {  // 1 / -0 tells -0 from 0
  Term const size = absolute(x[0]), negative = less(x[1], 0) | less(Term(1) / x[1], 0);
  return choose(negative, -size, size);
}
}  // namespace

std::span<Rule const> pointwise_rules() {
  static constexpr Rule rules[] = {
      // clang-format off
      {.op = "neg", .element = [](X x, A, W) { return x[0].dtype() == DType::u8 ? Term(0) - x[0] : -x[0]; }},
      {.op = "abs", .element = [](X x, A, W) { return absolute(x[0]); }},
      {.op = "exp", .word = "exponential", .element = word_of_one},
      {.op = "expm1", .word = "exponential_minus_one", .element = word_of_one},
      {.op = "log", .word = "log", .element = word_of_one},
      {.op = "log1p", .word = "log_plus_one", .element = word_of_one},
      {.op = "log2", .element = [](X x, A, W) { return unary("log", x[0]) / std::numbers::ln2; }},
      {.op = "sqrt", .word = "sqrt", .element = word_of_one},
      {.op = "rsqrt", .word = "rsqrt", .element = word_of_one},
      {.op = "reciprocal", .element = [](X x, A, W) { return Term(1) / x[0]; }},
      {.op = "sin", .word = "sine", .element = word_of_one},
      {.op = "cos", .word = "cosine", .element = word_of_one},
      {.op = "tanh", .word = "tanh", .element = word_of_one},
      {.op = "sigmoid", .word = "logistic", .element = word_of_one},
      {.op = "relu", .element = [](X x, A, W) { return binary("maximum", x[0], 0); }},
      {.op = "erf", .word = "chlo.erf", .element = word_of_one},
      {.op = "erfc", .element = erfc},
      {.op = "sign", .element = sign},
      {.op = "floor", .word = "floor", .element = rounding},
      {.op = "ceil", .word = "ceil", .element = rounding},
      {.op = "round", .word = "round_nearest_even", .element = rounding},
      {.op = "trunc", .element = trunc},
      {.op = "square", .element = [](X x, A, W) { return x[0] * x[0]; }},
      {.op = "gelu", .element = gelu},
      {.op = "silu", .element = [](X x, A, W) { return x[0] * unary("logistic", x[0]); }},
      {.op = "softplus", .element = softplus},
      {.op = "leaky_relu", .element = [](X x, A a, W) { return choose(more(x[0], 0), x[0], x[0] * a[0]); }},
      {.op = "isnan", .element = [](X x, A, W) { return nan(x[0]); }, .plain = true},
      {.op = "logical_not", .element = [](X x, A, W) { return !truth(x[0]); }, .plain = true},
      {.op = "to", .element = itself, .plain = true},
      {.op = "clone", .element = itself, .plain = true},
      {.op = "add", .element = sum<false>},
      {.op = "sub", .element = sum<true>},
      {.op = "mul", .word = "multiply", .element = word_of_two},
      {.op = "div", .word = "divide", .element = word_of_two},
      {.op = "pow", .element = power},
      {.op = "maximum", .word = "maximum", .element = word_of_two},
      {.op = "minimum", .word = "minimum", .element = word_of_two},
      {.op = "remainder", .element = remainder},
      {.op = "fmod", .element = fmod},
      {.op = "floor_divide", .element = floor_divide},
      {.op = "eq", .word = "EQ", .element = comparison, .plain = true},
      {.op = "ne", .word = "NE", .element = comparison, .plain = true},
      {.op = "lt", .word = "LT", .element = comparison, .plain = true},
      {.op = "le", .word = "LE", .element = comparison, .plain = true},
      {.op = "gt", .word = "GT", .element = comparison, .plain = true},
      {.op = "ge", .word = "GE", .element = comparison, .plain = true},
      {.op = "logical_and", .element = [](X x, A, W) { return truth(x[0]) & truth(x[1]); }, .plain = true},
      {.op = "logical_or", .element = [](X x, A, W) { return truth(x[0]) | truth(x[1]); }, .plain = true},
      {.op = "where", .element = [](X x, A, W) { return choose(x[0], x[1], x[2]); }, .plain = true, .condition = 0},
      {.op = "masked_fill", .element = [](X x, A a, W) { return choose(x[1], a[0], x[0]); }, .plain = true, .condition = 1},
      {.op = "clamp", .element = clamp},
      {.op = "lerp", .element = lerp},
      {.op = "atan2", .word = "atan2", .element = word_of_two},
      {.op = "hypot", .element = hypot},
      {.op = "copysign", .element = copysign},
      {.op = "bitwise_and", .word = "and", .element = word_of_two, .plain = true},
      {.op = "bitwise_or", .word = "or", .element = word_of_two, .plain = true},
      {.op = "bitwise_xor", .word = "xor", .element = word_of_two, .plain = true},
      // clang-format on
  };
  return rules;
}

}  // namespace tenon::ir::hlo
