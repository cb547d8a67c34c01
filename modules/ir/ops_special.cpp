// Rows of elementary and special functions and of bits: a few with an element of their own, the others made of them.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
using R = double const*;
using W = std::int64_t const*;
constexpr double inf = std::numeric_limits<double>::infinity(), two_over_sqrt_pi = 2 * std::numbers::inv_sqrtpi;

// Bits of a double are those of the whole number in it, where one is.
std::int64_t whole(double x) { return std::fabs(x) < 9e18 ? static_cast<std::int64_t>(x) : 0; }
void infer_bits(Inference& call) {
  auto const type = result_type(call);
  if (base::is_real(type)) fail("{}: bits are those of whole numbers and bools, not of {}", call.op.name, base::info(type).name);
  Meta like = infer(add, call.in, call.scalars, Attrs{}.with_num(1.0))[0];
  call.out.push_back(contiguous_meta(type, like.device, std::move(like.sizes)));
}
double largest(DType type) {
  switch (type) {
    case DType::f64:
      return std::numeric_limits<double>::max();
    case DType::f16:
      return 65504;
    case DType::bf16:
      return 0x1.fep127;
    case DType::f8e4m3:
      return 448;
    case DType::f8e5m2:
      return 57344;
    default:
      return static_cast<double>(std::numeric_limits<float>::max());
  }
}
void nan_to_num_body(Body& body) {
  auto const type = body.x().meta().dtype;
  if (!base::is_real(type)) return void(body.out.push_back(call(clone, {body.x()})));
  auto const given = [&](std::size_t k, double usual) { return body.attrs.nums[k].kind == ScalarKind::none ? Var(usual) : num(body.attrs.nums[k]); };
  Var const x = body.x(), low = choose(call(eq, {x, -inf}), given(2, -largest(type)), x);
  body.out.push_back(choose(call(isnan, {x}), given(0, 0), choose(call(eq, {x, inf}), given(1, largest(type)), low)));
}
void logaddexp_body(Body& body) {  // equal infinities have no difference
  auto const x = wide_operands(body);
  Var const gap = call(abs, {x[0] - x[1]}), top = call(maximum, {x[0], x[1]});
  settle(body, top + choose(call(eq, {x[0], x[1]}), std::numbers::ln2, call(log1p, {call(exp, {-gap})})));
}
void isclose_body(Body& body) {
  double const relative = pinned(body.attrs.nums[0]), absolute = pinned(body.attrs.nums[1]);
  if (!(relative >= 0) || !(absolute >= 0)) fail("isclose: rtol {} and atol {} must not be negative", relative, absolute);
  auto const x = wide_operands(body);
  Var const gap = call(abs, {x[0] - x[1]}), allowed = call(abs, {x[1]}) * relative + absolute;
  Var const near = call(logical_and, {call(lt, {gap, inf}), call(le, {gap, allowed})});
  Var const close = call(logical_or, {call(eq, {tensor_of(body, 0), body.x(1)}), near});
  bool const alike = body.attrs.ints[0].value != 0;
  body.out.push_back(alike ? call(logical_or, {close, call(logical_and, {call(isnan, {x[0]}), call(isnan, {x[1]})})}) : close);
}
// The body of a function of one real operand.
template <Var (*function)(Var)>
void real_body(Body& body) {
  body.out.push_back(in_wide(body.x(), function));
}
Var asinh_of(Var x) {  // log1p(a + a² / (1 + √(1 + a²))) for a = |x|, written so that no square overflows
  Var const a = call(abs, {x}), back = call(reciprocal, {a});
  return call(copysign, {call(log1p, {a + a / (back + call(hypot, {back, 1.0}))}), x});
}
Var cosine_of(Var x) { return call(sqrt, {(Var(1.0) - x) * (x + 1.0)}); }  // of the angle whose sine is x
Var sinc_of(Var x) {
  Var const turn = x * std::numbers::pi;
  return choose(call(eq, {x, 0.0}), 1.0, call(sin, {turn}) / turn);
}
}  // namespace

// clang-format off
constinit const OpDef atan2{.name = "atan2", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .types = Types::real, .cost = 16,
    .element = {[](R x, R) { return std::atan2(x[0], x[1]); }}, .source = "atan2({0}, {1})",
    .vjp = [](Vjp& v) {
      Var const far = call(hypot, {v.x(0), v.x(1)});
      if (v.wants(0)) v.grad(0) = v.g() * (v.x(1) / far / far);
      if (v.wants(1)) v.grad(1) = v.g() * (-(v.x(0) / far) / far);
    }, .saves = 3};
