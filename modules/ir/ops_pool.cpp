// Pooling over windows of the last dims: the largest element with its place is a row of the core, the others are bodies.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
constexpr std::int64_t most_taps = 1 << 24;

struct Pool {  // one entry a pooled dim
  Dims kernel, stride, padding, dilation;
  bool ceil_mode = false;
};
// Reads the lists in the order of the signatures; dims 0: as many as the kernel has.
Pool pool_of(AttrReader& reader, std::size_t dims, bool dilated) {
  Pool pool;
  auto const kernel = reader.list();
  if (dims == 0) dims = kernel.size();
  if (kernel.empty()) fail("kernel_size takes one number or {}, not 0", dims);
  pool.kernel = at_least_one(kernel, dims, "kernel_size");
  auto const stride = reader.list();
  pool.stride = stride.empty() ? pool.kernel : at_least_one(stride, dims, "stride");
  pool.padding = spread(reader.list(), dims, "padding", 0);
  pool.dilation = dilated ? at_least_one(reader.list(), dims, "dilation") : spread({}, dims, "dilation", 1);
  pool.ceil_mode = reader.flag();
  for (std::size_t d = 0; d < dims; ++d)
    if (less(pool.padding[d], 0) || pool.padding[d].value > pool.kernel[d].value / 2)
      fail("padding {} is not between 0 and half of kernel size {}", pool.padding[d].value, pool.kernel[d].value);
  return pool;
}
Dims pooled_sizes(Dims sizes, Pool const& pool) {
  std::size_t const dims = pool.kernel.size();
  if (sizes.size() < dims) fail("needs a rank of at least {}, not {}", dims, sizes.size());
  for (std::size_t d = 0; d < dims; ++d) {
    Dim& size = sizes[sizes.size() - dims + d];
    if (same(size, 0)) fail("dim {} of {} has no elements", sizes.size() - dims + d, base::to_string(values(sizes)));
    Dim const stride = pool.stride[d];
    Dim room = size + pool.padding[d] * 2 - pool.dilation[d] * (pool.kernel[d] - 1) - 1;
    if (pool.ceil_mode) room = room + stride - 1;  // the last window may reach over the end
    if (less(room, 0)) fail("a window of {} does not fit size {} with padding {}", pool.kernel[d].value, size.value, pool.padding[d].value);
    Dim steps = room / stride;
    if (pool.ceil_mode && less_equal(size + pool.padding[d], steps * stride)) steps = steps - 1;  // but starts inside the image or its left padding
    size = steps + 1;
  }
  return sizes;
}
// A batch of images or one image, of which no dim but the batch may be empty.
void need_images(Meta const& x, int dims) {
  if (x.rank() != dims + 1 && x.rank() != dims + 2) fail("needs rank {} or {}, not {}", dims + 1, dims + 2, to_string(x));
  for (std::size_t d = static_cast<std::size_t>(x.rank() - dims - 1); d < x.sizes.size(); ++d)
    if (same(x.sizes[d], 0)) fail("dim {} of {} has no elements", d, to_string(x));
}
void need_real(Meta const& x) {
  if (!base::is_real(x.dtype)) fail("an average needs floating elements, not {}", to_string(x));
}
std::string pool_equation(int rank, int dims, bool pair) {
  auto const lead = letters(rank - dims);
  auto const whole = [&](int first) {
    std::string text;
    for (char name : letters(dims, first)) text += {name, '!'};
    return text;
  };
  auto const result = lead + whole(rank);
  return lead + whole(rank - dims) + "->" + result + (pair ? "," + result : "");
}

// -- the core row: values and flat places ---------------------------------------------------------------------------------------------------

