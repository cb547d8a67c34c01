// Rows that lay the same elements out anew: reordered, joined, repeated, mirrored, moved round, framed.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
void pad_body(Body& b);  // ops_resize.cpp
namespace {
constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();

Dims with(Var x, int dim, std::initializer_list<Dim> instead) {  // the sizes of x, those of `dim` replaced
  auto const& sizes = x.meta().sizes;
  Dims to(std::span<Dim const>(sizes).first(static_cast<std::size_t>(dim)));
  for (Dim const size : instead) to.push_back(size);
  for (std::size_t d = static_cast<std::size_t>(dim) + 1; d < sizes.size(); ++d) to.push_back(sizes[d]);
  return to;
}
Var turned(Var x, std::span<Dim const> order) { return call(permute, {x}, Attrs{}.with(order)); }

// hstack, vstack, dstack, column_stack: each part gets the dims it lacks, then all are concatenated.
enum class Stack : std::uint8_t { row, deep, wide, columns };
template <Stack how>
void stacked(Body& b) {
  std::vector<Var> parts;
  for (Var x : b.in) {
    Dim const one = 1;
    if (x.rank() == 0) x = shaped(x, std::array{one});
    if (x.rank() == 1 && how != Stack::wide) x = how == Stack::columns ? shaped(x, std::array{x.size(0), one}) : shaped(x, std::array{one, x.size(0)});
    if (x.rank() == 2 && how == Stack::deep) x = shaped(x, std::array{x.size(0), x.size(1), one});
    parts.push_back(x);
  }
  int const dim = how == Stack::row ? 0 : how == Stack::deep ? 2 : how == Stack::columns ? 1 : parts[0].rank() == 1 ? 0 : 1;
  b.out.push_back(concat(parts, dim));
}

// x repeated times[d] times along dim d: a new dim before each, expanded and merged.
Var repeated(Var x, std::span<Dim const> times) {
  auto const lead = static_cast<int>(times.size()) - x.rank();
  if (lead < 0) fail("{} numbers of repeats for rank {}", times.size(), x.rank());
  Dims apart, wide, merged;
  for (int d = 0; d < lead + x.rank(); ++d) {
    Dim const n = times[static_cast<std::size_t>(d)], size = d < lead ? Dim(1) : x.size(d - lead);
    if (n.value < 0) fail("a number of repeats can't be negative: {}", n.value);
    if (n.value != 1) apart.push_back(1), wide.push_back(n);
    apart.push_back(size), wide.push_back(size), merged.push_back(n * size);
  }
  return call(clone, {shaped(call(expand, {shaped(x, apart)}, Attrs{}.with(wide)), merged)});
}
Var flipped(Var x, std::span<Dim const> dims) { return call(flip, {x}, Attrs{}.with(dims)); }
Var rolled(Var x, int dim, Dim shift) {
  Dim const size = x.size(dim);
  if (same(size, 0)) return x;
  shift = shift % size;
  return same(shift, 0) ? x : concat(std::array{cut(x, dim, size - shift, last), cut(x, dim, 0, size - shift)}, dim);
}
void roll_body(Body& b) {
  AttrReader reader{b.attrs};
  auto const shifts = reader.list(), dims = reader.list();
  Var y = b.x();
  if (dims.empty()) {
    if (shifts.size() != 1) fail("roll: {} shifts without dims", shifts.size());
    y = shaped(rolled(shaped(y, std::array{product(y.meta().sizes)}), 0, shifts[0]), y.meta().sizes);
  } else {
    if (shifts.size() != dims.size()) fail("roll: {} shifts for {} dims", shifts.size(), dims.size());
    if (y.rank() == 0) fail("roll: a 0-d tensor has no dims");
    for (std::size_t k = 0; k < dims.size(); ++k) y = rolled(y, dim_of(y, dims[k]), shifts[k]);
  }
  b.out.push_back(y.input.value == b.x().input.value ? call(clone, {y}) : y);
}
std::vector<bool> flip_mask(Attrs const& attrs, int rank) {
  AttrReader reader{attrs};
  auto const dims = reader.list();
  return dims.empty() ? std::vector<bool>(static_cast<std::size_t>(rank), false) : dim_mask("flip", dims, rank);
}
void evaluate_flip(Kernel const& kernel) {
  auto const& x = kernel.in[0];
  auto const mask = flip_mask(kernel.attrs, static_cast<int>(x.sizes.size()));
  base::Shape strides = kernel.out[0].strides;
  std::int64_t start = 0;
  for (std::size_t d = 0; d < strides.size(); ++d)
    if (mask[d]) start += (x.sizes[d] - 1) * strides[d], strides[d] = -strides[d];
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  walk<2>(x.sizes, {&x.strides, &strides}, [&](auto const& at) { std::memcpy(kernel.out[0].at(start + at[1]), x.at(at[0]), bytes); });
}

// Windows of `size` elements, `step` apart, along a dim: the elements of a window are a new last dim.
bool unfold_geometry(View& view) {
  AttrReader reader{view.attrs};
  int const rank = static_cast<int>(view.sizes.size());
  auto const d = static_cast<std::size_t>(base::wrap_dim("unfold", reader.number().value, std::max(rank, 1)));
  Dim const size = reader.number(), step = reader.number(), whole = rank ? view.sizes[d] : Dim(1), stride = rank ? view.strides[d] : Dim(1);
  if (less(size, 0) || !less_equal(size, whole)) fail("unfold: windows of {} do not fit size {} of dim {}", size.value, whole.value, d);
  if (less(step, 1)) fail("unfold: step must be at least 1, not {}", step.value);
  if (rank) view.sizes[d] = (whole - size) / step + 1, view.strides[d] = stride * step;
  view.sizes.push_back(size), view.strides.push_back(stride);
  return true;
}
void unfold_vjp(Vjp& v) {  // every element gets the gradients of the windows that it is in
  Var const x = v.x();
  if (x.rank() == 0) return void(v.grad(0) = call(reshape, {v.g()}, Attrs{}.with(std::span<Dim const>{})));
  int const d = dim_of(x, v.attrs.ints[0]);
  Dim const size = v.attrs.ints[1], step = v.attrs.ints[2];
  if (same(size, 0)) return void(v.grad(0) = zeros_like(x));
  Dim const windows = (x.size(d) - size) / step + 1;
  Dims order;
  for (int k = 0; k < x.rank(); ++k) {
    order.push_back(k);
    if (k == d) order.push_back(x.rank());
  }
  Var const g = shaped(turned(v.g(), order), with(x, d, {windows * size}));
  Var const first = shaped(counting(x, windows) * Var(step), std::array{windows, Dim(1)});
  Var const places = shaped(first + counting(x, size), std::array{windows * size});
  v.grad(0) = call(index_add, {zeros_like(x), places, g}, at_dim(d).with_num(1.0));
}

void movedim_body(Body& b) {
  AttrReader reader{b.attrs};
  auto const from = reader.list(), to = reader.list();
  int const rank = b.x().rank();
  if (from.size() != to.size()) fail("movedim: {} dims move to {} places", from.size(), to.size());
  std::vector<int> order(static_cast<std::size_t>(rank), -1);
  std::vector<bool> moved(static_cast<std::size_t>(rank), false);
  for (std::size_t k = 0; k < from.size(); ++k) {
    if (rank == 0) continue;
    auto const source = static_cast<std::size_t>(dim_of(b.x(), from[k])), target = static_cast<std::size_t>(dim_of(b.x(), to[k]));
    if (moved[source] || order[target] >= 0) fail("movedim: dim {} or place {} is named twice", source, target);
    moved[source] = true, order[target] = static_cast<int>(source);
  }
  Dims dims;
  for (std::size_t d = 0, next = 0; d < order.size(); ++d) {
    if (order[d] >= 0) {
      dims.push_back(order[d]);
      continue;
    }
    while (moved[next]) ++next;
    dims.push_back(Dim(next++));
  }
  b.out.push_back(turned(b.x(), dims));
}
void rot90_body(Body& b) {
  AttrReader reader{b.attrs};
  auto const turns = (reader.number().value % 4 + 4) % 4;
  auto const dims = reader.list();
  Var const x = b.x();
  if (dims.size() != 2 || x.rank() < 2) fail("rot90: needs two dims of {}, not {}", to_string(x.meta()), dims.size());
  Dim const p = dim_of(x, dims[0]), q = dim_of(x, dims[1]);
  if (p.value == q.value) fail("rot90: dim {} is named twice", p.value);
  if (turns == 0) return void(b.out.push_back(call(clone, {x})));
  if (turns == 2) return void(b.out.push_back(flipped(x, std::array{p, q})));
  Var const mirrored = flipped(x, std::array{turns == 1 ? q : p});
  b.out.push_back(call(transpose, {mirrored}, Attrs{}.with(p).with(q)));
}
// r*r channels become r by r pixels, or back.
template <bool back>
void pixels(Body& b) {
  Var const x = b.x();
  Dim const r = b.attrs.ints[0];
  if (x.rank() < 3) fail("needs a rank of at least 3, not {}", to_string(x.meta()));
  if (r.value < 1) fail("the factor must be at least 1, not {}", r.value);
  Dim const c = x.size(-3), h = x.size(-2), w = x.size(-1);
  if (back ? !same(h % r, 0) || !same(w % r, 0) : !same(c % (r * r), 0)) fail("factor {} does not divide {}", r.value, to_string(x.meta()));
  Dims const lead(std::span<Dim const>(x.meta().sizes).first(static_cast<std::size_t>(x.rank() - 3)));
  Dims apart = lead, joined = lead, order;
  for (std::size_t d = 0; d < lead.size(); ++d) order.push_back(Dim(d));
  auto const n = static_cast<std::int64_t>(lead.size());
  if (back) {
    for (Dim const size : {c, h / r, r, w / r, r}) apart.push_back(size);
    for (int d : {0, 2, 4, 1, 3}) order.push_back(n + d);
    for (Dim const size : {c * r * r, h / r, w / r}) joined.push_back(size);
  } else {
    for (Dim const size : {c / (r * r), r, r, h, w}) apart.push_back(size);
    for (int d : {0, 3, 1, 4, 2}) order.push_back(n + d);
    for (Dim const size : {c / (r * r), h * r, w * r}) joined.push_back(size);
  }
  b.out.push_back(call(clone, {shaped(turned(shaped(x, apart), order), joined)}));
}

bool same_place(View&) { return true; }
void infer_copy(Inference& call) {
  auto const &x = call.x(), &src = call.x(1);
  if (overlaps(x.sizes, x.strides)) fail("copy_: several elements of {} lie in one place of memory: clone it first", to_string(x));
  bool fits = src.rank() <= x.rank();
  std::size_t const lead = fits ? x.sizes.size() - src.sizes.size() : 0;
  for (std::size_t d = 0; fits && d < src.sizes.size(); ++d) fits = same(src.sizes[d], x.sizes[lead + d]) || same(src.sizes[d], 1);
  if (!fits) fail("copy_: {} does not broadcast to {}", to_string(src), to_string(x));
  call.out.push_back(x);
}
void evaluate_copy(Kernel const& kernel) {  // as if all of src was read first
  auto const &y = kernel.out[0], &src = kernel.in[1];
  base::Buffer held(base::numel(src.sizes) * base::bytes_of(y.dtype));
  std::array cast{Strided{held.data(), y.dtype, src.sizes, base::contiguous_strides(src.sizes)}};
  evaluate(to, std::array{src}, std::array{Scalar()}, Attrs{}.with(y.dtype), cast);
  base::Shape strides(y.sizes.size(), 0);
  for (std::size_t d = 0, lead = y.sizes.size() - src.sizes.size(); d < src.sizes.size(); ++d)
    if (src.sizes[d] != 1) strides[lead + d] = cast[0].strides[d];
  auto const bytes = static_cast<std::size_t>(base::bytes_of(y.dtype));
  walk<2>(y.sizes, {&y.strides, &strides}, [&](auto const& at) { std::memcpy(y.at(at[0]), cast[0].at(at[1]), bytes); });
}
std::string copy_equation(Attrs const&, std::span<Meta const* const> in) {
  auto const to = letters(in[0]->rank());
  std::string from;
  for (std::size_t d = 0, lead = to.size() - in[1]->sizes.size(); d < in[1]->sizes.size(); ++d)
    from += in[1]->sizes[d].value == 1 && in[0]->sizes[lead + d].value != 1 ? '1' : to[lead + d];
  return to + "," + from + "->" + to;
}
void slice_scatter_body(Body& b) {
  Var const x = b.x(0), src = b.x(1);
  if (x.meta().dtype != src.meta().dtype) fail("slice_scatter: dtypes differ: {} and {}", to_string(x.meta()), to_string(src.meta()));
  Var const place = call(slice, {x}, b.attrs);
  bool fits = place.rank() == src.rank();
  for (int d = 0; fits && d < src.rank(); ++d) fits = same(place.size(d), src.size(d));
  if (!fits) fail("slice_scatter: src {} does not fit {}", to_string(src.meta()), to_string(place.meta()));
  Attrs window = Attrs{}.with(x.meta().sizes);
  for (Dim const number : b.attrs.ints) window.with(number);
  Var const ones = create(*x.emit, full, Attrs{}.with(src.meta().sizes).with(base::DType::boolean).with(x.meta().device).with_num(1.0));
  b.out.push_back(choose(call(slice_grad, {ones}, window), call(slice_grad, {src}, window), x));
}
}  // namespace