constinit const OpDef hypot{.name = "hypot", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", 
    .types = Types::real, .cost = 8, .element = {[](R x, R) { return std::hypot(x[0], x[1]); }}, .source = "hypot({0}, {1})",
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = v.g() * (v.x(0) / v.y());
      if (v.wants(1)) v.grad(1) = v.g() * (v.x(1) / v.y());
    }, .saves = 3 | saves_result};
constinit const OpDef erfc{.name = "erfc", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "-", .types = Types::real, .precision = Precision::wide,
    .cost = 10, .element = {[](R x, R) { return std::erfc(x[0]); }}, .source = "erfc({0})",
    .vjp = [](Vjp& v) { v.grad(0) = v.g() * (call(exp, {-(v.x() * v.x())}) * -two_over_sqrt_pi); }, .saves = 1};
constinit const OpDef copysign{.name = "copysign", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .types = Types::real,
    .element = {[](R x, R) { return std::copysign(x[0], x[1]); }}, .source = "copysign({0}, {1})",
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = choose(call(eq, {v.x(0), 0.0}), 0.0, v.g() * (v.y() / v.x(0)));
      if (v.wants(1)) v.grad(1) = v.g() * 0.0;
    }, .saves = 1 | saves_result};
constinit const OpDef fmod{.name = "fmod", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .cost = 4,
    .element = {[](R x, R) { return std::fmod(x[0], x[1]); },
        [](W x, R) { return x[1] == 0 ? std::int64_t{-1} : x[1] == -1 ? std::int64_t{0} : x[0] % x[1]; }}, .source = "fmod({0}, {1})",
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      if (v.wants(1)) v.grad(1) = -v.g() * call(trunc, {v.x(0) / v.x(1)});
    }, .saves = 3};