void infer_max(Inference& call) {
  auto const& x = call.x();
  AttrReader reader{call.attrs};
  auto const sizes = pooled_sizes(x.sizes, pool_of(reader, 0, true));
  call.out.push_back(contiguous_meta(x.dtype, x.device, sizes));
  call.out.push_back(contiguous_meta(base::DType::i64, x.device, sizes));
}
// Taps of one window along one dim that lie inside: `count` of them from `first` on.
struct Reach {
  std::int64_t first, count;
};
template <class T>
T comparable(Strided const& x, std::int64_t at) {
  if constexpr (std::is_integral_v<T>)
    return x.whole(at);
  else
    return x.real(at);
}
template <class T>
void largest(Kernel const& kernel, Pool const& pool) {
  auto const& x = kernel.in[0];
  std::size_t const dims = pool.kernel.size(), lead = x.sizes.size() - dims;
  std::vector<std::vector<Reach>> reaches(dims);
  base::Shape const space(x.sizes.begin() + static_cast<std::ptrdiff_t>(lead), x.sizes.end()), flat = base::contiguous_strides(space);
  base::Shape const windows(kernel.out[0].sizes.begin() + static_cast<std::ptrdiff_t>(lead), kernel.out[0].sizes.end());
  for (std::size_t d = 0; d < dims; ++d)
    for (std::int64_t p = 0, dilation = pool.dilation[d].value; p < windows[d]; ++p) {
      auto const start = p * pool.stride[d].value - pool.padding[d].value, skipped = start < 0 ? (dilation - 1 - start) / dilation : 0;
      auto const first = start + skipped * dilation;
      auto const count = first < space[d] ? std::min(pool.kernel[d].value - skipped, (space[d] - 1 - first) / dilation + 1) : 0;
      if (count <= 0) fail("{}: window {} along dim {} has no element inside size {}", kernel.op.name, p, lead + d, space[d]);
      reaches[d].push_back({first, count});
    }
  base::Shape const outer(x.sizes.begin(), x.sizes.begin() + static_cast<std::ptrdiff_t>(lead));
  base::Shape const outer_strides(x.strides.begin(), x.strides.begin() + static_cast<std::ptrdiff_t>(lead));
  std::vector<std::int64_t> window(dims, 0), tap(dims);
  std::int64_t to = 0;
  walk<1>(outer, {&outer_strides}, [&](auto const& at) {
    for (bool more = true; more; ++to) {
      std::int64_t offset = at[0], place = 0;
      for (std::size_t d = 0; d < dims; ++d) {
        auto const first = reaches[d][static_cast<std::size_t>(window[d])].first;
        offset += first * x.strides[lead + d], place += first * flat[d], tap[d] = 0;
      }
      std::int64_t best = offset, best_place = place;
      T value = comparable<T>(x, best);
      for (bool inside = true; inside;) {
        T const next = comparable<T>(x, offset);
        if (next > value || next != next) best = offset, best_place = place, value = next;  // NaN wins, the last one as in PyTorch
        inside = false;
        for (std::size_t d = dims; d-- > 0 && !inside;) {
          auto const dilation = pool.dilation[d].value, count = reaches[d][static_cast<std::size_t>(window[d])].count;
          inside = ++tap[d] < count;
          auto const steps = inside ? 1 : 1 - count;
          offset += steps * dilation * x.strides[lead + d], place += steps * dilation * flat[d];
          if (!inside) tap[d] = 0;
        }
      }
      std::memcpy(kernel.out[0].at(to), x.at(best), static_cast<std::size_t>(base::bytes_of(x.dtype)));
      kernel.out[1].set_whole(to, best_place);
      more = false;
      for (std::size_t d = dims; d-- > 0 && !more;) more = ++window[d] < windows[d] || (window[d] = 0, false);
    }
  });
}
void evaluate_max(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  auto const pool = pool_of(reader, 0, true);
  base::is_real(kernel.in[0].dtype) ? largest<double>(kernel, pool) : largest<std::int64_t>(kernel, pool);
}
// Every largest element gets the gradients of the windows that chose it.
void max_vjp(Vjp& v) {
  Var const x = v.x();
  if (!v.g(0)) return;
  AttrReader reader{v.attrs};
  std::size_t const lead = x.meta().sizes.size() - reader.list().size();
  auto const flat = [&](Dims const& sizes) {
    Dims to(std::span<Dim const>(sizes).first(lead));
    to.push_back(product(std::span<Dim const>(sizes).subspan(lead)));
    return to;
  };
  auto const &wide = x.meta().sizes, &narrow = v.y(1).meta().sizes;
  Var const sums = call(scatter_add, {shaped(zeros_like(x), flat(wide)), shaped(v.y(1), flat(narrow)), shaped(v.g(0), flat(narrow))}, at_dim(-1));
  v.grad(0) = shaped(sums, wide);
}

// -- PyTorch's pools ------------------------------------------------------------------------------------------------------------------------

// Eager calls of rows with as many results as the body gives meet no inference that would name them.
template <void (*body)(Body&)>
void named(Body& b, std::string_view op, int dims) try {
  body(b);
} catch (base::Error const& error) {
  fail("{}{}d: {}", op, dims, error.what());
}
template <int dims>
void max_windows(Body& b) {
  AttrReader reader{b.attrs};
  need_images(b.x().meta(), dims);
  auto const pool = pool_of(reader, dims, true);
  Var const found = call(max_pool, {b.x()}, Attrs{}.with(pool.kernel).with(pool.stride).with(pool.padding).with(pool.dilation).with(Dim(pool.ceil_mode)));
  b.out.push_back(found);
  if (reader.flag()) b.out.push_back(nth(found, 1));
}

