// Convolution over any number of spatial dims, with padding that may crop and input that may be dilated: transposed convolutions and both
// gradients are calls of the same row.
module;
#include <Eigen/Core>
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {

struct Sweep {  // one entry a spatial dim
  Dims stride, low, high, dilation, input_dilation;
  Dim groups;
};
Sweep sweep_of(Attrs const& attrs, std::size_t dims) {
  AttrReader reader{attrs};
  Sweep sweep;
  sweep.stride = at_least_one(reader.list(), dims, "stride");
  sweep.low = spread(reader.list(), dims, "low", 0);
  sweep.high = spread(reader.list(), dims, "high", 0);
  sweep.dilation = at_least_one(reader.list(), dims, "dilation");
  sweep.input_dilation = at_least_one(reader.list(), dims, "input_dilation");
  sweep.groups = reader.number();
  if (sweep.groups.value < 1) fail("groups must be at least 1, not {}", sweep.groups.value);
  return sweep;
}
Attrs attrs_of(Sweep const& s) { return Attrs{}.with(s.stride).with(s.low).with(s.high).with(s.dilation).with(s.input_dilation).with(s.groups); }
Dim dilated(Dim size, Dim step) { return same(size, 0) ? Dim(0) : (size - 1) * step + 1; }

void infer_convolution(Inference& call) {
  auto const &x = call.x(0), &w = call.x(1);
  if (x.rank() < 2 || x.rank() != w.rank()) fail("input and weight need one rank of at least 2: {} and {}", to_string(x), to_string(w));
  if (x.dtype != w.dtype) fail("dtypes differ: {} and {}", base::info(x.dtype).name, base::info(w.dtype).name);
  std::size_t const dims = x.sizes.size() - 2;
  auto const sweep = sweep_of(call.attrs, dims);
  Dim const taken = w.sizes[1] * sweep.groups;
  if (!same(x.sizes[1], taken)) fail("input has {} channels, weight takes {} in {} groups", x.sizes[1].value, taken.value, sweep.groups.value);
  if (!same(w.sizes[0] % sweep.groups, 0)) fail("{} output channels do not divide into {} groups", w.sizes[0].value, sweep.groups.value);
  Dims sizes{x.sizes[0], w.sizes[0]};
  for (std::size_t d = 0; d < dims; ++d) {
    Dim const size = x.sizes[d + 2], kernel = w.sizes[d + 2];
    if (less(kernel, 1)) fail("a kernel of size {}", kernel.value);
    Dim const room = dilated(size, sweep.input_dilation[d]) + sweep.low[d] + sweep.high[d] - (kernel - 1) * sweep.dilation[d] - 1;
    if (less(room, 0))
      fail("a kernel of size {} with dilation {} does not fit an input of size {} with padding {} and {}", kernel.value, sweep.dilation[d].value, size.value,
           sweep.low[d].value, sweep.high[d].value);
    sizes.push_back(room / sweep.stride[d] + 1);
  }
  call.out.push_back(contiguous_meta(x.dtype, x.device, std::move(sizes)));
}

std::string convolution_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  int const dims = in[0]->rank() - 2;
  bool const grouped = attrs.ints.back().value != 1;
  auto const whole = [](std::string const& names) {
    std::string text;
    for (char name : names) text += {name, '!'};
    return text;
  };
  auto const space = [&](int part) { return whole(letters(dims, 4 + part * dims)); };
  std::string const heads[] = {grouped ? "ad!" : "ab", grouped ? "c!b!" : "cb", grouped ? "ac!" : "ac"};
  return heads[0] + space(0) + "," + heads[1] + space(1) + "->" + heads[2] + space(2);
}

template <class T>
T element(Strided const& x, std::int64_t offset) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(x.whole(offset));
  else
    return x.dtype == DType::f32 ? static_cast<T>(*reinterpret_cast<float const*>(x.at(offset))) : x.real(offset);
}
constexpr std::int64_t outside = std::numeric_limits<std::int64_t>::min();  // no offset, also where strides are negative