// clang-format off
constinit const OpDef movedim{.name = "movedim", .kind = Kind::view, .signature = "Tensor input, int[] source, int[] destination", .terms = "a", .mono = "+", .copy = true,
    .cost = 0, .decompose = movedim_body};
constinit const OpDef broadcast_to{.name = "broadcast_to", .kind = Kind::view, .signature = "Tensor input, size[] shape", .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) { b.out.push_back(call(expand, {b.x()}, b.attrs)); }};
constinit const OpDef ravel{.name = "ravel", .kind = Kind::view, .signature = "Tensor input", .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) { b.out.push_back(shaped(b.x(), std::array{product(b.x().meta().sizes)})); }};
constinit const OpDef unflatten{.name = "unflatten", .kind = Kind::view, .signature = "Tensor input, int dim, int[] sizes", .terms = "a", .mono = "+", .copy = true, .cost = 0,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      if (b.x().rank() == 0) fail("unflatten: a 0-d tensor has no dim");
      int const d = dim_of(b.x(), reader.number());
      Dims parts(reader.list());
      if (parts.empty()) fail("unflatten: needs at least one size");
      Dim known = 1;
      for (Dim const part : parts) known = part.value == -1 ? known : known * part;
      for (auto& part : parts)
        if (part.value == -1) {
          if (known.value == 0) fail("unflatten: the size at -1 can't be told");
          part = b.x().size(d) / known;
        }
      if (!same(product(parts), b.x().size(d))) fail("unflatten: sizes {} do not fill {} of dim {}", base::to_string(values(parts)), b.x().size(d).value, d);
      Dims sizes(std::span<Dim const>(b.x().meta().sizes).first(static_cast<std::size_t>(d)));
      for (Dim const part : parts) sizes.push_back(part);
      for (int k = d + 1; k < b.x().rank(); ++k) sizes.push_back(b.x().size(k));
      b.out.push_back(shaped(b.x(), sizes));
    }};
