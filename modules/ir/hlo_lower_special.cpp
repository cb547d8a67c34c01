// Special functions that have no row: the inverse of erf, and the logarithm of gamma with its slope, computed in f64 and rounded once.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using base::DType;

namespace {
constexpr double pi = std::numbers::pi, infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();

template <Var (*f)(Var)>
void in_f64(Step& step) {
  if (!base::is_real(step.type(0).dtype)) step.refuse(std::format("needs floats, not {}", to_string(step.type(0))));
  step.give(cast(f(cast(step.x(), DType::f64)), step.type(0).dtype));
}
Var less(Var x, Var y) { return call(ops::lt, {x, y}); }
Var is(Var x, double number) { return call(ops::eq, {x, number}); }
Var log(Var x) { return call(ops::log, {x}); }
Var abs(Var x) { return call(ops::abs, {x}); }
Var sqrt(Var x) { return call(ops::sqrt, {x}); }

// Winitzki's closed form, then Newton's steps; from 1/2 on on the complement, whose difference to 1 is exact.
Var inverse_erf(Var y) {
  constexpr double a = 0.147;
  Var const size = abs(y), rest = Var(1.0) - size;
  Var const tail = log(rest * (size + 1.0)), half = tail * 0.5 + 2 / (pi * a);
  Var x = sqrt(sqrt(half * half - tail / a) - half);
  for (int k = 0; k < 4; ++k) {
    Var const slope = call(ops::exp, {-(x * x)}) * (2 * std::numbers::inv_sqrtpi);
    Var const miss = choose(less(size, 0.5), call(ops::erf, {x}) - size, rest - call(row("erfc"), {x}));
    Var const newton = miss / slope;
    x = x - newton / (x * newton + 1.0);  // Halley's correction: the second derivative is -2x times the slope
  }
  x = choose(is(size, 0), 0.0, choose(is(size, 1), infinity, x));
  return call(ops::copysign, {x, y});
}

// Stirling's series behind a shift to at least 10; log of the product that the shift made is taken off.
Var log_gamma_positive(Var x) {
  Var product = x;  // x (x + 1) .. (x + 9)
  for (int k = 1; k < 10; ++k) product = product * (x + static_cast<double>(k));
  Var const z = x + 10.0, w = Var(1.0) / (z * z);
  static constexpr double series[] = {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188, -691.0 / 360360, 1.0 / 156};  // B2k / (2k (2k - 1))
  Var sum = w * 0.0 + series[6];
  for (int k = 5; k >= 0; --k) sum = sum * w + series[k];
  Var const shifted = (z - 0.5) * log(z) - z + 0.5 * std::log(2 * pi) + sum / z;
  Var const plain = (x - 0.5) * log(x) - x + 0.5 * std::log(2 * pi);  // of large numbers, whose product would overflow
  return choose(less(x, 1e20), shifted - log(product), plain);
}
// sin(pi x), exact at whole numbers.
Var sine_of_turns(Var x) {
  Var const r = x - call(ops::round, {x});
  Var const odd = call(row("remainder"), {call(ops::round, {x}), 2.0});
  return call(ops::sin, {r * pi}) * (Var(1.0) - odd * 2.0);
}
Var log_gamma(Var x) {
  Var const left = less(x, 0.5);
  Var const y = log_gamma_positive(choose(left, Var(1.0) - x, x));
  Var const reflected = Var(std::log(pi)) - log(abs(sine_of_turns(x))) - y;
  Var const pole = call(ops::logical_and, {call(ops::le, {x, 0.0}), call(ops::eq, {x, call(ops::floor, {x})})});
  return choose(call(ops::logical_or, {pole, is(abs(x), infinity)}), infinity, choose(left, reflected, y));
}

// The asymptotic series of the slope behind the same shift.
Var digamma(Var x) {
  Var const left = less(x, 0.5), y = choose(left, Var(1.0) - x, x);
  Var shift = Var(1.0) / y;
  for (int k = 1; k < 10; ++k) shift = shift + Var(1.0) / (y + static_cast<double>(k));
  Var const z = y + 10.0, w = Var(1.0) / (z * z);
  static constexpr double series[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12};  // B2k / 2k
  Var sum = w * 0.0 + series[6];
  for (int k = 5; k >= 0; --k) sum = sum * w + series[k];
  Var const right = log(z) - Var(0.5) / z - sum * w - shift;
  Var const r = x - call(ops::round, {x});
  Var const turn = call(row("tan"), {r * pi});  // of period 1 in x
  Var const reflected = right - Var(pi) / turn;
  Var const pole = call(ops::logical_and, {call(ops::le, {x, 0.0}), call(ops::eq, {x, call(ops::floor, {x})})});
  Var const value = choose(left, reflected, right);
  return choose(is(x, infinity), infinity, choose(pole, nan, value));
}
// Whether x is the one infinity or the other.
void positive_infinity(Step& step) { step.give(is(step.x(), infinity)); }
void negative_infinity(Step& step) { step.give(is(step.x(), -infinity)); }

constexpr Rule rules[] = {{"chlo.erf_inv", in_f64<inverse_erf>, {}, true},
                          {"chlo.lgamma", in_f64<log_gamma>, {}, true},
                          {"chlo.digamma", in_f64<digamma>, {}, true},
                          {"chlo.is_pos_inf", positive_infinity, {}, true},
                          {"chlo.is_neg_inf", negative_infinity, {}, true}};
}  // namespace

std::span<Rule const> special_rules() { return rules; }

}  // namespace tenon::ir::hlo
