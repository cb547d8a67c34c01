// Rows of activations, as bodies over the core: small floats are computed in f32 inside. Sources: elu, Clevert et al. 2015; celu, Barron 2017;
// selu, Klambauer et al. 2017; hardswish, Howard et al. 2019; mish, Misra 2019; prelu, He et al. 2015; glu, Dauphin et al. 2016.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
constexpr double selu_scale = 1.0507009873554805, selu_alpha = 1.6732632423543772;

Var at_most(Var x, Var top) { return call(clamp, {x}, Attrs{}.with_num(Scalar()).with_num(top.input.scalar)); }
Var hard(Var x, double low, double high) { return call(hardtanh, {x}, Attrs{}.with_num(low).with_num(high)); }
Var hard_gate(Var x) { return hard(x + 3.0, 0, 6) / 6.0; }
// The branch below zero sees nothing above it, so that its slope there is 0 and not 0 times infinity.
Var exponential_below(Var x, Var alpha) { return call(relu, {x}) + call(expm1, {at_most(x, 0.0)}) * alpha; }

template <Var (*function)(Var)>
void real_body(Body& body) {
  body.out.push_back(in_wide(body.x(), function));
}
/// The same with the first float of the call.
template <Var (*function)(Var, Var)>
void scaled_body(Body& body) {
  body.out.push_back(in_wide(body.x(), [&](Var x) { return function(x, num(body.attrs.nums[0])); }));
}

// One slope, or one a channel (dim 1).
void prelu_body(Body& body) {
  Var const x = tensor_of(body, 0);
  Var slope = tensor_of(body, 1);
  if (slope.rank() > 1) fail("prelu: the weight must have rank 0 or 1: {}", to_string(slope.meta()));
  if (slope.rank() == 1 && same(slope.size(0), 1)) {
    slope = call(reshape, {slope}, Attrs{}.with(Dims{}));
  } else if (slope.rank() == 1) {
    if (x.rank() < 2 || !same(slope.size(0), x.size(1)))
      fail("prelu: {} slopes for an input {} with {} channels", slope.size(0).value, to_string(x.meta()), x.rank() < 2 ? 1 : x.size(1).value);
    Dims sizes;
    for (int d = 0; d < x.rank(); ++d) sizes.push_back(d == 1 ? x.size(1) : Dim(1));
    slope = call(reshape, {slope}, Attrs{}.with(sizes));
  }
  body.out.push_back(choose(call(gt, {x, 0.0}), x, slope * x));
}
std::string prelu_equation(Attrs const&, std::span<Meta const* const> in) {
  if (!in[0] || !in[1]) return "...";
  auto const all = letters(in[0]->rank());
  bool const one = in[1]->rank() == 0 || in[1]->sizes[0].value == 1 || in[0]->rank() < 2;
  return all + "," + (in[1]->rank() == 0 ? "" : one ? "1" : "b") + "->" + all;
}
void glu_body(Body& body) {
  Var const x = body.x();
  if (x.rank() == 0) fail("glu: a 0-d input has no halves");
  int const dim = base::wrap_dim("glu", body.attrs.ints[0].value, x.rank());
  Dim const size = x.size(dim), half = size / Dim(2);
  if (!same(half * Dim(2), size)) fail("glu: dim {} of {} is odd: {}", dim, to_string(x.meta()), size.value);
  auto const part = [&](Dim from, Dim to) { return call(slice, {x}, at_dim(dim).with(from).with(to).with(Dim(1))); };
  Var const left = part(0, half), right = part(half, size);
  body.out.push_back(in_wide(left, [&](Var wide) { return wide * call(sigmoid, {widened(right)}); }));
}
}  // namespace

// clang-format off
constinit const OpDef hardtanh{.name = "hardtanh", .kind = Kind::pointwise, .signature = "Tensor input, fixed min_val=-1, fixed max_val=1", .terms = "-", .mono = "+",
    .cost = 2,
    .vjp = [](Vjp& v) {
      Var const inside = call(logical_and, {call(gt, {v.x(), num(v.attrs.nums[0])}), call(lt, {v.x(), num(v.attrs.nums[1])})});
      v.grad(0) = choose(inside, v.g(), 0.0);
    }, .saves = 1, .decompose = [](Body& b) {
      double const low = pinned(b.attrs.nums[0]), high = pinned(b.attrs.nums[1]);
      if (low > high) fail("hardtanh: min_val {} exceeds max_val {}", low, high);
      b.out.push_back(call(clamp, {b.x()}, b.attrs));
    }};
constinit const OpDef relu6{.name = "relu6", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .cost = 2,
    .decompose = [](Body& b) { b.out.push_back(hard(b.x(), 0, 6)); }};
constinit const OpDef hardsigmoid{.name = "hardsigmoid", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 4,
    .decompose = real_body<hard_gate>};
constinit const OpDef hardswish{.name = "hardswish", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 5,
    .decompose = real_body<[](Var x) { return x * hard_gate(x); }>};
constinit const OpDef elu{.name = "elu", .kind = Kind::pointwise, .signature = "Tensor input, float alpha=1", .terms = "-", .mono = ".", .types = Types::real, .cost = 12,
    .decompose = scaled_body<exponential_below>};