constinit const OpDef hstack{.name = "hstack", .kind = Kind::gather, .signature = "Tensor[] tensors", .terms = "*", .mono = "*", .copy = true, .decompose = stacked<Stack::wide>};
constinit const OpDef vstack{.name = "vstack", .kind = Kind::gather, .signature = "Tensor[] tensors", .terms = "*", .mono = "*", .copy = true, .decompose = stacked<Stack::row>};
constinit const OpDef dstack{.name = "dstack", .kind = Kind::gather, .signature = "Tensor[] tensors", .terms = "*", .mono = "*", .copy = true, .decompose = stacked<Stack::deep>};
constinit const OpDef column_stack{.name = "column_stack", .kind = Kind::gather, .signature = "Tensor[] tensors", .terms = "*", .mono = "*", .copy = true,
    .decompose = stacked<Stack::columns>};
constinit const OpDef repeat{.name = "repeat", .kind = Kind::gather, .signature = "Tensor input, int[] repeats", .terms = "a", .mono = "+", .copy = true,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      b.out.push_back(repeated(b.x(), reader.list()));
    }};
constinit const OpDef tile{.name = "tile", .kind = Kind::gather, .signature = "Tensor input, int[] dims", .terms = "a", .mono = "+", .copy = true,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const wish = reader.list();
      Dims times;
      for (int d = static_cast<int>(wish.size()); d < b.x().rank(); ++d) times.push_back(1);
      for (Dim const n : wish) times.push_back(n);
      b.out.push_back(repeated(b.x(), times));
    }};