#define BITS(row, torch_name, sign)                                                                                                                            \
  constinit const OpDef row{.name = torch_name, .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..",             \
      .types = Types::promote,                                                                                                                                  \
      .element = {[](R x, R) { return static_cast<double>(whole(x[0]) sign whole(x[1])); }, [](W x, R) { return x[0] sign x[1]; }},                            \
      .source = "((fabs({0}) < 9e18 ? (long long)({0}) : 0) " #sign " (fabs({1}) < 9e18 ? (long long)({1}) : 0))", .infer = infer_bits}
BITS(bitwise_and, "bitwise_and", &);
BITS(bitwise_or, "bitwise_or", |);
BITS(bitwise_xor, "bitwise_xor", ^);
#undef BITS

constinit const OpDef bitwise_not{.name = "bitwise_not", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "-",
    .decompose = [](Body& b) {
      bool const flag = b.x().meta().dtype == DType::boolean;
      b.out.push_back(flag ? call(logical_not, {b.x()}) : call(bitwise_xor, {b.x(), Var(-1)}));
    }};
constinit const OpDef logical_xor{.name = "logical_xor", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .types = Types::boolean,
    .decompose = [](Body& b) { b.out.push_back(call(ne, {call(logical_not, {tensor_of(b, 0)}), call(logical_not, {tensor_of(b, 1)})})); }};
constinit const OpDef tan{.name = "tan", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 24,
    .vjp = [](Vjp& v) { v.grad(0) = v.g() * (v.y() * v.y() + 1.0); }, .saves = saves_result,
    .decompose = real_body<[](Var x) { return call(sin, {x}) / call(cos, {x}); }>};
constinit const OpDef sinh{.name = "sinh", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 18, .vjp = [](Vjp& v) { v.grad(0) = v.g() * call(cosh, {v.x()}); }, .saves = 1,
    .decompose = real_body<[](Var x) { return (call(expm1, {x}) - call(expm1, {-x})) * 0.5; }>};
constinit const OpDef cosh{.name = "cosh", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide,
    .cost = 18, .vjp = [](Vjp& v) { v.grad(0) = v.g() * call(sinh, {v.x()}); }, .saves = 1,
    .decompose = real_body<[](Var x) { return (call(exp, {x}) + call(exp, {-x})) * 0.5; }>};
constinit const OpDef atan{.name = "atan", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 16,
    .vjp = [](Vjp& v) { v.grad(0) = v.g() / (v.x() * v.x() + 1.0); }, .saves = 1, .decompose = real_body<[](Var x) { return call(atan2, {x, 1.0}); }>};
constinit const OpDef asin{.name = "asin", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 22,
    .vjp = [](Vjp& v) { v.grad(0) = v.g() / cosine_of(v.x()); }, .saves = 1, .decompose = real_body<[](Var x) { return call(atan2, {x, cosine_of(x)}); }>};
constinit const OpDef acos{.name = "acos", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "-", .types = Types::real, .cost = 22,
    .vjp = [](Vjp& v) { v.grad(0) = -v.g() / cosine_of(v.x()); }, .saves = 1, .decompose = real_body<[](Var x) { return call(atan2, {cosine_of(x), x}); }>};
constinit const OpDef asinh{.name = "asinh", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 30, .vjp = [](Vjp& v) { v.grad(0) = v.g() / call(hypot, {v.x(), 1.0}); }, .saves = 1, .decompose = real_body<asinh_of>};
constinit const OpDef acosh{.name = "acosh", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 20, .vjp = [](Vjp& v) { v.grad(0) = v.g() / (call(sqrt, {v.x() - 1.0}) * call(sqrt, {v.x() + 1.0})); }, .saves = 1,
    .decompose = real_body<[](Var x) { return call(log1p, {x - 1.0 + call(sqrt, {x - 1.0}) * call(sqrt, {x + 1.0})}); }>};
constinit const OpDef atanh{.name = "atanh", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 20, .vjp = [](Vjp& v) { v.grad(0) = v.g() / (Var(1.0) - v.x() * v.x()); }, .saves = 1,
    .decompose = real_body<[](Var x) { return (call(log1p, {x}) - call(log1p, {-x})) * 0.5; }>};
constinit const OpDef exp2{.name = "exp2", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 8, .vjp = [](Vjp& v) { v.grad(0) = v.g() * (v.y() * std::numbers::ln2); }, .saves = saves_result,
    .decompose = real_body<[](Var x) { return call(pow, {2.0, x}); }>};
constinit const OpDef log10{.name = "log10", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .precision = Precision::wide,
    .cost = 9, .decompose = real_body<[](Var x) { return call(log, {x}) / std::numbers::ln10; }>};
constinit const OpDef sinc{.name = "sinc", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 14,
    .vjp = [](Vjp& v) {
      Var const still = call(eq, {v.x(), 0.0}), x = choose(still, 1.0, v.x());
      v.grad(0) = choose(still, 0.0, v.g() * ((call(cos, {x * std::numbers::pi}) - v.y()) / x));
    }, .saves = 1 | saves_result, .decompose = real_body<sinc_of>};
constinit const OpDef frac{.name = "frac", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .cost = 2,
    .vjp = [](Vjp& v) { v.grad(0) = v.g(); }, .decompose = [](Body& b) { b.out.push_back(b.x() - call(trunc, {b.x()})); }};
constinit const OpDef isfinite{.name = "isfinite", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::boolean, .cost = 2,
    .decompose = [](Body& b) { b.out.push_back(call(lt, {call(abs, {b.x()}), inf})); }};
constinit const OpDef isinf{.name = "isinf", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::boolean, .cost = 2,
    .decompose = [](Body& b) { b.out.push_back(call(eq, {call(abs, {b.x()}), inf})); }};
constinit const OpDef nan_to_num{.name = "nan_to_num", .kind = Kind::pointwise, .signature = "Tensor input, float nan=0, float? posinf=None, float? neginf=None", .terms = "-",
    .mono = ".", .cost = 6, .decompose = nan_to_num_body};
constinit const OpDef logaddexp{.name = "logaddexp", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "++", .types = Types::real,
    .precision = Precision::wide, .cost = 20,
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = v.g() * call(sigmoid, {v.x(0) - v.x(1)});
      if (v.wants(1)) v.grad(1) = v.g() * call(sigmoid, {v.x(1) - v.x(0)});
    }, .saves = 3, .decompose = logaddexp_body};
constinit const OpDef xlogy{.name = "xlogy", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .types = Types::real,
    .precision = Precision::wide, .cost = 10,
    .vjp = [](Vjp& v) {
      Var const x = v.x(0), y = v.x(1);
      if (v.wants(0)) {  // 0 log y stays 0 for y <= 0
        Var const base = y.is_tensor() ? y : lifted(y, x);
        Var const still = call(logical_and, {call(eq, {x, 0.0}), call(le, {base, 0.0})});
        v.grad(0) = v.g() * choose(still, 0.0, call(log, {base}));
      }
      if (v.wants(1)) v.grad(1) = v.g() * (x / y);
    }, .saves = 3,
    .decompose = [](Body& b) {
      auto const x = wide_operands(b);
      settle(b, choose(call(isnan, {x[1]}), x[1], choose(call(eq, {x[0], 0.0}), 0.0, x[0] * call(log, {x[1]}))));
    }};
