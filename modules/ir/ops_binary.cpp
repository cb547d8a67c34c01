// Rows of several operands, element by element with broadcasting.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
namespace {
using R = double const*;
using W = std::int64_t const*;

// Whole numbers wrap, as hardware and PyTorch do.
constexpr std::int64_t wrap(std::uint64_t bits) { return static_cast<std::int64_t>(bits); }
constexpr std::uint64_t bits(std::int64_t n) { return static_cast<std::uint64_t>(n); }
std::int64_t scaled_sum(std::int64_t a, std::int64_t b, double alpha) { return wrap(bits(a) + bits(b) * bits(base::truncate(alpha))); }
constexpr std::int64_t power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  std::uint64_t result = 1;
  for (auto square = bits(base); exponent; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return wrap(result);
}
double floor_mod(double a, double b) {
  double const rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
double floor_quotient_of(double a, double b) {  // as Python's: what is left over decides, not a rounded quotient (1 // 0.1 is 9)
  if (b == 0) return a / b;
  double const rest = std::fmod(a, b), quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
  return quotient == 0 ? std::copysign(0.0, a / b) : std::rint(quotient);
}
double nan_or(double a, double b, double chosen) { return a != a ? a : b != b ? b : chosen; }
Var alpha(Vjp& v) { return {nullptr, Input{-1, v.attrs.nums[0]}}; }
bool is_one(Scalar s) { return s.node < 0 && s.real == 1; }
// The larger (or smaller) operand takes the gradient; equal ones share it.
void share(Vjp& v, OpDef const& wins) {
  for (int k = 0; k < 2; ++k)
    if (v.wants(k)) {
      Var const tie = choose(call(eq, {v.x(0), v.x(1)}), v.g() * 0.5, 0.0);
      v.grad(k) = choose(call(wins, {v.x(k), v.x(1 - k)}), v.g(), tie);
    }
}
void infer_where(Inference& call) {
  std::vector<Meta const*> in(call.in.begin(), call.in.end());
  if (call.in[0] && call.x().dtype != base::DType::boolean && call.x().dtype != base::DType::u8)
    base::fail("where: the condition must be bool, not {}", base::info(call.x().dtype).name);
  auto sizes = infer(add, std::array{in[1] ? in[1] : in[0], in[0]}, std::array<Scalar, 2>{}, Attrs{}.with_num(1.0))[0].sizes;
  if (in[2]) {
    Meta const partial = contiguous_meta(in[2]->dtype, in[2]->device, sizes);
    sizes = infer(add, std::array<Meta const*, 2>{&partial, in[2]}, std::array<Scalar, 2>{}, Attrs{}.with_num(1.0))[0].sizes;
  }
  in[0] = nullptr;
  Inference values{call.op, call.attrs, in, call.scalars, {}};
  std::vector<base::DType> dtypes;
  std::vector<int> ranks;
  for (auto const* meta : in) {
    dtypes.push_back(meta ? meta->dtype : base::DType::f32);
    ranks.push_back(meta ? meta->rank() : -1);
  }
  call.out.push_back(contiguous_meta(common_type(dtypes, ranks, call.scalars), call.x().device, std::move(sizes)));
}
void infer_first(Inference& call) {
  auto const sizes = infer(add, std::array{call.in[0], call.in[1]}, std::array<Scalar, 2>{}, Attrs{}.with_num(1.0))[0].sizes;
  call.out.push_back(contiguous_meta(call.x().dtype, call.x().device, sizes));
}
}  // namespace

// clang-format off
constinit const OpDef add{.name = "add", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other, *, float alpha=1", .terms = "ab", .mono = "++", .affine = true,
    .element = {[](R x, R a) { return x[0] + a[0] * x[1]; }, [](W x, R a) { return scaled_sum(x[0], x[1], a[0]); }}, .source = "({0} + {a0} * {1})",
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      v.grad(1) = is_one(v.attrs.nums[0]) ? v.g() : v.g() * alpha(v);
    }};
constinit const OpDef sub{.name = "sub", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other, *, float alpha=1", .terms = "ab", .mono = "+-", .affine = true,
    .element = {[](R x, R a) { return x[0] - a[0] * x[1]; }, [](W x, R a) { return scaled_sum(x[0], x[1], -a[0]); }}, .source = "({0} - {a0} * {1})",
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      v.grad(1) = is_one(v.attrs.nums[0]) ? -v.g() : -v.g() * alpha(v);
    }};
