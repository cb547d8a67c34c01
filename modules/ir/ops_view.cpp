// Rows whose result shares its operand's memory: each is a geometry. slice_grad, their common gradient, writes into zeros.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
std::size_t place(std::string_view op, Dim dim, int rank) { return static_cast<std::size_t>(base::wrap_dim(op, dim.value, rank)); }
Dims picked(Dims const& from, std::span<std::size_t const> order) {
  Dims to;
  for (auto d : order) to.push_back(from[d]);
  return to;
}

// The sizes that reshape is asked for, -1 replaced by what is left.
Dims target_sizes(std::span<Dim const> wish, Dims const& from) {
  Dims sizes(wish);
  Dim const total = product(from);
  Dim known = 1;
  std::optional<std::size_t> open;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (!less(sizes[d], 0)) {
      known = known * sizes[d];
    } else if (same(sizes[d], -1)) {
      if (open) fail("reshape: only one size can be -1, not those at {} and {}", *open, d);
      open = d;
    } else {
      fail("reshape: size {} at {} is negative", sizes[d].value, d);
    }
  }
  if (open) {
    if (same(known, 0)) fail("reshape: the size at {} can't be told for 0 elements", *open);
    if (!same(total % known, 0)) fail("reshape: {} elements do not fill a multiple of {}", total.value, known.value);
    sizes[*open] = total / known;
  } else if (!same(total, known)) {
    fail("reshape: {} elements do not fit sizes {} of {} elements", total.value, base::to_string(values(sizes)), known.value);
  }
  return sizes;
}

// Strides of the same elements in other sizes, if there are some: old dims merge into runs of even spacing, new dims cut the runs up from the
// inside. Those of dims of size 1 are left at 0.
std::optional<Dims> regrouped(std::span<Dim const> from, std::span<Dim const> from_strides, std::span<Dim const> to) {
  struct Run {
    Dim count, stride;
  };
  std::vector<Run> runs;  // innermost first
  for (std::size_t d = from.size(); d-- > 0;) {
    if (same(from[d], 1)) continue;
    if (!runs.empty() && same(from_strides[d], runs.back().count * runs.back().stride))
      runs.back().count = runs.back().count * from[d];
    else
      runs.push_back({from[d], from_strides[d]});
  }
  Dims strides;
  strides.resize(to.size());
  std::size_t run = 0;
  Dim left = runs.empty() ? Dim(1) : runs[0].count, stride = runs.empty() ? Dim(1) : runs[0].stride;
  for (std::size_t d = to.size(); d-- > 0;) {
    if (same(to[d], 1)) continue;
    if (same(left, 1)) {
      if (++run >= runs.size()) return std::nullopt;
      left = runs[run].count, stride = runs[run].stride;
    }
    strides[d] = stride;
    if (left != to[d] && !same(left % to[d], 0)) return std::nullopt;
    left = left == to[d] ? Dim(1) : left / to[d], stride = stride * to[d];
  }
  return strides;
}
bool reshape_geometry(View& view) {
  AttrReader reader{view.attrs};
  Dims const from = view.sizes, before = view.strides, sizes = target_sizes(reader.list(), from);
  Meta const plain = contiguous_meta(view.dtype, {}, sizes);
  view.sizes = sizes;
  if (std::ranges::any_of(from, [](Dim size) { return same(size, 0); })) {
    view.strides = plain.strides;
    return true;
  }
  // Dims that stay, first and last, need no arithmetic: only what lies between is regrouped.
  std::size_t const most = std::min(from.size(), sizes.size());
  std::size_t head = 0, tail = 0;
  while (head < most && from[head] == sizes[head]) ++head;
  while (tail < most - head && from[from.size() - 1 - tail] == sizes[sizes.size() - 1 - tail]) ++tail;
  auto const between = [&](Dims const& dims) { return std::span<Dim const>(dims).subspan(head, dims.size() - head - tail); };
  auto const middle = regrouped(between(from), between(before), between(sizes));
  if (!middle) return false;
  Dims strides(std::span<Dim const>(before).first(head));
  for (Dim const stride : *middle) strides.push_back(stride);
  for (Dim const stride : std::span<Dim const>(before).last(tail)) strides.push_back(stride);
  for (std::size_t d = sizes.size(); d-- > 0;)
    if (same(sizes[d], 1)) strides[d] = d + 1 < sizes.size() ? strides[d + 1] * sizes[d + 1] : Dim(1);
  view.strides = strides;
  return true;
}
Dims flattened(Attrs const& attrs, Dims const& from) {
  int const rank = std::max(static_cast<int>(from.size()), 1);
  auto const first = place("flatten", attrs.ints[0], rank), last = place("flatten", attrs.ints[1], rank);
  if (first > last) fail("flatten: start_dim {} lies behind end_dim {}", first, last);
  if (from.empty()) return Dims{Dim(1)};
  Dims to(std::span<Dim const>(from).first(first));
  to.push_back(product(std::span<Dim const>(from).subspan(first, last - first + 1)));
  for (std::size_t d = last + 1; d < from.size(); ++d) to.push_back(from[d]);
  return to;
}
// The equation of the same elements in other sizes: the smallest groups of dims with equal products on both sides.
std::string regroup(Dims const& from_sizes, Dims const& to_sizes) {
  auto const from = values(from_sizes), to = values(to_sizes);
  std::string left, right;
  int next = 0;
  std::size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    std::size_t const a = i, b = j;
    std::int64_t product_from = i < from.size() ? from[i++] : 1, product_to = j < to.size() ? to[j++] : 1;
    while (product_from != product_to)
      if (product_from < product_to && i < from.size())
        product_from *= from[i++];
      else if (j < to.size())
        product_to *= to[j++];
      else
        break;
    auto const group = [](std::string const& names) { return names.size() == 1 ? names : "(" + names + ")"; };
    auto const n = static_cast<int>(i - a), m = static_cast<int>(j - b);
    if (n == 1 && m == 1) {
      left += letters(1, next), right += letters(1, next), ++next;
    } else if (n == 0 || m == 0) {
      left += std::string(static_cast<std::size_t>(n), '1'), right += std::string(static_cast<std::size_t>(m), '1');
    } else if (n == 1 || m == 1) {
      auto const names = letters(std::max(n, m), next);
      left += n == 1 ? group(names) : names, right += m == 1 ? group(names) : names, next += std::max(n, m);
    } else {  // sizes that do not nest stay whole
      for (char c : letters(n, next)) left += {c, '!'};
      for (char c : letters(m, next + n)) right += {c, '!'};
      next += n + m;
    }
  }
  return left + "->" + right;
}
std::string reshape_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  AttrReader reader{attrs};
  return regroup(in[0]->sizes, target_sizes(reader.list(), in[0]->sizes));
}

