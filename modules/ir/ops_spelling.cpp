// Rows that are another row spelled otherwise: a tensor where that one takes a number, one more argument, another name.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
// x where it lies within the bound (or is NaN), else the bound.
Var bounded(Var x, Var bound, OpDef const& within) { return bound ? choose(call(logical_or, {call(within, {x, bound}), call(isnan, {x})}), x, bound) : x; }
void need_scalar(Var value) {
  if (value.rank() != 0) fail("the value must be a 0-d tensor, not {}", to_string(value.meta()));
}
// Towards zero; whole numbers stay whole.
Var truncated(Var x, Var y) {
  auto const whole = [](Var v) { return v.is_tensor() ? !base::is_real(v.meta().dtype) : v.input.scalar.kind != ScalarKind::real; };
  if (!whole(x) || !whole(y)) return call(trunc, {x / y});
  auto const size = [](Var v) { return v.is_tensor() ? call(abs, {v}) : Var(v.input.scalar.whole < 0 ? -v.input.scalar.whole : v.input.scalar.whole); };
  auto const way = [](Var v) { return v.is_tensor() ? call(sign, {v}) : Var(v.input.scalar.whole < 0 ? -1 : 1); };
  return call(floor_divide, {size(x), size(y)}) * way(x) * way(y);
}
}  // namespace

// clang-format off
constinit const OpDef clamp_tensor{.name = "clamp.Tensor", .kind = Kind::pointwise, .signature = "Tensor input, Tensor? min=None, Tensor? max=None", .terms = "---", .mono = "+++",
    .decompose = [](Body& b) {
      if (!b.x(1) && !b.x(2)) fail("needs min or max");
      b.out.push_back(bounded(bounded(tensor_of(b, 0), b.x(1), ge), b.x(2), le));
    }};
constinit const OpDef masked_fill_tensor{.name = "masked_fill.Tensor", .kind = Kind::pointwise, .signature = "Tensor input, Tensor mask, Tensor value", .terms = "a-b",
    .mono = "+.+", .decompose = [](Body& b) {
      Var const x = tensor_of(b, 0), value = tensor_of(b, 2);
      need_scalar(value);
      b.out.push_back(choose(b.x(1), cast(value, x.meta().dtype), x));
    }};
constinit const OpDef div_mode{.name = "div.Tensor_mode", .kind = Kind::pointwise, .signature = "Tensor input, Tensor other, *, none|trunc|floor rounding_mode=none", .terms = "--",
    .mono = "..", .cost = 5, .decompose = [](Body& b) {
      auto const mode = b.attrs.ints[0].value;
      b.out.push_back(mode == 0 ? b.x(0) / b.x(1) : mode == 1 ? truncated(b.x(0), b.x(1)) : call(floor_divide, {b.x(0), b.x(1)}));
    }};
constinit const OpDef round_decimals{.name = "round.decimals", .kind = Kind::pointwise, .signature = "Tensor input, *, int decimals=0", .terms = "-", .mono = "+", .cost = 3,
    .decompose = [](Body& b) {
      auto const n = b.attrs.ints[0].value;
      if (n < -300 || n > 300) fail("decimals must lie in [-300, 300], not {}", n);
      Var const x = b.x(), tens = Var(std::pow(10.0, static_cast<double>(n < 0 ? -n : n)));
      if (!base::is_real(x.meta().dtype) && n != 0) fail("decimals of {} are not defined", to_string(x.meta()));
      b.out.push_back(n == 0 ? call(round, {x}) : n > 0 ? call(round, {x * tens}) / tens : call(round, {x / tens}) * tens);
    }};
constinit const OpDef index_fill_tensor{.name = "index_fill.int_Tensor", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, Tensor value", .terms = "a-b",
    .mono = "+.+", .copy = true, .decompose = [](Body& b) {
      need_scalar(b.x(2));
      if (b.x(1).rank() > 1) fail("the index needs rank 0 or 1, not {}", to_string(b.x(1).meta()));
      Var const x = b.x(0).rank() ? b.x(0) : shaped(b.x(0), std::array{Dim(1)});
      int const d = dim_of(x, b.attrs.ints[0]);
      Dims line;  // a mask, so that a place named twice counts once
      line.resize(static_cast<std::size_t>(x.rank()), Dim(1));
      line[static_cast<std::size_t>(d)] = x.size(d);
      auto const flags = [&](Dims const& sizes, bool on) {
        return create(*x.emit, full, Attrs{}.with(sizes).with(base::DType::boolean).with(x.meta().device).with_num(on));
      };
      Var const mask = call(index_put, {flags(Dims{x.size(d)}, false), flags({}, true), b.x(1)}, Attrs{}.with(std::span<Dim const>{}).with(Dim(false)));
      Var const y = choose(shaped(mask, line), cast(b.x(2), x.meta().dtype), x);
      b.out.push_back(b.x(0).rank() ? y : shaped(y, {}));
    }};
constinit const OpDef scatter_value{.name = "scatter.value", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, float value", .terms = "--", .mono = "+.",
    .affine = true, .decompose = [](Body& b) {
      auto const& x = b.x(0).meta();
      Var const source = create(*b.x(0).emit, full, Attrs{}.with(b.x(1).meta().sizes).with(x.dtype).with(x.device).with_num(b.attrs.nums[0]));
      b.out.push_back(call(scatter, {b.x(0), b.x(1), source}, at_dim(b.attrs.ints[0].value)));
    }};
constinit const OpDef swapaxes{.name = "swapaxes", .kind = Kind::view, .signature = "Tensor input, int axis0, int axis1", .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) { b.out.push_back(call(transpose, {b.x()}, b.attrs)); }};
constinit const OpDef swapdims{.name = "swapdims", .kind = Kind::view, .signature = "Tensor input, int dim0, int dim1", .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) { b.out.push_back(call(transpose, {b.x()}, b.attrs)); }};
constinit const OpDef moveaxis{.name = "moveaxis", .kind = Kind::view, .signature = "Tensor input, int[] source, int[] destination", .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = [](Body& b) { b.out.push_back(call(*find_op("movedim"), {b.x()}, b.attrs)); }};

namespace {
constexpr std::array rows{&clamp_tensor, &masked_fill_tensor, &div_mode, &round_decimals, &index_fill_tensor, &scatter_value, &swapaxes, &swapdims, &moveaxis};
}
// clang-format on
std::span<OpDef const* const> spelling_rows() { return rows; }

}  // namespace tenon::ir::ops