// Where the taps of the kernel (rows) meet the input for some places of the result (columns): an offset into the input, or outside.
struct Taps {
  std::vector<std::int64_t> offsets;
  std::int64_t count = 1;  ///< taps
};
Taps taps_of(Strided const& x, Strided const& w, Strided const& y, Sweep const& sweep, std::int64_t first, std::int64_t columns) {
  std::size_t const dims = x.sizes.size() - 2;
  Taps taps;
  for (std::size_t d = 0; d < dims; ++d) taps.count *= w.sizes[d + 2];
  taps.offsets.assign(static_cast<std::size_t>(taps.count * columns), 0);
  for (std::int64_t column = 0; column < columns; ++column) {
    std::int64_t rest = first + column;
    std::int64_t later = 1, batch = 0;  // taps of the dims behind d
    std::vector<std::int64_t> place(dims);
    for (std::size_t d = dims; d-- > 0;) place[d] = rest % y.sizes[d + 2], rest /= y.sizes[d + 2];
    batch = rest * x.strides[0];
    for (std::int64_t t = 0; t < taps.count; ++t) taps.offsets[static_cast<std::size_t>(t * columns + column)] = batch;
    for (std::size_t d = dims; d-- > 0; later *= w.sizes[d + 2]) {
      auto const step = sweep.input_dilation[d].value, start = place[d] * sweep.stride[d].value - sweep.low[d].value;
      for (std::int64_t k = 0; k < w.sizes[d + 2]; ++k) {
        auto const at = start + k * sweep.dilation[d].value;
        bool const hit = at >= 0 && at % step == 0 && at / step < x.sizes[d + 2];
        for (std::int64_t outer = k * later; outer < taps.count; outer += later * w.sizes[d + 2])
          for (std::int64_t t = outer; t < outer + later; ++t) {
            auto& offset = taps.offsets[static_cast<std::size_t>(t * columns + column)];
            offset = hit && offset != outside ? offset + at / step * x.strides[d + 2] : outside;
          }
      }
    }
  }
  return taps;
}

// A product of the weight with the input's elements in the order in which the taps meet them, some places of the result at a time.
template <class T>
void convolve(Kernel const& kernel, Sweep const& sweep) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  auto const &x = kernel.in[0], &w = kernel.in[1], &y = kernel.out[0];
  std::int64_t const groups = sweep.groups.value, channels = w.sizes[1], results = w.sizes[0] / groups;
  std::int64_t places = y.sizes[0], positions = 1, taps_count = 1;
  for (std::size_t d = 2; d < y.sizes.size(); ++d) positions *= y.sizes[d], taps_count *= w.sizes[d];
  places *= positions;
  if (base::numel(y.sizes) == 0) return;
  std::int64_t const rows = channels * taps_count, chunk = std::clamp<std::int64_t>((std::int64_t{1} << 19) / std::max<std::int64_t>(rows, 1), 1, places);
  Matrix weight(w.sizes[0], rows);
  std::int64_t next = 0;
  walk<1>(w.sizes, {&w.strides}, [&](auto const& at) { weight.data()[next++] = element<T>(w, at[0]); });
  Matrix columns(rows, chunk), product;
  for (std::int64_t first = 0; first < places; first += chunk) {
    auto const n = std::min(chunk, places - first);
    auto const taps = taps_of(x, w, y, sweep, first, n);
    for (std::int64_t group = 0; group < groups; ++group) {
      for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t t = 0; t < taps.count; ++t) {
          auto const* offset = taps.offsets.data() + t * n;
          T* const row = columns.data() + (c * taps.count + t) * chunk;
          std::int64_t const channel = (group * channels + c) * x.strides[1];
          for (std::int64_t i = 0; i < n; ++i) row[i] = offset[i] == outside ? T{} : element<T>(x, offset[i] + channel);
        }
      auto const left = weight.middleRows(group * results, results);
      auto const right = columns.leftCols(n);
      if (rows == 0)  // sums of nothing
        product.setZero(results, n);
      else if constexpr (std::is_integral_v<T>)
        product = left.lazyProduct(right);
      else
        product.noalias() = left * right;
      for (std::int64_t o = 0; o < results; ++o)
        for (std::int64_t i = 0; i < n; ++i) {
          auto const place = first + i;
          auto const to = (place / positions * y.sizes[1] + group * results + o) * positions + place % positions;
          if constexpr (std::is_integral_v<T>)
            y.set_whole(to, static_cast<std::int64_t>(product(o, i)));
          else
            y.set(to, product(o, i));
        }
    }
  }
}
void evaluate_convolution(Kernel const& kernel) {
  auto const sweep = sweep_of(kernel.attrs, kernel.in[0].sizes.size() - 2);
  base::is_real(kernel.in[0].dtype) ? convolve<double>(kernel, sweep) : convolve<std::uint64_t>(kernel, sweep);
}

