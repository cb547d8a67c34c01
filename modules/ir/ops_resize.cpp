// Rows that read an image at other places than its elements: resizing, grids, frames; and the two bilinear and channel-window forms of layers.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {

DType wide_type(Var x) { return x.meta().dtype == DType::f64 ? DType::f64 : DType::f32; }
void need_real(Var x) {
  if (!base::is_real(x.meta().dtype)) fail("needs floating elements, not {}", to_string(x.meta()));
}
Var whole(Var x) { return cast(x, DType::i64); }
Var between(Var x, Dim low, Dim high) { return call(minimum, {call(maximum, {x, Var(low)}), Var(high)}); }
Var picked(Var x, int dim, Var places) { return call(index_select, {x, places}, at_dim(dim)); }
Var along(Var line, Var x, int dim) {  // [n] to stand over dim of x
  Dims sizes{line.size(0)};
  for (int d = dim + 1; d < x.rank(); ++d) sizes.push_back(1);
  return shaped(line, sizes);
}
// A size as a 0-d tensor, so that its arithmetic rounds as the elements' does.
Var size_of(Dim size, Var x, DType type) {
  return create(*x.emit, full, Attrs{}.with(std::span<Dim const>{}).with(type).with(x.meta().device).with_num(Scalar(size)));
}
// Keys 1983, with a = -3/4: weights of the elements at floor(p) - 1 … floor(p) + 2 for t = p - floor(p).
std::array<Var, 4> cubic(Var t) {
  double const a = -0.75;
  auto const near = [&](Var u) { return ((u * (a + 2) - Var(a + 3)) * u) * u + Var(1.0); };
  auto const far = [&](Var u) { return ((u * a - Var(5 * a)) * u + Var(8 * a)) * u - Var(4 * a); };
  Var const u = Var(1.0) - t;
  return {far(t + Var(1.0)), near(t), near(u), far(u + Var(1.0))};
}

// -- interpolate ----------------------------------------------------------------------------------------------------------------------------