constinit const OpDef heaviside{.name = "heaviside", .kind = Kind::pointwise, .signature = "Tensor input, Tensor values", .terms = "--", .mono = "..",
    .decompose = [](Body& b) {
      Var const x = tensor_of(b, 0), step = call(gt, {x, 0.0});
      b.out.push_back(choose(call(eq, {x, 0.0}), b.x(1), cast(step, x.meta().dtype)));
    }};
constinit const OpDef isclose{.name = "isclose", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other, fixed rtol=1e-05, fixed atol=1e-08, bool equal_nan=False",
    .terms = "--", .mono = "..", .types = Types::boolean, .cost = 6, .decompose = isclose_body};
constinit const OpDef rsub{.name = "rsub", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other, *, float alpha=1", .terms = "ab", .mono = "-+", .affine = true,
    .decompose = [](Body& b) { b.out.push_back(call(sub, {b.x(1), b.x(0)}, b.attrs)); }};
constinit const OpDef clamp_min{.name = "clamp_min", .kind = Kind::pointwise, .signature = "Tensor input, Tensor min", .terms = "--", .mono = "++",
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = choose(call(ge, {v.x(0), v.x(1)}), v.g(), 0.0);
      if (v.wants(1)) v.grad(1) = choose(call(lt, {v.x(0), v.x(1)}), v.g(), 0.0);
    }, .saves = 3, .decompose = [](Body& b) { b.out.push_back(call(maximum, {b.x(0), b.x(1)})); }};
constinit const OpDef clamp_max{.name = "clamp_max", .kind = Kind::pointwise, .signature = "Tensor input, Tensor max", .terms = "--", .mono = "++",
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = choose(call(le, {v.x(0), v.x(1)}), v.g(), 0.0);
      if (v.wants(1)) v.grad(1) = choose(call(gt, {v.x(0), v.x(1)}), v.g(), 0.0);
    }, .saves = 3, .decompose = [](Body& b) { b.out.push_back(call(minimum, {b.x(0), b.x(1)})); }};
constinit const OpDef addcmul{.name = "addcmul", .kind = Kind::pointwise, .signature = "Tensor input, Tensor tensor1, Tensor tensor2, *, float value=1", .terms = "abb",
    .mono = "+..", .cost = 3, .decompose = [](Body& b) { b.out.push_back(call(add, {b.x(0), tensor_of(b, 1) * b.x(2)}, b.attrs)); }};
constinit const OpDef addcdiv{.name = "addcdiv", .kind = Kind::pointwise, .signature = "Tensor input, Tensor tensor1, Tensor tensor2, *, float value=1", .terms = "ab-",
    .mono = "+..", .types = Types::real, .cost = 6, .decompose = [](Body& b) { b.out.push_back(call(add, {b.x(0), tensor_of(b, 1) / b.x(2)}, b.attrs)); }};
constinit const OpDef deg2rad{.name = "deg2rad", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "a", .mono = "+", .types = Types::real,
    .decompose = [](Body& b) { b.out.push_back(b.x() * (std::numbers::pi / 180)); }};
constinit const OpDef rad2deg{.name = "rad2deg", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "a", .mono = "+", .types = Types::real,
    .decompose = [](Body& b) { b.out.push_back(b.x() * (180 / std::numbers::pi)); }};

namespace {
constexpr std::array rows{
    &atan2, &hypot, &erfc, &copysign, &fmod, &bitwise_and, &bitwise_or, &bitwise_xor, &bitwise_not, &logical_xor, &tan, &sinh, &cosh, &atan, &asin, &acos,
    &asinh, &acosh, &atanh, &exp2, &log10, &sinc, &frac, &isfinite, &isinf, &nan_to_num, &logaddexp, &xlogy, &heaviside, &isclose, &rsub, &clamp_min,
    &clamp_max, &addcmul, &addcdiv, &deg2rad, &rad2deg};
}
// clang-format on
std::span<OpDef const* const> special_rows() { return rows; }

}  // namespace tenon::ir::ops