Dims replaced(Var x, std::initializer_list<Dim> head, std::size_t from) {  // `head`, then the sizes of x from dim `from` on
  Dims sizes(head);
  for (std::size_t d = from; d < x.meta().sizes.size(); ++d) sizes.push_back(x.meta().sizes[d]);
  return sizes;
}
Var swapped(Var x, int a, int b) { return call(transpose, {x}, Attrs{}.with(Dim(a)).with(Dim(b))); }
// The weight of the transposed convolution: channels in and out change places within each group, and every kernel is mirrored.
Var turned_weight(Var w, Dim groups) {
  Dims space;
  for (int d = 2; d < w.rank(); ++d) space.push_back(d);
  Var turned;
  if (groups.value == 1) {
    turned = swapped(w, 0, 1);
  } else {
    Dim const each = w.size(0) / groups, channels = w.size(1);
    turned = shaped(swapped(shaped(w, replaced(w, {groups, each}, 1)), 1, 2), replaced(w, {groups * channels, each}, 2));
  }
  return space.empty() ? turned : call(flip, {turned}, Attrs{}.with(space));
}

// Both gradients choose their padding so that the result has exactly the operand's sizes.
void convolution_vjp(Vjp& v) {
  Var const x = v.x(0), w = v.x(1), g = v.g();
  std::size_t const dims = x.meta().sizes.size() - 2;
  auto const sweep = sweep_of(v.attrs, dims);
  if (same(product(x.meta().sizes), 0) || same(product(w.meta().sizes), 0)) {
    v.grad(0) = zeros_like(x), v.grad(1) = zeros_like(w);
    return;
  }
  Sweep back = sweep, across = sweep;
  std::swap(back.stride, back.input_dilation), std::swap(across.stride, across.dilation);
  for (std::size_t d = 0; d < dims; ++d) {
    Dim const reach = (w.meta().sizes[d + 2] - 1) * sweep.dilation[d], moved = (g.meta().sizes[d + 2] - 1) * sweep.stride[d];
    Dim const wide = (x.meta().sizes[d + 2] - 1) * sweep.input_dilation[d];
    back.low[d] = reach - sweep.low[d], back.high[d] = wide - moved + sweep.low[d];
    across.high[d] = reach + moved - wide - sweep.low[d];
  }
  if (v.wants(0)) v.grad(0) = call(convolution, {g, turned_weight(w, sweep.groups)}, attrs_of(back));
  if (!v.wants(1)) return;
  Var from = x;  // channels of a group become the batch, the batch becomes channels
  if (sweep.groups.value == 1) {
    from = swapped(x, 0, 1);
  } else {
    Dim const channels = w.size(1);
    Var const apart = swapped(shaped(x, replaced(x, {x.size(0), sweep.groups, channels}, 2)), 0, 2);
    from = shaped(apart, replaced(x, {channels, sweep.groups * x.size(0)}, 2));
  }
  v.grad(1) = swapped(call(convolution, {from, swapped(g, 0, 1)}, attrs_of(across)), 0, 1);
}