std::vector<std::size_t> permutation(Attrs const& attrs, int rank) {
  AttrReader reader{attrs};
  auto const dims = reader.list();
  if (std::cmp_not_equal(dims.size(), rank)) fail("permute: {} dims named for rank {}", dims.size(), rank);
  std::vector<std::size_t> order;
  for (auto dim : dims) {
    order.push_back(place("permute", dim, rank));
    if (std::ranges::count(order, order.back()) > 1) fail("permute: dim {} is named twice", order.back());
  }
  return order;
}
std::vector<std::size_t> swapped(Attrs const& attrs, int rank) {
  std::vector<std::size_t> order(static_cast<std::size_t>(rank));
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (rank > 0) std::swap(order[place("transpose", attrs.ints[0], rank)], order[place("transpose", attrs.ints[1], rank)]);
  return order;
}
using Order = std::vector<std::size_t> (*)(Attrs const&, int);
template <Order order_of>
bool reorder(View& view) {
  auto const order = order_of(view.attrs, static_cast<int>(view.sizes.size()));
  view.sizes = picked(view.sizes, order);
  view.strides = picked(view.strides, order);
  return true;
}
template <Order order_of>
std::string reorder_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  auto const from = letters(in[0]->rank());
  std::string to;
  for (auto d : order_of(attrs, in[0]->rank())) to += from[d];
  return from + "->" + to;
}