enum class Mode : std::uint8_t { nearest, linear, bilinear, bicubic, trilinear, area, nearest_exact };
struct Scale {  // of one dim
  Dim from, to;
  std::optional<double> factor;  ///< given, and the one that positions follow
};
Dim scaled(Dim size, double factor) {  // floor(size * factor), as an expression where the factor or its inverse is whole
  if (!(factor > 0) || !(factor <= 1e9)) fail("scale_factor must be greater than 0 and at most 1e9, not {}", factor);
  if (factor == std::floor(factor)) return size * Dim(static_cast<std::int64_t>(factor));
  if (1 / factor == std::floor(1 / factor)) return size / Dim(static_cast<std::int64_t>(1 / factor));
  same(size, size.value);
  return static_cast<std::int64_t>(std::floor(static_cast<double>(size.value) * factor));
}
std::vector<Scale> scales_of(Body const& b, AttrReader& reader, Mode& mode, bool& corners) {
  Var const x = b.x();
  if (x.rank() < 3) fail("needs rank 3, 4 or 5, not {}", to_string(x.meta()));
  auto const dims = static_cast<std::size_t>(x.rank() - 2);
  Dims const sizes(reader.list());
  std::vector<double> factors;
  for (auto n = reader.number().value; n-- > 0;) factors.push_back(pinned(reader.num()));
  mode = static_cast<Mode>(reader.number().value);
  corners = reader.flag();
  bool const again = reader.flag();
  constexpr std::array<std::array<std::size_t, 2>, 7> ranks{{{1, 3}, {1, 1}, {2, 2}, {2, 2}, {3, 3}, {1, 3}, {1, 3}}};
  if (auto const [least, most] = ranks[static_cast<std::size_t>(mode)]; dims < least || dims > most)
    fail("this mode resizes {} to {} dims, not {} ({})", least, most, dims, to_string(x.meta()));
  if (corners && (mode == Mode::nearest || mode == Mode::nearest_exact || mode == Mode::area)) fail("align_corners needs a mode that is linear or bicubic");
  if (sizes.empty() == factors.empty()) fail("needs either size or scale_factor");
  if (factors.size() > 1 && factors.size() != dims) fail("scale_factor takes one number or {}, not {}", dims, factors.size());
  auto const wish = spread(sizes, dims, "size", 1);
  std::vector<Scale> scales;
  for (std::size_t d = 0; d < dims; ++d) {
    Scale scale{x.meta().sizes[d + 2], wish[d], std::nullopt};
    if (!factors.empty()) {
      double const factor = factors[factors.size() == 1 ? 0 : d];
      scale.to = scaled(scale.from, factor);
      if (!again) scale.factor = factor;
    }
    if (less(scale.from, 1) || less(scale.to, 1)) fail("sizes must be at least 1: from {} to {}", scale.from.value, scale.to.value);
    scales.push_back(scale);
  }
  return scales;
}
// Where the elements of the result lie in the operand, along one dim.
Var positions(Var x, Scale const& scale, Mode mode, bool corners) {
  auto const type = wide_type(x);
  Var const i = cast(counting(x, scale.to), type);
  if (corners) return same(scale.to, 1) ? i * 0.0 : i * (size_of(scale.from - 1, x, type) / size_of(scale.to - 1, x, type));
  Var const step = scale.factor ? Var(1 / *scale.factor) : size_of(scale.from, x, type) / size_of(scale.to, x, type);
  if (mode == Mode::nearest) return i * step;
  Var const centre = (i + Var(0.5)) * step;
  return mode == Mode::nearest_exact ? centre : centre - Var(0.5);
}
Var resized(Var x, int dim, Scale const& scale, Mode mode, bool corners) {
  Dim const last = scale.from - 1;
  Var at = positions(x, scale, mode, corners);
  if (mode == Mode::nearest || mode == Mode::nearest_exact) return picked(x, dim, between(whole(call(floor, {at})), 0, last));
  if (mode != Mode::bicubic) at = call(maximum, {at, Var(0.0)});
  Var const below = call(floor, {at}), first = whole(below), t = along(at - below, x, dim);
  if (mode == Mode::bicubic) {
    Var sum;
    auto const weights = cubic(t);
    for (int k = 0; k < 4; ++k) {
      Var const part = picked(x, dim, between(first + Var(k - 1), 0, last)) * weights[static_cast<std::size_t>(k)];
      sum = sum ? sum + part : part;
    }
    return sum;
  }
  Var const low = picked(x, dim, between(first, 0, last)), high = picked(x, dim, between(first + Var(1), 0, last));
  return low * (Var(1.0) - t) + high * t;
}
void interpolate_body(Body& b) {
  AttrReader reader{b.attrs};
  Mode mode{};
  bool corners = false;
  need_real(b.x());
  auto const scales = scales_of(b, reader, mode, corners);
  if (mode == Mode::area) {
    constexpr std::array pools{&adaptive_avg_pool1d, &adaptive_avg_pool2d, &adaptive_avg_pool3d};
    Dims sizes;
    for (auto const& scale : scales) sizes.push_back(scale.to);
    return void(b.out.push_back(call(*pools[scales.size() - 1], {b.x()}, Attrs{}.with(sizes))));
  }
  b.out.push_back(in_wide(b.x(), [&](Var x) {
    for (std::size_t d = 0; d < scales.size(); ++d) x = resized(x, static_cast<int>(d) + 2, scales[d], mode, corners);
    return x;
  }));
}

// -- grids ----------------------------------------------------------------------------------------------------------------------------------