constinit const OpDef mul{.name = "mul", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "aa", .mono = "..",
    .element = {[](R x, R) { return x[0] * x[1]; }, [](W x, R) { return wrap(bits(x[0]) * bits(x[1])); }}, .source = "({0} * {1})",
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = v.g() * v.x(1);
      if (v.wants(1)) v.grad(1) = v.g() * v.x(0);
    }, .saves = 3};
constinit const OpDef div{.name = "div", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "a-", .mono = "..", .types = Types::real, .cost = 4,
    .element = {[](R x, R) { return x[0] / x[1]; }}, .source = "({0} / {1})",
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = v.g() / v.x(1);
      if (v.wants(1)) v.grad(1) = -v.g() * (v.y() / v.x(1));
    }, .saves = 2 | saves_result};
constinit const OpDef pow{.name = "pow", .kind = Kind::pointwise, .signature = "Tensor input, Tensor exponent", .terms = "--", .mono = "..", .precision = Precision::wide, .cost = 20,
    .element = {[](R x, R) { return std::pow(x[0], x[1]); }, [](W x, R) { return power(x[0], x[1]); }}, .source = "pow({0}, {1})",
    .vjp = [](Vjp& v) {
      Var const x = v.x(0), p = v.x(1);
      if (v.wants(0) && !p.is_tensor() && p.input.scalar.node < 0) {
        double const n = p.input.scalar.real;
        v.grad(0) = n == 0 ? v.g() * 0.0 : v.g() * (call(pow, {x, n - 1}) * n);
      } else if (v.wants(0)) {
        Var const n = p.is_tensor() ? p : lifted(p, x);
        v.grad(0) = v.g() * choose(call(eq, {n, 0.0}), 0.0, n * call(pow, {x, n - 1.0}));
      }
      if (v.wants(1)) {  // 0 to a power of at least 0 does not move
        Var const base = x.is_tensor() ? x : lifted(x, p);
        Var const still = call(logical_and, {call(eq, {base, 0.0}), call(ge, {p, 0.0})});
        v.grad(1) = v.g() * choose(still, 0.0, v.y() * call(log, {base}));
      }
    }, .saves = 3 | saves_result};
constinit const OpDef maximum{.name = "maximum", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "++", .joint = Monoid::max,
    .element = {[](R x, R) { return nan_or(x[0], x[1], std::max(x[0], x[1])); }, [](W x, R) { return std::max(x[0], x[1]); }}, .source = "({0} > {1} || {0} != {0} ? {0} : {1})",
    .vjp = [](Vjp& v) { share(v, gt); }, .saves = 3};
constinit const OpDef minimum{.name = "minimum", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "++", .joint = Monoid::min,
    .element = {[](R x, R) { return nan_or(x[0], x[1], std::min(x[0], x[1])); }, [](W x, R) { return std::min(x[0], x[1]); }}, .source = "({0} < {1} || {0} != {0} ? {0} : {1})",
    .vjp = [](Vjp& v) { share(v, lt); }, .saves = 3};
constinit const OpDef remainder{.name = "remainder", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .cost = 4,
    .element = {[](R x, R) { return floor_mod(x[0], x[1]); },
        [](W x, R) { return x[1] == 0 ? std::int64_t{-1} : x[1] == -1 ? std::int64_t{0} : x[0] % x[1] + ((x[0] % x[1] != 0 && (x[0] % x[1] < 0) != (x[1] < 0)) ? x[1] : 0); }},
    .source = "(fmod({0}, {1}) + (fmod({0}, {1}) != 0 && (fmod({0}, {1}) < 0) != ({1} < 0) ? {1} : 0))",
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      if (v.wants(1)) v.grad(1) = -v.g() * call(floor_divide, {v.x(0), v.x(1)});
    }, .saves = 3};
constinit const OpDef floor_divide{.name = "floor_divide", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "..", .cost = 4,
    .element = {[](R x, R) { return floor_quotient_of(x[0], x[1]); },
        [](W x, R) { return x[1] == 0 ? std::int64_t{-1} : x[1] == -1 ? wrap(0 - bits(x[0])) : x[0] / x[1] - ((x[0] % x[1] != 0 && (x[0] < 0) != (x[1] < 0)) ? 1 : 0); }},
    .source = "({1} == 0 ? {0} / {1} : rint(({0} - fmod({0}, {1})) / {1} - (fmod({0}, {1}) != 0 && (fmod({0}, {1}) < 0) != ({1} < 0))))"};