// How many elements each window has along a dim, with or without padding; at least 1.
Var counts(Var x, Dim size, Dim windows, Dim kernel, Dim stride, Dim padding, bool padded) {
  Var const start = counting(x, windows) * Var(stride) - Var(padding);
  Var const end = call(minimum, {start + Var(kernel), Var(padded ? size + padding : size)});
  Var const from = padded ? start : call(maximum, {start, Var(0)});
  return call(maximum, {end - from, Var(1)});
}
// The sum over a window is a convolution with ones, each channel for itself.
template <int dims>
void avg_body(Body& b) {
  AttrReader reader{b.attrs};
  need_images(b.x().meta(), dims), need_real(b.x().meta());
  auto const pool = pool_of(reader, dims, false);
  bool const padded = reader.flag();
  auto const divisor = reader.number();
  if (same(divisor, 0)) fail("divisor_override is 0");
  Dim taps = 1;
  for (Dim const k : pool.kernel) taps = taps * k;
  if (taps.value > most_taps) fail("windows of {} elements: at most {}", taps.value, most_taps);
  auto const& sizes = b.x().meta().sizes;
  auto const pooled = pooled_sizes(sizes, pool);
  std::size_t const lead = sizes.size() - dims;
  b.out.push_back(in_wide(b.x(), [&](Var x) {
    Dims images{product(std::span<Dim const>(sizes).first(lead)), Dim(1)}, ones{Dim(1), Dim(1)}, high;
    for (std::size_t d = 0; d < dims; ++d) {
      images.push_back(sizes[lead + d]), ones.push_back(pool.kernel[d]);
      high.push_back((pooled[lead + d] - 1) * pool.stride[d] + pool.kernel[d] - sizes[lead + d] - pool.padding[d]);
    }
    Var const kernel = create(*x.emit, full, Attrs{}.with(ones).with(x.meta().dtype).with(x.meta().device).with_num(1.0));
    auto const one = spread({}, dims, "dilation", 1);
    Var const sums = call(convolution, {shaped(x, images), kernel}, Attrs{}.with(pool.stride).with(pool.padding).with(high).with(one).with(one).with(Dim(1)));
    Var const y = shaped(sums, pooled);
    if (divisor.value != absent) return y / Var(divisor);
    if (padded && !pool.ceil_mode) return y / Var(taps);
    Var total;
    for (std::size_t d = 0; d < dims; ++d) {
      Var n = counts(x, sizes[lead + d], pooled[lead + d], pool.kernel[d], pool.stride[d], pool.padding[d], padded);
      Dims wide{pooled[lead + d]};
      for (std::size_t after = d + 1; after < dims; ++after) wide.push_back(1);
      n = shaped(n, wide);
      total = total ? total * n : n;
    }
    return y / cast(total, x.meta().dtype);
  }));
}

// -- adaptive pools: window i of o over a dim of size s reaches from floor(i s / o) to ceil((i + 1) s / o) ------------------------------------