constinit const OpDef celu{.name = "celu", .kind = Kind::pointwise, .signature = "Tensor input, float alpha=1", .terms = "-", .mono = ".", .types = Types::real, .cost = 13,
    .decompose = scaled_body<[](Var x, Var alpha) { return call(relu, {x}) + call(expm1, {at_most(x, 0.0) / alpha}) * alpha; }>};
constinit const OpDef selu{.name = "selu", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 13,
    .decompose = real_body<[](Var x) { return exponential_below(x, selu_alpha) * selu_scale; }>};
constinit const OpDef hardshrink{.name = "hardshrink", .kind = Kind::pointwise, .signature = "Tensor input, float lambd=0.5", .terms = "-", .mono = ".", .cost = 3,
    .decompose = [](Body& b) { b.out.push_back(choose(call(le, {call(abs, {b.x()}), num(b.attrs.nums[0])}), Var(0), b.x())); }};
constinit const OpDef softshrink{.name = "softshrink", .kind = Kind::pointwise, .signature = "Tensor input, fixed lambd=0.5", .terms = "-", .mono = "+", .types = Types::real,
    .cost = 5, .decompose = [](Body& b) {
      if (double const least = pinned(b.attrs.nums[0]); least < 0) fail("softshrink: lambd can't be negative: {}", least);
      scaled_body<[](Var x, Var lambd) { return call(sign, {x}) * call(relu, {call(abs, {x}) - lambd}); }>(b);
    }};
constinit const OpDef softsign{.name = "softsign", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 6,
    .decompose = real_body<[](Var x) { return x / (call(abs, {x}) + 1.0); }>};
constinit const OpDef tanhshrink{.name = "tanhshrink", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real, .cost = 11,
    .decompose = real_body<[](Var x) { return x - call(tanh, {x}); }>};
constinit const OpDef logsigmoid{.name = "logsigmoid", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = "+", .types = Types::real,
    .precision = Precision::wide, .cost = 18, .vjp = [](Vjp& v) { v.grad(0) = v.g() * call(sigmoid, {-v.x()}); }, .saves = 1,
    .decompose = real_body<[](Var x) { return at_most(x, 0.0) - call(log1p, {call(exp, {-call(abs, {x})})}); }>};
constinit const OpDef mish{.name = "mish", .kind = Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = Types::real, .cost = 28,
    .decompose = real_body<[](Var x) { return x * call(tanh, {call(softplus, {x}, Attrs{}.with_num(1.0).with_num(20.0))}); }>};
constinit const OpDef threshold{.name = "threshold", .kind = Kind::pointwise, .signature = "Tensor input, float threshold, float value", .terms = "-", .mono = ".", .cost = 2,
    .decompose = [](Body& b) { b.out.push_back(choose(call(le, {b.x(), num(b.attrs.nums[0])}), num(b.attrs.nums[1]), b.x())); }};
constinit const OpDef prelu{.name = "prelu", .kind = Kind::pointwise, .signature = "Tensor input, Tensor weight", .equation = {.build = prelu_equation}, .terms = "--",
    .mono = "..", .cost = 3, .decompose = prelu_body};
constinit const OpDef logit{.name = "logit", .kind = Kind::pointwise, .signature = "Tensor input, fixed? eps=None", .terms = "-", .mono = "+", .types = Types::real,
    .precision = Precision::wide, .cost = 14,
    .decompose = [](Body& b) {
      Scalar const eps = b.attrs.nums[0];
      b.out.push_back(in_wide(b.x(), [&](Var x) {
        if (eps.kind != ScalarKind::none) {  // as PyTorch: an eps above a half still decides by the lower bound first
          double const low = pinned(eps), high = 1 - low;
          x = low <= high ? call(clamp, {x}, Attrs{}.with_num(low).with_num(high)) : choose(call(lt, {x, low}), low, choose(call(gt, {x, high}), high, x));
        }
        return call(log, {x / (Var(1.0) - x)});
      }));
    }};
constinit const OpDef glu{.name = "glu", .kind = Kind::normalise, .signature = "Tensor input, int dim=-1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      auto from = letters(in[0]->rank()), to = from;
      auto const d = static_cast<std::size_t>(base::wrap_dim("glu", attrs.ints[0].value, in[0]->rank()));
      to[d] = letters(1, in[0]->rank())[0];
      return from.insert(d + 1, "!") + "->" + to.insert(d + 1, "!");
    }},
    .terms = "-", .mono = ".", .types = Types::real, .cost = 12, .decompose = glu_body};
constinit const OpDef softmin{.name = "softmin", .kind = Kind::normalise, .signature = "Tensor input, int dim, dtype? dtype=None", .equation = {.build = whole_dim_equation},
    .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 13, .decompose = [](Body& b) { b.out.push_back(call(softmax, {-b.x()}, b.attrs)); }};

namespace {
constexpr std::array rows{
    &hardtanh, &relu6, &hardsigmoid, &hardswish, &elu, &celu, &selu, &hardshrink, &softshrink, &softsign, &tanhshrink, &logsigmoid, &mish, &threshold, &prelu,
    &logit, &glu, &softmin};
}
// clang-format on
std::span<OpDef const* const> activation_rows() { return rows; }

}  // namespace tenon::ir::ops