constinit const OpDef repeat_interleave{.name = "repeat_interleave", .kind = Kind::gather, .signature = "Tensor input, int repeats, int? dim=None", .terms = "a", .mono = "+",
    .copy = true, .decompose = [](Body& b) {
      Dim const n = b.attrs.ints[0];
      bool const flat = b.attrs.ints[1].value == absent || b.x().rank() == 0;
      Var const x = flat ? shaped(b.x(), std::array{product(b.x().meta().sizes)}) : b.x();
      int const d = b.attrs.ints[1].value == absent ? 0 : dim_of(b.x(), b.attrs.ints[1]);
      if (n.value < 0) fail("repeat_interleave: the number of repeats can't be negative: {}", n.value);
      Var const wide = call(expand, {call(unsqueeze, {x}, at_dim(d + 1))}, Attrs{}.with(with(x, d, {x.size(d), n})));
      b.out.push_back(call(clone, {shaped(wide, with(x, d, {x.size(d) * n}))}));
    }};
constinit const OpDef flip{.name = "flip", .kind = Kind::gather, .signature = "Tensor input, int[] dims",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      auto const mask = flip_mask(attrs, in[0]->rank());
      std::string text;
      for (std::size_t d = 0; d < mask.size(); ++d) text += letters(1, static_cast<int>(d)) + (mask[d] ? "!" : "");
      return text + "->" + text;
    }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first, .vjp = [](Vjp& v) { v.grad(0) = call(flip, {v.g()}, v.attrs); },
    .infer = [](Inference& call) {
      flip_mask(call.attrs, call.x().rank());
      call.out.push_back(contiguous_meta(call.x().dtype, call.x().device, call.x().sizes));
    }, .evaluate = evaluate_flip};
