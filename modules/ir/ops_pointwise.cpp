// Rows of one operand. Sources of formulas: the functions' own definitions; gelu: Hendrycks & Gimpel 2016; silu: Elfwing et al. 2017.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
namespace {
using R = double const*;
using W = std::int64_t const*;
constexpr double sqrt_half = std::numbers::sqrt2 / 2, two_over_sqrt_pi = 2 * std::numbers::inv_sqrtpi, gelu_k = 0.7978845608028654, gelu_c = 0.044715;

double logistic(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double half_even(double x) {
  double const low = std::floor(x), rest = x - low;
  return rest < 0.5 || (rest == 0.5 && std::fmod(low, 2) == 0) ? (x < 0 && low == 0 ? -0.0 : low) : (low + 1 == 0 ? -0.0 : low + 1);
}
constexpr std::int64_t identity(W x, R) { return x[0]; }
Var zero_gradient(Vjp& v) { return v.g() * 0.0; }
}  // namespace

// clang-format off
constinit const OpDef neg{.name = "neg", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "a", .mono = "-",
    .element = {[](R x, R) { return -x[0]; }, [](W x, R) { return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(x[0])); }}, .source = "-{0}",
    .vjp = [](Vjp& v) { v.grad(0) = -v.g(); },
    .infer = [](Inference& call) {
      if (call.x().dtype == base::DType::boolean) base::fail("neg: a bool has no negative; logical_not inverts a mask");
      call.out.push_back(contiguous_meta(call.x().dtype, call.x().device, call.x().sizes));
    }};
constinit const OpDef abs{.name = "abs", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".",
    .element = {[](R x, R) { return std::fabs(x[0]); }, [](W x, R) { return x[0] < 0 ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(x[0])) : x[0]; }},
    .source = "fabs({0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() * call(sign, {v.x()}); }, .saves = 1};
constinit const OpDef exp{.name = "exp", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 8, .element = {[](R x, R) { return std::exp(x[0]); }}, .source = "exp({0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() * v.y(); }, .saves = saves_result};
constinit const OpDef expm1{.name = "expm1", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real,
    .precision = Precision::wide, .cost = 8, .element = {[](R x, R) { return std::expm1(x[0]); }}, .source = "expm1({0})",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() * (v.y() + 1.0); }, .saves = saves_result};
constinit const OpDef log{.name = "log", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 8, .element = {[](R x, R) { return std::log(x[0]); }}, .source = "log({0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() / v.x(); }, .saves = 1};
constinit const OpDef log1p{.name = "log1p", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real,
    .precision = Precision::wide, .cost = 8, .element = {[](R x, R) { return std::log1p(x[0]); }}, .source = "log1p({0})",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() / (v.x() + 1.0); }, .saves = 1};
constinit const OpDef log2{.name = "log2", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real,
    .precision = Precision::wide, .cost = 8, .element = {[](R x, R) { return std::log2(x[0]); }}, .source = "log2({0})",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() / (v.x() * std::numbers::ln2); }, .saves = 1};
constinit const OpDef sqrt{.name = "sqrt", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 4,
    .element = {[](R x, R) { return std::sqrt(x[0]); }}, .source = "sqrt({0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() / (v.y() * 2.0); }, .saves = saves_result};
constinit const OpDef rsqrt{.name = "rsqrt", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "-", .types = Types::real,
    .precision = Precision::wide, .cost = 4, .element = {[](R x, R) { return 1 / std::sqrt(x[0]); }}, .source = "(1 / sqrt({0}))",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() * (v.y() * v.y() * v.y()) * -0.5; }, .saves = saves_result};
constinit const OpDef reciprocal{.name = "reciprocal", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real,
    .precision = Precision::wide, .cost = 4, .element = {[](R x, R) { return 1 / x[0]; }}, .source = "(1 / {0})",
    .vjp = [](Vjp& v) { v.grad(0) = -v.g() * (v.y() * v.y()); }, .saves = saves_result};