bool expand_geometry(View& view) {
  AttrReader reader{view.attrs};
  auto const wish = reader.list();
  if (wish.size() < view.sizes.size()) fail("expand: {} sizes for rank {}", wish.size(), view.sizes.size());
  std::size_t const lead = wish.size() - view.sizes.size();
  Dims sizes, strides;
  for (std::size_t d = 0; d < wish.size(); ++d) {
    bool const fresh = d < lead;
    Dim const size = fresh ? Dim(1) : view.sizes[d - lead];
    bool const negative = less(wish[d], 0);
    if (negative && !fresh && same(wish[d], -1)) {
      sizes.push_back(size), strides.push_back(view.strides[d - lead]);
    } else if (negative) {
      fail("expand: size {} of new dim {} is negative", wish[d].value, d);
    } else if (!fresh && same(size, wish[d])) {
      sizes.push_back(size), strides.push_back(view.strides[d - lead]);
    } else if (same(size, 1)) {
      sizes.push_back(wish[d]), strides.push_back(0);
    } else {
      fail("expand: dim {} of size {} can't become {}", d - lead, size.value, wish[d].value);
    }
  }
  view.sizes = sizes, view.strides = strides;
  return true;
}
std::string expand_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  AttrReader reader{attrs};
  auto const wish = reader.list();
  std::size_t const lead = wish.size() - in[0]->sizes.size();
  auto const all = letters(static_cast<int>(wish.size()));
  std::string from;
  for (std::size_t d = lead; d < wish.size(); ++d) from += in[0]->sizes[d - lead].value == 1 && wish[d].value != 1 && wish[d].value != -1 ? '1' : all[d];
  return from + "->" + all;
}

bool unsqueeze_geometry(View& view) {
  auto const d = place("unsqueeze", view.attrs.ints[0], static_cast<int>(view.sizes.size()) + 1);
  Dims sizes, strides;
  for (std::size_t i = 0; i <= view.sizes.size(); ++i) {
    if (i == d) sizes.push_back(1), strides.push_back(i < view.sizes.size() ? view.sizes[i] * view.strides[i] : Dim(1));
    if (i < view.sizes.size()) sizes.push_back(view.sizes[i]), strides.push_back(view.strides[i]);
  }
  view.sizes = sizes, view.strides = strides;
  return true;
}
// Dims of size 1 that squeeze drops: those named, or all.
std::vector<bool> squeezed(Attrs const& attrs, Dims const& sizes) {
  AttrReader reader{attrs};
  auto mask = dim_mask("squeeze", reader.list(), static_cast<int>(sizes.size()));
  for (std::size_t d = 0; d < sizes.size(); ++d) mask[d] = mask[d] && same(sizes[d], 1);
  return mask;
}
bool squeeze_geometry(View& view) {
  auto const mask = squeezed(view.attrs, view.sizes);
  Dims sizes, strides;
  for (std::size_t d = 0; d < view.sizes.size(); ++d)
    if (!mask[d]) sizes.push_back(view.sizes[d]), strides.push_back(view.strides[d]);
  view.sizes = sizes, view.strides = strides;
  return true;
}
std::string squeeze_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  AttrReader reader{attrs};
  auto const named = dim_mask("squeeze", reader.list(), in[0]->rank()), dropped = squeezed(attrs, in[0]->sizes);
  std::string from, to;
  for (std::size_t d = 0; d < named.size(); ++d) {  // a named dim that stays must stay whole: a part of size 1 would be dropped
    auto const name = letters(1, static_cast<int>(d)) + (named[d] ? "!" : "");
    from += dropped[d] ? "1" : name;
    if (!dropped[d]) to += name;
  }
  return from + "->" + to;
}

// start and end as PyTorch clamps them: negative ones count from the end.
Dim clamped(Dim at, Dim size) {
  if (at.value == std::numeric_limits<std::int64_t>::max()) return size;
  if (less(at, 0)) at = at + size;
  if (less(at, 0)) return 0;
  return less(size, at) ? size : at;
}
bool slice_geometry(View& view) {
  AttrReader reader{view.attrs};
  auto const d = place("slice", reader.number(), static_cast<int>(view.sizes.size()));
  Dim const size = view.sizes[d], start = clamped(reader.number(), size), end = clamped(reader.number(), size), step = reader.number();
  if (less(step, 1)) fail("slice: step must be at least 1, not {}", step.value);
  view.offset = view.offset + start * view.strides[d];
  view.sizes[d] = less(start, end) ? (step == Dim(1) ? end - start : (end - start + step - 1) / step) : Dim(0);
  view.strides[d] = view.strides[d] * step;
  return true;
}
bool select_geometry(View& view) {
  AttrReader reader{view.attrs};
  int const rank = static_cast<int>(view.sizes.size());
  if (rank == 0) fail("select: a 0-d tensor has no dim to select from");
  auto const d = place("select", reader.number(), rank);
  Dim index = reader.number();
  if (!less_equal(Dim(0) - view.sizes[d], index) || !less(index, view.sizes[d]))
    fail("select: index {} is out of range for dim {} of size {}", index.value, d, view.sizes[d].value);
  if (less(index, 0)) index = index + view.sizes[d];
  view.offset = view.offset + index * view.strides[d];
  Dims sizes, strides;
  for (std::size_t i = 0; i < view.sizes.size(); ++i)
    if (i != d) sizes.push_back(view.sizes[i]), strides.push_back(view.strides[i]);
  view.sizes = sizes, view.strides = strides;
  return true;
}
std::string marked(Attrs const& attrs, std::span<Meta const* const> in, bool drops) {
  auto from = letters(in[0]->rank()), to = from;
  auto const d = place("equation", attrs.ints[0], in[0]->rank());
  to.replace(d, 1, drops ? "" : letters(1, in[0]->rank()) + "!");
  from.insert(d + 1, "!");
  return from + "->" + to;
}