// -- PyTorch's convolutions as calls of it ----------------------------------------------------------------------------------------------------

// An input without a batch is a batch of one; checks what both families share.
Var batched(Body const& b, int dims, Dim channels, Dim results) {
  Var const x = b.x(0), w = b.x(1), bias = b.x(2);
  if ((x.rank() != dims + 2 && x.rank() != dims + 1) || w.rank() != dims + 2)
    fail("the input needs rank {} (or {} without a batch), the weight rank {}: {} and {}", dims + 2, dims + 1, dims + 2, to_string(x.meta()),
         to_string(w.meta()));
  if (x.meta().dtype != w.meta().dtype) fail("dtypes differ: {} and {}", base::info(x.meta().dtype).name, base::info(w.meta().dtype).name);
  if (Dim const have = x.size(-dims - 1); !same(have, channels)) fail("input has {} channels, weight takes {}", have.value, channels.value);
  if (bias && (bias.rank() != 1 || !same(bias.size(0), results) || bias.meta().dtype != x.meta().dtype))
    fail("the bias must be {}[{}], not {}", base::info(x.meta().dtype).name, results.value, to_string(bias.meta()));
  return x.rank() == dims + 2 ? x : call(unsqueeze, {x}, at_dim(0));
}
Dim groups_of(Var w, Dim groups) {
  if (groups.value < 1) fail("groups must be at least 1, not {}", groups.value);
  if (!same(w.size(0) % groups, 0)) fail("{} channels do not divide into {} groups", w.size(0).value, groups.value);
  return groups;
}
Dims padding_of(std::span<Dim const> list, int dims) {
  auto full = spread(list, static_cast<std::size_t>(dims), "padding", 0);
  for (Dim const pad : full)
    if (less(pad, 0)) fail("padding must be at least 0, not {}", pad.value);
  return full;
}
void finish(Body& b, int dims, Var y) {
  if (b.x(2)) {
    Dims sizes{b.x(2).size(0)};
    for (int d = 0; d < dims; ++d) sizes.push_back(1);
    y = y + shaped(b.x(2), sizes);
  }
  b.out.push_back(b.x(0).rank() == dims + 2 ? y : call(squeeze, {y}, Attrs{}.with(std::array{Dim(0)})));
}

template <int dims>
void conv_body(Body& b) {
  AttrReader reader{b.attrs};
  Var const w = b.x(1);
  Sweep sweep;
  sweep.stride = at_least_one(reader.list(), dims, "stride");
  sweep.low = sweep.high = padding_of(reader.list(), dims);
  sweep.dilation = at_least_one(reader.list(), dims, "dilation");
  sweep.groups = reader.number();
  auto const way = reader.number().value;  // numbers|valid|same
  if (w.rank() == 0) fail("the weight needs rank {}, not 0", dims + 2);
  groups_of(w, sweep.groups);
  Var const x = batched(b, dims, (w.rank() > 1 ? w.size(1) : Dim(1)) * sweep.groups, w.size(0));
  for (std::size_t d = 0; d < dims; ++d) {
    sweep.input_dilation.push_back(1);
    if (way != 0) sweep.low[d] = sweep.high[d] = 0;
    if (way != 2) continue;
    if (!same(sweep.stride[d], 1)) fail("padding \"same\" needs stride 1, not {}", sweep.stride[d].value);
    Dim const total = sweep.dilation[d] * (w.meta().sizes[d + 2] - 1);
    sweep.low[d] = total / 2, sweep.high[d] = total - sweep.low[d];
  }
  finish(b, dims, call(convolution, {x, w}, attrs_of(sweep)));
}
template <int dims>
void conv_transpose_body(Body& b) {
  AttrReader reader{b.attrs};
  Var const w = b.x(1);
  auto const stride = at_least_one(reader.list(), dims, "stride"), padding = padding_of(reader.list(), dims);
  auto const extra = spread(reader.list(), dims, "output_padding", 0);
  Dim const groups = reader.number();
  auto const dilation = at_least_one(reader.list(), dims, "dilation");
  if (w.rank() == 0) fail("the weight needs rank {}, not 0", dims + 2);
  groups_of(w, groups);
  Var const x = batched(b, dims, w.size(0), (w.rank() > 1 ? w.size(1) : Dim(1)) * groups);
  Sweep sweep{spread({}, dims, "stride", 1), {}, {}, dilation, stride, groups};
  for (std::size_t d = 0; d < dims; ++d) {
    if (less(extra[d], 0) || (!less(extra[d], stride[d]) && !less(extra[d], dilation[d])))
      fail("output_padding {} must be less than stride {} or dilation {}", extra[d].value, stride[d].value, dilation[d].value);
    sweep.low.push_back(dilation[d] * (w.meta().sizes[d + 2] - 1) - padding[d]);
    sweep.high.push_back(sweep.low[d] + extra[d]);
  }
  finish(b, dims, call(convolution, {x, turned_weight(w, groups)}, attrs_of(sweep)));
}
constexpr std::string_view conv_signature =
    "Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1], int[] padding=[0], int[] dilation=[1], int groups=1, numbers|valid|same pad=numbers";