constinit const OpDef sin{.name = "sin", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 10,
    .element = {[](R x, R) { return std::sin(x[0]); }}, .source = "sin({0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() * call(cos, {v.x()}); }, .saves = 1};
constinit const OpDef cos{.name = "cos", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 10,
    .element = {[](R x, R) { return std::cos(x[0]); }}, .source = "cos({0})", .vjp = [](Vjp& v) { v.grad(0) = -(v.g() * call(sin, {v.x()})); }, .saves = 1};
constinit const OpDef tanh{.name = "tanh", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 10,
    .element = {[](R x, R) { return std::tanh(x[0]); }}, .source = "tanh({0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() * (-(v.y() * v.y()) + 1.0); }, .saves = saves_result};
constinit const OpDef sigmoid{.name = "sigmoid", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 10,
    .element = {[](R x, R) { return logistic(x[0]); }}, .source = "(1 / (1 + exp(-{0})))",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() * (v.y() * (-v.y() + 1.0)); }, .saves = saves_result};
constinit const OpDef relu{.name = "relu", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+",
    .element = {[](R x, R) { return x[0] > 0 ? x[0] : x[0] != x[0] ? x[0] : 0.0; }, [](W x, R) { return std::max<std::int64_t>(x[0], 0); }}, .source = "({0} <= 0 ? 0 : {0})",
    .vjp = [](Vjp& v) { v.grad(0) = choose(call(gt, {v.y(), 0.0}), v.g(), 0.0); }, .saves = saves_result};
constinit const OpDef erf{.name = "erf", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 10,
    .element = {[](R x, R) { return std::erf(x[0]); }}, .source = "erf({0})",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() * (call(exp, {-(v.x() * v.x())}) * two_over_sqrt_pi); }, .saves = 1};
constinit const OpDef sign{.name = "sign", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+",
    .element = {[](R x, R) { return x[0] != x[0] ? 0.0 : static_cast<double>((x[0] > 0) - (x[0] < 0)); }, [](W x, R) { return static_cast<std::int64_t>((x[0] > 0) - (x[0] < 0)); }},
    .source = "(({0} > 0) - ({0} < 0))", .vjp = [](Vjp& v) { v.grad(0) = zero_gradient(v); }};
constinit const OpDef floor{.name = "floor", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+",
    .element = {[](R x, R) { return std::floor(x[0]); }, identity}, .source = "floor({0})", .vjp = [](Vjp& v) { v.grad(0) = zero_gradient(v); }};
constinit const OpDef ceil{.name = "ceil", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+",
    .element = {[](R x, R) { return std::ceil(x[0]); }, identity}, .source = "ceil({0})", .vjp = [](Vjp& v) { v.grad(0) = zero_gradient(v); }};
constinit const OpDef round{.name = "round", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+",
    .element = {[](R x, R) { return half_even(x[0]); }, identity}, .source = "rint({0})", .vjp = [](Vjp& v) { v.grad(0) = zero_gradient(v); }};
constinit const OpDef trunc{.name = "trunc", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+",
    .element = {[](R x, R) { return std::trunc(x[0]); }, identity}, .source = "trunc({0})", .vjp = [](Vjp& v) { v.grad(0) = zero_gradient(v); }};
constinit const OpDef square{.name = "square", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".",
    .element = {[](R x, R) { return x[0] * x[0]; }, [](W x, R) { return static_cast<std::int64_t>(static_cast<std::uint64_t>(x[0]) * static_cast<std::uint64_t>(x[0])); }},
    .source = "({0} * {0})", .vjp = [](Vjp& v) { v.grad(0) = v.g() * (v.x() * 2.0); }, .saves = 1};
constinit const OpDef gelu{.name = "gelu", .kind = Kind::pointwise, .signature = "Tensor input, none|tanh approximate=none", .terms = "-", .mono = ".", .types = Types::real,
    .cost = 14,
    .element = {[](R x, R a) {
      if (a[0] == 0) return 0.5 * x[0] * (1 + std::erf(x[0] * sqrt_half));
      return 0.5 * x[0] * (1 + std::tanh(gelu_k * (x[0] + gelu_c * x[0] * x[0] * x[0])));
    }},
    .source = "({a0} == 0 ? 0.5 * {0} * (1 + erf({0} * 0.7071067811865476)) : 0.5 * {0} * (1 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0}))))",
    .vjp = [](Vjp& v) {
      Var const x = v.x();
      if (AttrReader{v.attrs}.number().value == 0) {
        Var const cdf = (call(erf, {x * sqrt_half}) + 1.0) * 0.5;
        Var const pdf = call(exp, {x * x * -0.5}) * (two_over_sqrt_pi * sqrt_half / 2);
        v.grad(0) = v.g() * (cdf + x * pdf);
        return;
      }
      Var const t = call(tanh, {(x + x * x * x * gelu_c) * gelu_k});
      Var const inner = (x * x * (3 * gelu_c) + 1.0) * gelu_k;
      v.grad(0) = v.g() * ((t + 1.0) * 0.5 + x * 0.5 * (-(t * t) + 1.0) * inner);
    }, .saves = 1};