// slice_grad(g, sizes, dim, start, end, step): zeros of `sizes` with g written where slice would read.
Attrs slice_attrs(Attrs const& attrs) {  // without the sizes in front
  Attrs rest;
  AttrReader reader{attrs};
  for (reader.list(); reader.at < attrs.ints.size();) rest.with(reader.number());
  return rest;
}
void evaluate_slice_grad(Kernel const& kernel) {
  auto const& y = kernel.out[0];
  Attrs const window = slice_attrs(kernel.attrs);
  View view{window, y.dtype, {}, {}, 0};
  for (auto size : y.sizes) view.sizes.push_back(size);
  for (auto stride : y.strides) view.strides.push_back(stride);
  slice_geometry(view);
  auto const sizes = values(view.sizes), strides = values(view.strides);
  auto const bytes = static_cast<std::size_t>(base::bytes_of(y.dtype));
  std::memset(y.data, 0, static_cast<std::size_t>(base::numel(y.sizes)) * bytes);
  walk<2>(sizes, {&kernel.in[0].strides, &strides}, [&](auto const& at) { std::memcpy(y.at(view.offset.value + at[1]), kernel.in[0].at(at[0]), bytes); });
}
Attrs slice_grad_attrs(Dims const& sizes, Dim dim, Dim start, Dim end, Dim step) { return Attrs{}.with(sizes).with(dim).with(start).with(end).with(step); }
void to_parent_sizes(Vjp& v) { v.grad(0) = call(reshape, {v.g()}, Attrs{}.with(v.x().meta().sizes)); }
}  // namespace

// clang-format off
constinit const OpDef reshape{.name = "reshape", .kind = Kind::view, .signature = "Tensor input, size[] shape", .equation = {.build = reshape_equation}, .terms = "a",
    .mono = "+", .copy = true, .types = Types::first, .cost = 0, .source = "{0}", .vjp = to_parent_sizes, .geometry = reshape_geometry};
constinit const OpDef permute{.name = "permute", .kind = Kind::view, .signature = "Tensor input, int[] dims", .equation = {.build = reorder_equation<permutation>}, .terms = "a",
    .mono = "+", .copy = true, .types = Types::first, .cost = 0, .source = "{0}",
    .vjp = [](Vjp& v) {
      Dims inverse;
      auto const order = permutation(v.attrs, v.x().rank());
      inverse.resize(order.size());
      for (std::size_t d = 0; d < order.size(); ++d) inverse[order[d]] = d;
      v.grad(0) = call(permute, {v.g()}, Attrs{}.with(inverse));
    }, .geometry = reorder<permutation>};
constinit const OpDef transpose{.name = "transpose", .kind = Kind::view, .signature = "Tensor input, int dim0, int dim1", .equation = {.build = reorder_equation<swapped>},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first, .cost = 0, .source = "{0}", .vjp = [](Vjp& v) { v.grad(0) = call(transpose, {v.g()}, v.attrs); },
    .geometry = reorder<swapped>};
constinit const OpDef expand{.name = "expand", .kind = Kind::view, .signature = "Tensor input, size[] size", .equation = {.build = expand_equation}, .terms = "a", .mono = "+",
    .copy = true, .types = Types::first, .cost = 0, .source = "{0}", .vjp = [](Vjp& v) { v.grad(0) = sum_to(v.g(), v.x().meta().sizes); }, .geometry = expand_geometry};