// theta applied to the centres of a result's elements, which lie in [-1, 1]; with corners the outermost centres are -1 and 1.
void affine_grid_body(Body& b) {
  AttrReader reader{b.attrs};
  Var const theta = b.x();
  auto const size = reader.list();
  bool const corners = reader.flag();
  int const dims = static_cast<int>(size.size()) - 2;
  need_real(theta);
  if (dims != 2 && dims != 3) fail("size takes 4 or 5 numbers, not {}", size.size());
  if (theta.rank() != 3 || !same(theta.size(0), size[0]) || !same(theta.size(1), dims) || !same(theta.size(2), dims + 1))
    fail("theta must be [{}, {}, {}], not {}", size[0].value, dims, dims + 1, to_string(theta.meta()));
  auto const space = size.subspan(2);
  for (Dim const n : space)
    if (less(n, 1)) fail("sizes must be at least 1, not {}", n.value);
  Dims column(space);
  column.push_back(1);
  std::vector<Var> columns;
  auto const type = theta.meta().dtype, compute = wide_type(theta);
  for (int d = dims; d-- > 0;) {  // x first: the last dim
    Dim const n = space[static_cast<std::size_t>(d)];
    Var const i = cast(counting(theta, n), compute), twice = i * 2.0;
    Var const centres =
        corners ? (same(n, 1) ? i * 0.0 : twice / size_of(n - 1, theta, compute) - Var(1.0)) : (twice + Var(1.0)) / size_of(n, theta, compute) - Var(1.0);
    Dims line{n};
    for (int after = d; after < dims; ++after) line.push_back(1);
    columns.push_back(call(expand, {shaped(centres, line)}, Attrs{}.with(column)));
  }
  columns.push_back(create(*theta.emit, full, Attrs{}.with(column).with(compute).with(theta.meta().device).with_num(1.0)));
  Var const base = shaped(concat(columns, dims), std::array{product(space), Dim(dims + 1)});
  Var const grid = call(matmul, {base, call(transpose, {widened(theta)}, Attrs{}.with(Dim(1)).with(Dim(2)))});
  Dims sizes{size[0]};
  for (Dim const n : space) sizes.push_back(n);
  sizes.push_back(dims);
  b.out.push_back(cast(shaped(grid, sizes), type));
}