constinit const OpDef fliplr{.name = "fliplr", .kind = Kind::gather, .signature = "Tensor input", .terms = "a", .mono = "+", .copy = true,
    .decompose = [](Body& b) {
      if (b.x().rank() < 2) fail("fliplr: needs a rank of at least 2, not {}", to_string(b.x().meta()));
      b.out.push_back(flipped(b.x(), std::array{Dim(1)}));
    }};
constinit const OpDef flipud{.name = "flipud", .kind = Kind::gather, .signature = "Tensor input", .terms = "a", .mono = "+", .copy = true,
    .decompose = [](Body& b) {
      if (b.x().rank() < 1) fail("flipud: needs a rank of at least 1, not {}", to_string(b.x().meta()));
      b.out.push_back(flipped(b.x(), std::array{Dim(0)}));
    }};
constinit const OpDef rot90{.name = "rot90", .kind = Kind::gather, .signature = "Tensor input, int k=1, int[] dims=[0, 1]", .terms = "a", .mono = "+", .copy = true,
    .decompose = rot90_body};
constinit const OpDef roll{.name = "roll", .kind = Kind::gather, .signature = "Tensor input, int[] shifts, int[] dims=[]", .terms = "a", .mono = "+", .copy = true,
    .decompose = roll_body};
constinit const OpDef unfold{.name = "unfold", .kind = Kind::view, .signature = "Tensor input, int dimension, int size, int step",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      int const rank = in[0]->rank();
      auto from = letters(rank), to = from;
      if (rank > 0) {
        auto const d = static_cast<std::size_t>(base::wrap_dim("unfold", attrs.ints[0].value, rank));
        from.insert(d + 1, "!"), to.replace(d, 1, letters(1, rank) + "!");
      }
      return from + "->" + to + letters(1, rank + 1) + "!";
    }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first, .cost = 0, .vjp = unfold_vjp, .geometry = unfold_geometry};