constinit const OpDef unsqueeze{.name = "unsqueeze", .kind = Kind::view, .signature = "Tensor input, int dim",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      auto const all = letters(in[0]->rank());
      auto to = all;
      to.insert(place("equation", attrs.ints[0], in[0]->rank() + 1), "1");
      return all + "->" + to;
    }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first, .cost = 0, .source = "{0}", .vjp = to_parent_sizes, .geometry = unsqueeze_geometry};
constinit const OpDef squeeze{.name = "squeeze", .kind = Kind::view, .signature = "Tensor input, int[] dim=[]", .equation = {.build = squeeze_equation}, .terms = "a",
    .mono = "+", .copy = true, .types = Types::first, .cost = 0, .source = "{0}", .vjp = to_parent_sizes, .geometry = squeeze_geometry};
constinit const OpDef slice{.name = "slice", .kind = Kind::view, .signature = "Tensor input, int dim=0, size start=0, size end=MAX, size step=1",
    .equation = {.build = [](Attrs const& a, std::span<Meta const* const> in) { return marked(a, in, false); }}, .terms = "a", .mono = "+", .copy = true,
    .types = Types::first, .cost = 0, .source = "{0}",
    .vjp = [](Vjp& v) { v.grad(0) = call(slice_grad, {v.g()}, slice_grad_attrs(v.x().meta().sizes, v.attrs.ints[0], v.attrs.ints[1], v.attrs.ints[2], v.attrs.ints[3])); },
    .geometry = slice_geometry};
constinit const OpDef select{.name = "select", .kind = Kind::view, .signature = "Tensor input, int dim, size index",
    .equation = {.build = [](Attrs const& a, std::span<Meta const* const> in) { return marked(a, in, true); }}, .terms = "a", .mono = "+", .copy = true,
    .types = Types::first, .cost = 0, .source = "{0}",
    .vjp = [](Vjp& v) {
      Dim const dim = place("select", v.attrs.ints[0], v.x().rank()), size = v.x().size(static_cast<int>(dim.value));
      Dim const index = less(v.attrs.ints[1], 0) ? v.attrs.ints[1] + size : v.attrs.ints[1];
      Var const g = call(unsqueeze, {v.g()}, Attrs{}.with(dim));
      v.grad(0) = call(slice_grad, {g}, slice_grad_attrs(v.x().meta().sizes, dim, index, index + 1, 1));
    }, .geometry = select_geometry};
constinit const OpDef slice_grad{.name = "slice_grad", .kind = Kind::gather, .signature = "Tensor grad, size[] sizes, int dim, size start, size end, size step",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      AttrReader reader{attrs};
      reader.list();
      return marked(Attrs{}.with(reader.number()), in, false);
    }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) {
      v.grad(0) = call(slice, {v.g()}, slice_attrs(v.attrs));
    },
    .infer = [](Inference& call) {
      AttrReader reader{call.attrs};
      auto const& g = call.x();
      Dims const sizes(reader.list());
      Meta const parent = contiguous_meta(g.dtype, g.device, sizes);
      Attrs const window = slice_attrs(call.attrs);
      View view{window, g.dtype, parent.sizes, parent.strides, 0};
      slice_geometry(view);
      bool fits = g.sizes.size() == sizes.size();
      for (std::size_t d = 0; fits && d < sizes.size(); ++d) fits = same(g.sizes[d], view.sizes[d]);
      if (!fits) fail("slice_grad: a gradient {} does not fit a slice of sizes {}", to_string(g), base::to_string(values(view.sizes)));
      call.out.push_back(parent);
    }, .evaluate = evaluate_slice_grad};
constinit const OpDef flatten{.name = "flatten", .kind = Kind::view, .signature = "Tensor input, int start_dim=0, int end_dim=-1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return regroup(in[0]->sizes, flattened(attrs, in[0]->sizes)); }}, .terms = "a", .mono = "+",
    .copy = true, .types = Types::first, .cost = 0, .source = "{0}",
    .decompose = [](Body& b) { b.out.push_back(call(reshape, {b.x()}, Attrs{}.with(flattened(b.attrs, b.x().meta().sizes)))); }};

namespace {
constexpr std::array rows{&reshape, &permute, &transpose, &expand, &unsqueeze, &squeeze, &slice, &select, &slice_grad, &flatten};
}
// clang-format on
std::span<OpDef const* const> view_rows() { return rows; }

}  // namespace tenon::ir::ops