enum class Outside : std::uint8_t { zeros, border, reflection };
struct Sampling {
  Var flat;    ///< the image as [n, c, elements]
  Dims space;  ///< its sizes
  Outside outside{};
  bool corners = false;
};
// Coordinates in [-1, 1] as places of elements.
Var placed(Var at, Dim size, bool corners) {
  if (corners) return (at + Var(1.0)) * 0.5 * Var(size - 1);
  return ((at + Var(1.0)) * Var(size) - Var(1.0)) * 0.5;
}
// Places outside of the image brought inside, as the padding says; zeros leaves them.
Var brought_in(Var at, Dim size, Sampling const& s) {
  if (s.outside == Outside::zeros) return at;
  if (s.outside == Outside::reflection) {
    if (s.corners && same(size, 1)) return at * 0.0;
    Var const low = s.corners ? Var(0.0) : Var(-0.5), span = Var(s.corners ? size - 1 : size);  // mirrored at the outermost centres, or edges
    Var const far = call(abs, {at - low}), turns = call(floor, {far / span}), rest = far - turns * span;
    Var const even = call(eq, {call(remainder, {turns, Var(2.0)}), Var(0.0)});
    at = choose(even, rest, Var(0.0) - rest + span) + low;
  }
  return call(clamp, {at}, Attrs{}.with_num(0.0).with_num(Scalar(size - 1)));
}
// The elements at whole places, one tensor [n, q] a dim, times `weight` [n, q]; nothing where a place is outside.
Var taken(Sampling const& s, std::span<Var const> places, Var weight) {
  Var flat, inside;
  for (std::size_t d = 0; d < places.size(); ++d) {
    Dim const size = s.space[d];
    Var const held = between(places[d], 0, size - 1), hit = call(eq, {held, places[d]});
    flat = flat ? flat * Var(size) + held : held;
    inside = inside ? call(logical_and, {inside, hit}) : hit;
  }
  Dims wide{flat.size(0), s.flat.size(1), flat.size(1)};
  auto const over_channels = [&](Var x) { return call(unsqueeze, {x}, at_dim(1)); };
  Var const read = call(gather, {s.flat, call(expand, {over_channels(flat)}, Attrs{}.with(wide))}, at_dim(2));
  Var const kept = choose(over_channels(inside), read, Var(0.0));
  return weight ? kept * over_channels(weight) : kept;
}
// The sum over all combinations of one tap a dim.
Var combined(Sampling const& s, std::span<std::vector<std::pair<Var, Var>> const> taps) {  // per dim: whole places and weights
  Var sum;
  std::vector<std::size_t> chosen(taps.size(), 0);
  for (bool more = true; more;) {
    std::vector<Var> places;
    Var weight;
    for (std::size_t d = 0; d < taps.size(); ++d) {
      auto const& [place, share] = taps[d][chosen[d]];
      places.push_back(place);
      if (share) weight = weight ? weight * share : share;
    }
    Var const part = taken(s, places, weight);
    sum = sum ? sum + part : part;
    more = false;
    for (std::size_t d = taps.size(); d-- > 0 && !more;) more = ++chosen[d] < taps[d].size() || (chosen[d] = 0, false);
  }
  return sum;
}
void grid_sample_body(Body& b) {
  AttrReader reader{b.attrs};
  auto const mode = reader.number().value;  // bilinear|nearest|bicubic
  Sampling s{{}, {}, static_cast<Outside>(reader.number().value), reader.flag()};
  Var const x = b.x(0), grid = b.x(1);
  int const dims = x.rank() - 2;
  if ((dims != 2 && dims != 3) || grid.rank() != x.rank())
    fail("input and grid need one rank of 4 or 5: {} and {}", to_string(x.meta()), to_string(grid.meta()));
  need_real(x);
  if (x.meta().dtype != grid.meta().dtype) fail("dtypes differ: {} and {}", base::info(x.meta().dtype).name, base::info(grid.meta().dtype).name);
  if (!same(x.size(0), grid.size(0)) || !same(grid.size(-1), dims)) fail("grid {} does not fit input {}", to_string(grid.meta()), to_string(x.meta()));
  if (mode == 2 && dims != 2) fail("bicubic needs an input of rank 4, not {}", to_string(x.meta()));
  for (int d = 0; d < dims; ++d) s.space.push_back(x.size(d + 2));
  for (Dim const size : s.space)
    if (less(size, 1)) fail("input {} has a dim without elements", to_string(x.meta()));
  Dims const result(std::span<Dim const>(grid.meta().sizes).subspan(1, static_cast<std::size_t>(dims)));
  s.flat = shaped(widened(x), std::array{x.size(0), x.size(1), product(s.space)});
  std::vector<std::vector<std::pair<Var, Var>>> taps;
  for (int d = 0; d < dims; ++d) {
    Dim const size = s.space[static_cast<std::size_t>(d)];
    Var const line = call(select, {widened(grid)}, Attrs{}.with(Dim(-1)).with(Dim(dims - 1 - d)));  // x, the last dim, stands first
    Var at = placed(shaped(line, std::array{grid.size(0), product(result)}), size, s.corners);
    if (mode != 2) at = brought_in(at, size, s);
    auto& list = taps.emplace_back();
    if (mode == 1) {
      list.emplace_back(whole(call(round, {at})), Var());
      continue;
    }
    Var const below = call(floor, {at}), t = at - below;
    if (mode == 0) {
      list = {{whole(below), Var(1.0) - t}, {whole(below) + Var(1), t}};
      continue;
    }
    auto const weights = cubic(t);
    for (int k = 0; k < 4; ++k) list.emplace_back(whole(brought_in(below + Var(k - 1.0), size, s)), weights[static_cast<std::size_t>(k)]);
  }
  Dims sizes{x.size(0), x.size(1)};
  for (Dim const n : result) sizes.push_back(n);
  b.out.push_back(cast(shaped(combined(s, taps), sizes), x.meta().dtype));
}
}  // namespace

// -- frames ---------------------------------------------------------------------------------------------------------------------------------