constinit const OpDef silu{.name = "silu", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 11,
    .element = {[](R x, R) { return x[0] * logistic(x[0]); }}, .source = "({0} / (1 + exp(-{0})))",
    .vjp = [](Vjp& v) {
      Var const s = call(sigmoid, {v.x()});
      v.grad(0) = v.g() * (s * (v.x() * (-s + 1.0) + 1.0));
    }, .saves = 1};
constinit const OpDef softplus{.name = "softplus", .kind = Kind::pointwise, .signature = "Tensor input, float beta=1, float threshold=20", .terms = "-", .mono = "+",
    .types = Types::real, .precision = Precision::wide, .cost = 16,
    .element = {[](R x, R a) { return x[0] * a[0] > a[1] ? x[0] : std::log1p(std::exp(x[0] * a[0])) / a[0]; }},
    .source = "({0} * {a0} > {a1} ? {0} : log1p(exp({0} * {a0})) / {a0})",
    .vjp = [](Vjp& v) {
      Var const scaled = v.x() * num(v.attrs.nums[0]);
      v.grad(0) = choose(call(gt, {scaled, num(v.attrs.nums[1])}), v.g(), v.g() * call(sigmoid, {scaled}));
    }, .saves = 1};
constinit const OpDef leaky_relu{.name = "leaky_relu", .kind = Kind::pointwise, .signature = "Tensor input, float negative_slope=0.01", .terms = "-", .mono = ".",
    .element = {[](R x, R a) { return x[0] > 0 ? x[0] : x[0] * a[0]; }}, .source = "({0} > 0 ? {0} : {0} * {a0})",
    .vjp = [](Vjp& v) { v.grad(0) = choose(call(gt, {v.x(), 0.0}), v.g(), v.g() * num(v.attrs.nums[0])); }, .saves = 1};
constinit const OpDef isnan{.name = "isnan", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::boolean,
    .element = {[](R x, R) { return static_cast<double>(x[0] != x[0]); }, [](W, R) { return std::int64_t{0}; }}, .source = "({0} != {0})"};
constinit const OpDef logical_not{.name = "logical_not", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "-", .types = Types::boolean,
    .element = {[](R x, R) { return static_cast<double>(x[0] == 0); }, [](W x, R) { return static_cast<std::int64_t>(x[0] == 0); }}, .source = "({0} == 0)"};
constinit const OpDef to{.name = "to", .kind = Kind::pointwise, .signature = "Tensor input, dtype dtype", .terms = "a", .mono = "+", .types = Types::custom,
    .element = {[](R x, R) { return x[0]; }, identity}, .source = "{0}", .vjp = [](Vjp& v) { v.grad(0) = v.g(); },
    .infer = [](Inference& call) { call.out.push_back(contiguous_meta(AttrReader{call.attrs}.dtype(), call.x().device, call.x().sizes)); }};
constinit const OpDef to_device{.name = "to_device", .kind = Kind::pointwise, .signature = "Tensor input, device device", .terms = "a", .mono = "+", .copy = true,
    .element = {[](R x, R) { return x[0]; }, identity}, .source = "{0}",
    .vjp = [](Vjp& v) { v.grad(0) = call(to_device, {v.g()}, Attrs{}.with(v.x().meta().device)); },
    .infer = [](Inference& call) { call.out.push_back(contiguous_meta(call.x().dtype, AttrReader{call.attrs}.device(), call.x().sizes)); }};
constinit const OpDef clone{.name = "clone", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "a", .mono = "+", .copy = true,
    .element = {[](R x, R) { return x[0]; }, identity}, .source = "{0}", .vjp = [](Vjp& v) { v.grad(0) = v.g(); }};

namespace {
constexpr std::array rows{
    &neg, &abs, &exp, &expm1, &log, &log1p, &log2, &sqrt, &rsqrt, &reciprocal, &sin, &cos, &tanh, &sigmoid, &relu, &erf, &sign, &floor, &ceil, &round,
    &trunc, &square, &gelu, &silu, &softplus, &leaky_relu, &isnan, &logical_not, &to, &to_device, &clone};
}
// clang-format on
std::span<OpDef const* const> pointwise_rows() { return rows; }

}  // namespace tenon::ir::ops