struct Spans {
  Var places;  ///< [o * longest] elements that the windows read, the last one again behind the end of a shorter window
  Var inside;  ///< [o, longest] whether a window has that element; none: every one does
  Dim windows, longest;
};
Spans spans_of(Var x, Dim size, Dim windows) {
  Dim const one = 1;
  Spans spans{{}, {}, windows, size / windows};
  if (!same(size % windows, 0)) spans.longest = (size + windows - 1) / windows + 1;
  Var const i = shaped(counting(x, windows), std::array{windows, one}), each = counting(x, spans.longest);
  Var const start = call(floor_divide, {i * Var(size), Var(windows)}), at = start + each;
  Var places = at;
  if (!same(size % windows, 0)) {
    Var const end = call(floor_divide, {(i + Var(1)) * Var(size) + Var(windows - 1), Var(windows)});
    spans.inside = call(lt, {at, end});
    places = call(minimum, {at, end - Var(1)});
  }
  spans.places = shaped(places, std::array{windows * spans.longest});
  return spans;
}
Dims adaptive_sizes(Body const& b, AttrReader& reader, int dims) {
  need_images(b.x().meta(), dims);
  auto const list = reader.list();
  if (list.empty()) fail("output_size takes one number or {}, not 0", dims);
  auto sizes = spread(list, static_cast<std::size_t>(dims), "output_size", 1);
  for (int d = 0; d < dims; ++d) {
    Dim& size = sizes[static_cast<std::size_t>(d)];
    if (size.value == absent) size = b.x().size(d - dims);
    if (less(size, 0)) fail("output_size must be at least 0, not {}", size.value);
  }
  return sizes;
}
Dims parted(Var x, int dim, Dim windows, Dim longest) {  // dim of size windows * longest as two
  Dims sizes;
  for (int d = 0; d < x.rank(); ++d) d == dim ? (sizes.push_back(windows), sizes.push_back(longest)) : sizes.push_back(x.size(d));
  return sizes;
}
Var beside(Var mask, Var x, int dim) {  // [windows, longest] to stand over dims dim and dim + 1 of x
  Dims sizes{mask.size(0), mask.size(1)};
  for (int d = dim + 2; d < x.rank(); ++d) sizes.push_back(1);
  return shaped(mask, sizes);
}
template <int dims>
void adaptive_avg_body(Body& b) {
  AttrReader reader{b.attrs};
  need_real(b.x().meta());
  auto const wish = adaptive_sizes(b, reader, dims);
  b.out.push_back(in_wide(b.x(), [&](Var x) {
    bool moved = false;
    for (int k = dims; k-- > 0;) {
      int const d = x.rank() - dims + k;
      Dim const windows = wish[static_cast<std::size_t>(k)], size = x.size(d);
      if (same(windows, size)) continue;
      moved = true;
      if (same(windows, 0)) {
        x = cut(x, d, 0, 0);
        continue;
      }
      auto const spans = spans_of(x, size, windows);
      Var const read = spans.inside ? call(index_select, {x, spans.places}, at_dim(d)) : x;
      Var parts = shaped(read, parted(read, d, windows, spans.longest));
      if (!spans.inside) {
        x = call(mean, {parts}, summed(std::array{Dim(d + 1)}, false));
        continue;
      }
      Var const mask = beside(spans.inside, parts, d), n = call(sum, {mask}, summed(std::array{Dim(1)}, false));
      parts = choose(mask, parts, Var(0.0));
      Var const total = call(sum, {parts}, summed(std::array{Dim(d + 1)}, false));
      x = total / cast(n, x.meta().dtype);
    }
    return moved ? x : call(clone, {x});
  }));
}
// The largest along the last dim first, then of those along the one before it: the first of equal elements in row-major order.
template <int dims>
void adaptive_max_windows(Body& b) {
  AttrReader reader{b.attrs};
  auto const wish = adaptive_sizes(b, reader, dims);
  Var x = b.x();
  Dims const sizes = x.meta().sizes;
  Dim below = 1;
  Var place;  // of each element of x among the pooled dims
  for (int k = dims; k-- > 0; below = below * sizes[sizes.size() - dims + static_cast<std::size_t>(k)]) {
    int const d = x.rank() - dims + k;
    Dim const windows = wish[static_cast<std::size_t>(k)], size = x.size(d);
    Dims along{size};
    for (int after = d + 1; after < x.rank(); ++after) along.push_back(1);
    Var const here = shaped(counting(x, size), along) * Var(below);
    place = place ? place + here : call(expand, {here}, Attrs{}.with(x.meta().sizes));
    if (same(windows, 0)) {
      x = cut(x, d, 0, 0), place = cut(place, d, 0, 0);
      continue;
    }
    auto const spans = spans_of(x, size, windows);
    auto const part = [&](Var values) {
      Var const read = call(index_select, {values, spans.places}, at_dim(d));
      return shaped(read, parted(read, d, windows, spans.longest));
    };
    Var const parts = part(x), places = part(place);
    Var const best = call(unsqueeze, {nth(call(max_dim, {parts}, at_dim(d + 1).with(Dim(false))), 1)}, at_dim(d + 1));
    auto const chosen = [&](Var values) { return call(squeeze, {call(gather, {values, best}, at_dim(d + 1))}, Attrs{}.with(std::array{Dim(d + 1)})); };
    x = chosen(parts), place = chosen(places);
  }
  b.out.push_back(x);
  if (reader.flag()) b.out.push_back(place);
}
template <int dims>
void max_body(Body& b) {
  named<max_windows<dims>>(b, "max_pool", dims);
}
template <int dims>
void adaptive_max_body(Body& b) {
  named<adaptive_max_windows<dims>>(b, "adaptive_max_pool", dims);
}
constexpr std::string_view max_signature =
    "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0], int[] dilation=[1], bool ceil_mode=False, bool return_indices=False";