void pad_body(Body& b) {
  AttrReader reader{b.attrs};
  auto const wish = reader.list();
  auto const mode = reader.number().value;  // constant|reflect|replicate|circular
  Var x = b.x();
  if (wish.size() % 2 || std::cmp_greater(wish.size() / 2, x.rank())) fail("pad: {} numbers for rank {}", wish.size(), x.rank());
  for (std::size_t k = 0; k < wish.size(); k += 2) {
    int const d = x.rank() - 1 - static_cast<int>(k / 2);
    Dim before = wish[k], after = wish[k + 1], size = x.size(d);
    Dim const total = size + before + after;
    if (less(total, 0)) fail("pad: {} and {} leave nothing of size {}", before.value, after.value, size.value);
    if (mode == 3 && (less(before, 0) || less(after, 0))) {  // what is cut off is not seen on the other side
      x = cut(x, d, less(before, 0) ? Dim(0) - before : Dim(0), less(after, 0) ? size + after : size);
      size = x.size(d);
      before = less(before, 0) ? Dim(0) : before, after = less(after, 0) ? Dim(0) : after;
    }
    if (mode != 0) {
      Dim const most = mode == 1 ? size - 1 : size;  // replicate may go as far as it likes
      if (less(size, 1) || (mode != 2 && (less(most, before) || less(most, after))))
        fail("pad: {} and {} are too much for size {}", before.value, after.value, size.value);
      Var at = counting(x, total) - Var(before);
      if (mode == 1) at = Var(size - 1) - call(abs, {Var(size - 1) - call(abs, {at})});
      x = picked(x, d, mode == 3 ? call(remainder, {at, Var(size)}) : between(at, 0, size - 1));
      continue;
    }
    auto const frame = [&](Dim n) {
      Dims sizes = x.meta().sizes;
      sizes[static_cast<std::size_t>(d)] = n;
      return create(*x.emit, full, Attrs{}.with(sizes).with(x.meta().dtype).with(x.meta().device).with_num(b.attrs.nums[0]));
    };
    Dim const start = less(before, 0) ? Dim(0) - before : Dim(0), end = less(after, 0) ? size + after : size;
    std::vector<Var> parts;
    if (less(0, before)) parts.push_back(frame(before));
    parts.push_back(less(before, 0) || less(after, 0) ? cut(x, d, start, end) : x);
    if (less(0, after)) parts.push_back(frame(after));
    x = parts.size() == 1 ? parts[0] : concat(parts, d);
  }
  b.out.push_back(call(clone, {x}));
}

