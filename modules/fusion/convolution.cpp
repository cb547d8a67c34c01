// Convolution as products: for a group, weight [results, terms] times patches [terms, places], where terms are channels and taps of the kernel, and
// places are positions of the result, of one image or (where an image has few) of all. Both gradients are calls of the same row.
module tenon.fusion;
import std;
import tenon.base;
import tenon.device;
import tenon.ir;

namespace tenon::fusion {
using ir::Strided;
Sweep sweep_of(ir::Attrs const& attrs, std::size_t dims) {
  ir::AttrReader reader{attrs};
  auto const next = [&](std::int64_t usual) {
    auto const list = reader.list();
    std::vector<std::int64_t> full(dims, usual);
    for (std::size_t d = 0; d < dims && !list.empty(); ++d) full[d] = list[list.size() == 1 ? 0 : d].value;
    return full;
  };
  Sweep sweep;
  sweep.stride = next(1), sweep.low = next(0);
  next(0);  // high: the result's size says it
  sweep.dilation = next(1), sweep.input_dilation = next(1);
  sweep.groups = reader.number().value;
  return sweep;
}

namespace {
// The sizes of a call, spatial dims apart.
struct Shape {
  Sweep sweep;
  std::size_t dims;
  std::int64_t images, groups, channels, results, positions = 1, taps = 1;
  std::vector<std::int64_t> in, kernel, out;
  Shape(ir::Attrs const& attrs, Strided const& x, Strided const& w, Strided const& y)
      : sweep(sweep_of(attrs, x.sizes.size() - 2)),
        dims(x.sizes.size() - 2),
        images(x.sizes[0]),
        groups(sweep.groups),
        channels(w.sizes[1]),
        results(w.sizes[0] / groups) {
    for (std::size_t d = 0; d < dims; ++d) {
      in.push_back(x.sizes[d + 2]), kernel.push_back(w.sizes[d + 2]), out.push_back(y.sizes[d + 2]);
      positions *= out[d], taps *= kernel[d];
    }
  }
  std::int64_t terms() const { return channels * taps; }
};

// Input (q * stride + shift) / step for q in [first, last) where that is whole and inside, else 0.
template <class T>
void fill_line(T const* from, std::int64_t size, std::int64_t stride, std::int64_t shift, std::int64_t step, std::int64_t first, std::int64_t last, T* to) {
  if (step != 1) {
    for (auto q = first; q < last; ++q) {
      auto const at = q * stride + shift;
      *to++ = at >= 0 && at % step == 0 && at / step < size ? from[at / step] : T{};
    }
    return;
  }
  auto const begin = std::clamp(shift >= 0 ? 0 : (-shift + stride - 1) / stride, first, last);
  auto const end = std::clamp(size > shift ? (size - shift + stride - 1) / stride : 0, begin, last);
  to = std::fill_n(to, begin - first, T{});
  from += begin * stride + shift;
  if (stride == 1)
    to = std::copy_n(from, end - begin, to);
  else
    for (auto q = begin; q < end; ++q, from += stride) *to++ = *from;
  std::fill_n(to, last - end, T{});
}

// Elements of the patches: for one term (channel, tap) at places [first, last), which are numbered over all images, or for one place with terms
// [first, last), whichever has the longer lines. `down`: along terms.
template <class T>
void fill(Shape const& s, T const* x, std::int64_t group, bool down, std::int64_t fixed, std::int64_t first, std::int64_t last, T* to) {
  std::int64_t plane = 1;
  for (auto const size : s.in) plane *= size;
  auto const all_channels = s.groups * s.channels;
  auto const l = s.dims - 1;
  std::array<std::int64_t, 8> tap{}, place{};
  auto const split = [](std::int64_t number, std::vector<std::int64_t> const& sizes, std::array<std::int64_t, 8>& parts) {  // what is left: image or channel
    for (std::size_t d = sizes.size(); d-- > 0; number /= sizes[d]) parts[d] = number % sizes[d];
    return number;
  };
  auto image = down ? split(fixed, s.out, place) : 0, channel = down ? 0 : split(fixed, s.kernel, tap);
  for (auto at = first; at < last;) {
    (down ? channel : image) = down ? split(at, s.kernel, tap) : split(at, s.out, place);
    T const* from = x + (image * all_channels + group * s.channels + channel) * plane;
    if (s.dims == 0) {
      *to++ = *from, ++at;
      continue;
    }
    bool inside = true;
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < l; ++d) {
      auto const where = place[d] * s.sweep.stride[d] - s.sweep.low[d] + tap[d] * s.sweep.dilation[d], step = s.sweep.input_dilation[d];
      inside = inside && where >= 0 && where % step == 0 && where / step < s.in[d];
      offset = offset * s.in[d] + (inside ? where / step : 0);
    }
    auto const begin = down ? tap[l] : place[l], end = std::min(down ? s.kernel[l] : s.out[l], begin + last - at), count = end - begin;
    auto const shift = (down ? place[l] * s.sweep.stride[l] : tap[l] * s.sweep.dilation[l]) - s.sweep.low[l];
    if (inside)
      fill_line(from + offset * s.in[l], s.in[l], down ? s.sweep.dilation[l] : s.sweep.stride[l], shift, s.sweep.input_dilation[l], begin, end, to);
    else
      std::fill_n(to, count, T{});
    to += count, at += count;
  }
}

constexpr std::int64_t patch_elements = 1 << 17, most_terms = 2048, few_positions = 64;

template <class T>
struct Memory {
  Aligned<T> patches, sums;
};
// Results of one group at places [first, last).
template <class T>
void compute(Shape const& s, T const* x, T const* w, Strided const& y, std::int64_t group, std::int64_t first, std::int64_t last, bool plain) {
  thread_local Memory<T> memory;
  bool const down = !plain && s.dims > 0 && s.kernel.back() > s.out.back();
  auto const n = last - first, terms = s.terms(), each = std::min(terms, most_terms);
  auto const image = first / s.positions, start = (image * y.sizes[1] + group * s.results) * s.positions + first % s.positions;
  bool const direct = y.dtype == dtype_for<T> && (last - 1) / s.positions == image;
  if (!direct && std::ssize(memory.sums) < s.results * n) memory.sums.resize(static_cast<std::size_t>(s.results * n));
  if (!plain && std::ssize(memory.patches) < each * n) memory.patches.resize(static_cast<std::size_t>(each * n));
  auto const as_bytes = [](T const* data) { return reinterpret_cast<std::byte*>(const_cast<T*>(data)); };
  Matrix const c = direct ? Matrix{y.at(start), s.positions, 1} : Matrix{as_bytes(memory.sums.data()), n, 1};
  for (std::int64_t done = 0; done == 0 || done < terms; done += each) {
    auto const k = std::min(each, terms - done);
    T const* right = memory.patches.data();
    if (plain)
      right = x + (image * s.groups * s.channels + group * s.channels + done) * s.positions + first % s.positions;
    else if (down)
      for (std::int64_t place = 0; place < n; ++place) fill(s, x, group, down, first + place, done, done + k, memory.patches.data() + place * k);
    else
      for (std::int64_t term = 0; term < k; ++term) fill(s, x, group, down, done + term, first, last, memory.patches.data() + term * n);
    gemm_rows({.dtype = dtype_for<T>,
               .m = s.results,
               .n = n,
               .k = k,
               .a = {as_bytes(w + group * s.results * terms + done), terms, 1},
               .b = down ? Matrix{as_bytes(right), 1, k} : Matrix{as_bytes(right), plain ? s.positions : n, 1},
               .c = c,
               .accumulate = done > 0},
              0, 0, s.results);
  }
  for (std::int64_t r = 0; r < s.results && !direct; ++r)
    for (auto at = first; at < last;) {  // a run within an image
      auto const count = std::min(last - at, s.positions - at % s.positions);
      auto const to = (at / s.positions * y.sizes[1] + group * s.results + r) * s.positions + at % s.positions;
      store_line(y.dtype, y.at(to), 1, memory.sums.data() + r * n + at - first, count);
      at += count;
    }
}

template <class T>
void convolve(ir::Attrs const& attrs, Strided const& x, Strided const& w, Strided const& y) {
  Shape const s(attrs, x, w, y);
  if (base::numel(y.sizes) == 0) return;
  auto const input = dense<T>(x), weight = dense<T>(w);
  bool plain = s.positions >= few_positions;  // each patch is one element, and the patches of an image are the image
  for (std::size_t d = 0; d < s.dims; ++d)
    plain = plain && s.kernel[d] == 1 && s.sweep.stride[d] == 1 && s.sweep.low[d] == 0 && s.sweep.input_dilation[d] == 1 && s.in[d] == s.out[d];
  auto const spans = s.positions >= few_positions ? s.images : 1, length = s.images * s.positions / spans;  // stretches that chunks don't cross
  auto const fit = std::max<std::int64_t>(patch_elements / std::max<std::int64_t>(std::min(s.terms(), most_terms), 1), few_positions);
  auto const chunk = std::min(length, (fit + 15) / 16 * 16), chunks = (length + chunk - 1) / chunk;
  device::parallel(spans * chunks * s.groups, [&](std::int64_t item, int) {
    auto const group = item % s.groups, span = item / s.groups / chunks, first = item / s.groups % chunks * chunk;
    compute(s, input.data, weight.data, y, group, span * length + first, span * length + std::min(first + chunk, length), plain);
  });
}
}  // namespace

void convolution(ir::Attrs const& attrs, Strided const& x, Strided const& w, Strided const& y) {
  x.dtype == base::DType::f64 ? convolve<double>(attrs, x, w, y) : convolve<float>(attrs, x, w, y);
}

}  // namespace tenon::fusion