constexpr std::string_view avg_signature =
    "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0], bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None";
constexpr std::string_view adaptive_avg_signature = "Tensor input, int[] output_size";
constexpr std::string_view adaptive_max_signature = "Tensor input, int[] output_size, bool return_indices=False";
template <int dims>
constexpr EquationRule image_equation{.build = [](Attrs const&, std::span<Meta const* const> in) { return pool_equation(in[0]->rank(), dims, false); }};
}  // namespace

// clang-format off
constinit const OpDef max_pool{.name = "max_pool", .kind = Kind::reduction,
    .signature = "Tensor input, int[] kernel_size, int[] stride=[], int[] padding=[0], int[] dilation=[1], bool ceil_mode=False", .results = 2,
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      AttrReader reader{attrs};
      return pool_equation(in[0]->rank(), static_cast<int>(reader.list().size()), true);
    }},
    .terms = "-", .mono = ".", .types = Types::first, .vjp = max_vjp, .saves = saves_result << 1, .infer = infer_max, .evaluate = evaluate_max};
constinit const OpDef max_pool1d{.name = "max_pool1d", .kind = Kind::reduction, .signature = max_signature, .results = 0, .terms = "-", .mono = ".",
    .decompose = max_body<1>};
constinit const OpDef max_pool2d{.name = "max_pool2d", .kind = Kind::reduction, .signature = max_signature, .results = 0, .terms = "-", .mono = ".",
    .decompose = max_body<2>};
constinit const OpDef max_pool3d{.name = "max_pool3d", .kind = Kind::reduction, .signature = max_signature, .results = 0, .terms = "-", .mono = ".",
    .decompose = max_body<3>};
constinit const OpDef avg_pool1d{.name = "avg_pool1d", .kind = Kind::reduction, .signature = avg_signature, .equation = image_equation<1>, .terms = "a",
    .mono = "+", .decompose = avg_body<1>};
constinit const OpDef avg_pool2d{.name = "avg_pool2d", .kind = Kind::reduction, .signature = avg_signature, .equation = image_equation<2>, .terms = "a",
    .mono = "+", .decompose = avg_body<2>};
constinit const OpDef avg_pool3d{.name = "avg_pool3d", .kind = Kind::reduction, .signature = avg_signature, .equation = image_equation<3>, .terms = "a",
    .mono = "+", .decompose = avg_body<3>};
constinit const OpDef adaptive_avg_pool1d{.name = "adaptive_avg_pool1d", .kind = Kind::reduction, .signature = adaptive_avg_signature,
    .equation = image_equation<1>, .terms = "a", .mono = "+", .decompose = adaptive_avg_body<1>};
constinit const OpDef adaptive_avg_pool2d{.name = "adaptive_avg_pool2d", .kind = Kind::reduction, .signature = adaptive_avg_signature,
    .equation = image_equation<2>, .terms = "a", .mono = "+", .decompose = adaptive_avg_body<2>};
constinit const OpDef adaptive_avg_pool3d{.name = "adaptive_avg_pool3d", .kind = Kind::reduction, .signature = adaptive_avg_signature,
    .equation = image_equation<3>, .terms = "a", .mono = "+", .decompose = adaptive_avg_body<3>};
constinit const OpDef adaptive_max_pool1d{.name = "adaptive_max_pool1d", .kind = Kind::reduction, .signature = adaptive_max_signature, .results = 0,
    .terms = "-", .mono = ".", .decompose = adaptive_max_body<1>};
constinit const OpDef adaptive_max_pool2d{.name = "adaptive_max_pool2d", .kind = Kind::reduction, .signature = adaptive_max_signature, .results = 0,
    .terms = "-", .mono = ".", .decompose = adaptive_max_body<2>};
constinit const OpDef adaptive_max_pool3d{.name = "adaptive_max_pool3d", .kind = Kind::reduction, .signature = adaptive_max_signature, .results = 0,
    .terms = "-", .mono = ".", .decompose = adaptive_max_body<3>};

namespace {
constexpr std::array rows{&max_pool, &max_pool1d, &max_pool2d, &max_pool3d, &avg_pool1d, &avg_pool2d, &avg_pool3d,
    &adaptive_avg_pool1d, &adaptive_avg_pool2d, &adaptive_avg_pool3d, &adaptive_max_pool1d, &adaptive_max_pool2d, &adaptive_max_pool3d};
}
// clang-format on
std::span<OpDef const* const> pool_rows() { return rows; }

}  // namespace tenon::ir::ops