constexpr std::string_view transpose_signature =
    "Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1], int[] padding=[0], int[] output_padding=[0], int groups=1, int[] dilation=[1]";
}  // namespace

// clang-format off
constinit const OpDef convolution{.name = "convolution", .kind = Kind::contraction,
    .signature = "Tensor input, Tensor weight, int[] stride=[], int[] low=[], int[] high=[], int[] dilation=[], int[] input_dilation=[], int groups=1",
    .equation = {.build = convolution_equation}, .terms = "aa", .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .vjp = convolution_vjp,
    .saves = 3, .infer = infer_convolution, .evaluate = evaluate_convolution};
constinit const OpDef conv1d{.name = "conv1d", .kind = Kind::contraction, .signature = conv_signature, .terms = "aab", .combine = Monoid::sum, .mono = "...",
    .precision = Precision::low, .decompose = conv_body<1>};
constinit const OpDef conv2d{.name = "conv2d", .kind = Kind::contraction, .signature = conv_signature, .terms = "aab", .combine = Monoid::sum, .mono = "...",
    .precision = Precision::low, .decompose = conv_body<2>};
constinit const OpDef conv3d{.name = "conv3d", .kind = Kind::contraction, .signature = conv_signature, .terms = "aab", .combine = Monoid::sum, .mono = "...",
    .precision = Precision::low, .decompose = conv_body<3>};
constinit const OpDef conv_transpose1d{.name = "conv_transpose1d", .kind = Kind::contraction, .signature = transpose_signature, .terms = "aab",
    .combine = Monoid::sum, .mono = "...", .precision = Precision::low, .decompose = conv_transpose_body<1>};
constinit const OpDef conv_transpose2d{.name = "conv_transpose2d", .kind = Kind::contraction, .signature = transpose_signature, .terms = "aab",
    .combine = Monoid::sum, .mono = "...", .precision = Precision::low, .decompose = conv_transpose_body<2>};
constinit const OpDef conv_transpose3d{.name = "conv_transpose3d", .kind = Kind::contraction, .signature = transpose_signature, .terms = "aab",
    .combine = Monoid::sum, .mono = "...", .precision = Precision::low, .decompose = conv_transpose_body<3>};

namespace {
constexpr std::array rows{&convolution, &conv1d, &conv2d, &conv3d, &conv_transpose1d, &conv_transpose2d, &conv_transpose3d};
}
// clang-format on
std::span<OpDef const* const> convolution_rows() { return rows; }

}  // namespace tenon::ir::ops