namespace {
// -- channel windows and bilinear forms -------------------------------------------------------------------------------------------------------

// x / (k + alpha mean of x² over `size` neighbouring channels)^beta; Krizhevsky et al. 2012.
void local_response_norm_body(Body& b) {
  Dim const size = b.attrs.ints[0];
  if (b.x().rank() < 3) fail("needs a rank of at least 3, not {}", to_string(b.x().meta()));
  if (size.value < 1 || size.value > 1 << 24) fail("size must lie between 1 and {}, not {}", 1 << 24, size.value);
  need_real(b.x());
  b.out.push_back(in_wide(b.x(), [&](Var x) {
    auto const& sizes = x.meta().sizes;
    Dim const one = 1, rest = product(std::span<Dim const>(sizes).subspan(2));
    Var const squares = shaped(call(square, {x}), std::array{sizes[0], one, sizes[1], rest});
    Var const kernel = create(*x.emit, full, Attrs{}.with(std::array{one, one, size, one}).with(x.meta().dtype).with(x.meta().device).with_num(1.0));
    std::span<Dim const> const usual{};
    Attrs const window = Attrs{}.with(usual).with(std::array{size / 2, Dim(0)}).with(std::array{(size - 1) / 2, Dim(0)}).with(usual).with(usual).with(one);
    Var const mean = shaped(call(convolution, {squares, kernel}, window), sizes) / Var(size);
    return x / call(pow, {mean * num(b.attrs.nums[0]) + num(b.attrs.nums[2]), num(b.attrs.nums[1])});
  }));
}
void bilinear_body(Body& b) {
  Var const x = b.x(0), y = b.x(1), w = b.x(2), bias = b.x(3);
  if (x.rank() < 1 || y.rank() != x.rank() || w.rank() != 3)
    fail("inputs need one rank of at least 1, the weight rank 3: {}, {} and {}", to_string(x.meta()), to_string(y.meta()), to_string(w.meta()));
  for (int d = 0; d + 1 < x.rank(); ++d)
    if (!same(x.size(d), y.size(d))) fail("inputs differ at dim {}: {} and {}", d, to_string(x.meta()), to_string(y.meta()));
  if (!same(x.size(-1), w.size(1)) || !same(y.size(-1), w.size(2)))
    fail("inputs {} and {} do not fit the weight {}", to_string(x.meta()), to_string(y.meta()), to_string(w.meta()));
  if (x.meta().dtype != y.meta().dtype || x.meta().dtype != w.meta().dtype)
    fail("dtypes of {}, {} and {} differ", to_string(x.meta()), to_string(y.meta()), to_string(w.meta()));
  if (bias && (bias.rank() != 1 || !same(bias.size(0), w.size(0)) || bias.meta().dtype != x.meta().dtype))
    fail("the bias must be {}[{}], not {}", base::info(x.meta().dtype).name, w.size(0).value, to_string(bias.meta()));
  auto const lifted_by = [](Var v, int dim) { return call(unsqueeze, {call(unsqueeze, {v}, at_dim(dim))}, at_dim(dim)); };
  Var const rows = call(matmul, {lifted_by(x, -2), w});                                                     // [*, o, 1, j]
  Var const forms = call(matmul, {rows, call(unsqueeze, {call(unsqueeze, {y}, at_dim(-2))}, at_dim(-1))});  // [*, o, 1, 1]
  Var const result = call(squeeze, {forms}, Attrs{}.with(std::array{Dim(-2), Dim(-1)}));
  b.out.push_back(bias ? result + bias : result);
}
}  // namespace

// clang-format off
constinit const OpDef interpolate{.name = "interpolate", .kind = Kind::gather,
    .signature = "Tensor input, int[] size=[], float[] scale_factor=[], nearest|linear|bilinear|bicubic|trilinear|area|nearest_exact mode=nearest, bool align_corners=False, bool recompute_scale_factor=False",
    .terms = "a", .mono = ".", .decompose = interpolate_body};
constinit const OpDef affine_grid{.name = "affine_grid", .kind = Kind::contraction, .signature = "Tensor theta, int[] size, bool align_corners=False",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const>) { return std::string(attrs.ints[0].value == 5 ? "n!i!j!->n!d!h!w!x!" : "n!i!j!->n!h!w!x!"); }}, .terms = "a",
    .combine = Monoid::sum, .mono = ".", .decompose = affine_grid_body};
constinit const OpDef grid_sample{.name = "grid_sample", .kind = Kind::gather,
    .signature = "Tensor input, Tensor grid, bilinear|nearest|bicubic mode=bilinear, zeros|border|reflection padding_mode=zeros, bool align_corners=False",
    .terms = "a-", .mono = "..", .decompose = grid_sample_body};
constinit const OpDef local_response_norm{.name = "local_response_norm", .kind = Kind::normalise,
    .signature = "Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0", .terms = "-", .mono = ".", .types = Types::real,
    .precision = Precision::wide, .decompose = local_response_norm_body};
constinit const OpDef bilinear{.name = "bilinear", .kind = Kind::contraction, .signature = "Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None",
    .terms = "aaab", .combine = Monoid::sum, .mono = "....", .precision = Precision::low, .decompose = bilinear_body};

namespace {
constexpr std::array rows{&interpolate, &affine_grid, &grid_sample, &local_response_norm, &bilinear};
}
// clang-format on
std::span<OpDef const* const> resize_rows() { return rows; }

}  // namespace tenon::ir::ops