constinit const OpDef pad{.name = "pad", .kind = Kind::gather, .signature = "Tensor input, int[] pad, constant|reflect|replicate|circular mode=constant, float value=0", .terms = "-", .mono = "+",
    .affine = true, .decompose = pad_body};
constinit const OpDef pixel_shuffle{.name = "pixel_shuffle", .kind = Kind::gather, .signature = "Tensor input, int upscale_factor", .terms = "a", .mono = "+", .copy = true,
    .decompose = pixels<false>};
constinit const OpDef pixel_unshuffle{.name = "pixel_unshuffle", .kind = Kind::gather, .signature = "Tensor input, int downscale_factor", .terms = "a", .mono = "+", .copy = true,
    .decompose = pixels<true>};
constinit const OpDef channel_shuffle{.name = "channel_shuffle", .kind = Kind::gather, .signature = "Tensor input, int groups", .terms = "a", .mono = "+", .copy = true,
    .decompose = [](Body& b) {
      Var const x = b.x();
      Dim const groups = b.attrs.ints[0];
      if (x.rank() < 3) fail("channel_shuffle: needs a rank of at least 3, not {}", to_string(x.meta()));
      if (groups.value < 1 || !same(x.size(1) % groups, 0)) fail("channel_shuffle: {} groups do not divide {} channels", groups.value, x.size(1).value);
      Var const apart = shaped(x, with(x, 1, {groups, x.size(1) / groups}));
      b.out.push_back(call(clone, {shaped(call(transpose, {apart}, Attrs{}.with(Dim(1)).with(Dim(2))), x.meta().sizes)}));
    }};
extern const OpDef slice_scatter, detach, copy_;
constinit const OpDef slice_scatter{.name = "slice_scatter", .kind = Kind::gather, .signature = "Tensor input, Tensor src, int dim=0, size start=0, size end=MAX, size step=1",
    .terms = "ab", .mono = "++", .copy = true, .decompose = slice_scatter_body};
constinit const OpDef detach{.name = "detach", .kind = Kind::view, .signature = "Tensor input",  // no gradient: what it gives is a constant to every loss
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) { return letters(in[0]->rank()) + "->" + letters(in[0]->rank()); }}, .terms = "a", .mono = "+",
    .copy = true, .types = Types::first, .cost = 0, .source = "{0}", .geometry = same_place};
constinit const OpDef copy_{.name = "copy_", .kind = Kind::host, .signature = "Tensor input, Tensor src",  // writes src into the memory of input, and is input
    .equation = {.build = copy_equation}, .terms = "-a", .mono = ".+", .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(1) = sum_to(v.g(), v.x(1).meta().sizes); }, .geometry = same_place, .infer = infer_copy, .evaluate = evaluate_copy};

namespace {
constexpr std::array rows{&movedim, &broadcast_to, &ravel, &unflatten, &hstack, &vstack, &dstack, &column_stack, &repeat, &tile, &repeat_interleave, &flip, &fliplr, &flipud, &rot90,
    &roll, &unfold, &pad, &pixel_shuffle, &pixel_unshuffle, &channel_shuffle,
    &slice_scatter, &detach, &copy_};
}
// clang-format on
std::span<OpDef const* const> layout_rows() { return rows; }

}  // namespace tenon::ir::ops