#define COMPARISON(row, torch_name, sign, falls, rises)                                                                                                       \
  constinit const OpDef row{.name = torch_name, .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = falls rises,             \
      .types = Types::boolean,                                                                                                                                   \
      .element = {[](R x, R) { return static_cast<double>(x[0] sign x[1]); }, [](W x, R) { return static_cast<std::int64_t>(x[0] sign x[1]); }},                \
      .source = "({0} " #sign " {1})"}
COMPARISON(eq, "eq", ==, ".", ".");
COMPARISON(ne, "ne", !=, ".", ".");
COMPARISON(lt, "lt", <, "-", "+");
COMPARISON(le, "le", <=, "-", "+");
COMPARISON(gt, "gt", >, "+", "-");
COMPARISON(ge, "ge", >=, "+", "-");
#undef COMPARISON

constinit const OpDef logical_and{.name = "logical_and", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "++",
    .joint = Monoid::min, .types = Types::boolean,
    .element = {[](R x, R) { return static_cast<double>(x[0] != 0 && x[1] != 0); }, [](W x, R) { return static_cast<std::int64_t>(x[0] != 0 && x[1] != 0); }},
    .source = "({0} && {1})"};
constinit const OpDef logical_or{.name = "logical_or", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other", .terms = "--", .mono = "++", .joint = Monoid::max,
    .types = Types::boolean,
    .element = {[](R x, R) { return static_cast<double>(x[0] != 0 || x[1] != 0); }, [](W x, R) { return static_cast<std::int64_t>(x[0] != 0 || x[1] != 0); }},
    .source = "({0} || {1})"};
constinit const OpDef where{.name = "where", .kind = Kind::pointwise, .signature = "Tensor condition, Tensor input, Tensor other", .terms = "-ab", .mono = ".++",
    .types = Types::custom, .element = {[](R x, R) { return x[0] != 0 ? x[1] : x[2]; }, [](W x, R) { return x[0] != 0 ? x[1] : x[2]; }}, .source = "({0} ? {1} : {2})",
    .vjp = [](Vjp& v) {
      if (v.wants(1)) v.grad(1) = choose(v.x(0), v.g(), 0.0);
      if (v.wants(2)) v.grad(2) = choose(v.x(0), 0.0, v.g());
    }, .saves = 1, .infer = infer_where};
constinit const OpDef masked_fill{.name = "masked_fill", .kind = Kind::pointwise, .signature = "Tensor input, Tensor mask, float value", .terms = "--", .mono = "+.",
    .types = Types::custom, .element = {[](R x, R a) { return x[1] != 0 ? a[0] : x[0]; }}, .source = "({1} ? {a0} : {0})",
    .vjp = [](Vjp& v) { v.grad(0) = choose(v.x(1), 0.0, v.g()); }, .saves = 2, .infer = infer_first};
constinit const OpDef clamp{.name = "clamp", .kind = Kind::pointwise, .signature = "Tensor input, float? min, float? max", .terms = "-", .mono = "+",
    .element = {[](R x, R a) {
      double const low = x[0] < a[0] ? a[0] : x[0];  // a NaN bound (absent) compares false
      return low > a[1] ? a[1] : low;
    }},
    .source = "({0} < {a0} ? {a0} : {0} > {a1} ? {a1} : {0})",
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      if (v.attrs.nums[0].kind != ScalarKind::none) v.grad(0) = choose(call(ge, {v.x(), num(v.attrs.nums[0])}), v.grad(0), 0.0);
      if (v.attrs.nums[1].kind != ScalarKind::none) v.grad(0) = choose(call(le, {v.x(), num(v.attrs.nums[1])}), v.grad(0), 0.0);
    }, .saves = 1};
constinit const OpDef lerp{.name = "lerp", .kind = Kind::pointwise, .signature = "Tensor input, Tensor end, Tensor weight", .terms = "ab-", .mono = "...",
    .element = {[](R x, R) { return std::fabs(x[2]) < 0.5 ? x[0] + x[2] * (x[1] - x[0]) : x[1] - (x[1] - x[0]) * (1 - x[2]); }},
    .source = "(fabs({2}) < 0.5 ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1 - {2}))",
    .vjp = [](Vjp& v) {
      Var const w = v.x(2);
      if (v.wants(0)) v.grad(0) = v.g() - v.g() * w;
      if (v.wants(1)) v.grad(1) = v.g() * w;
      if (v.wants(2)) v.grad(2) = v.g() * (v.x(1) - v.x(0));
    }, .saves = 7};

namespace {
constexpr std::array rows{
    &add, &sub, &mul, &div, &pow, &maximum, &minimum, &remainder, &floor_divide, &eq, &ne, &lt, &le, &gt, &ge, &logical_and, &logical_or, &where,
    &masked_fill, &clamp, &lerp};
}
// clang-format on
std::span<OpDef const* const> binary_rows() { return rows; }

}  // namespace tenon::ir::ops
