// Reading and writing at places that several indices name, or a mask. A negative index counts from the end.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;

Meta unsized(DType dtype, base::Device device, Dims sizes);  // ops_selection.cpp

namespace {
bool is_mask(DType type) { return type == DType::boolean; }

// What a list of indices names in x: index k the dims from first[k] on (a mask one dim for each of its own).
struct Picks {
  std::vector<std::size_t> first;
  std::vector<bool> named;
  bool masks = false;
  std::size_t rank = 0;  ///< of the block: the indices, broadcast
  std::size_t at = 0;    ///< where the block stands among the dims that are not named: in place of adjacent ones, else in front
  std::vector<std::size_t> before, behind;
};
Picks picks_of(Meta const& x, std::span<Meta const* const> indices, std::span<Dim const> dims) {
  if (x.rank() == 0) fail("a 0-d tensor has no dim to index");
  if (indices.empty()) fail("needs at least one index");
  if (!dims.empty() && dims.size() != indices.size()) fail("{} dims for {} indices", dims.size(), indices.size());
  Picks picks;
  picks.named.resize(x.sizes.size(), false);
  std::size_t next = 0;
  for (std::size_t k = 0; k < indices.size(); ++k) {
    auto const& index = *indices[k];
    bool const mask = is_mask(index.dtype);
    if (!mask && index.dtype != DType::i64 && index.dtype != DType::i32) fail("the index must be i64, i32 or bool, not {}", base::info(index.dtype).name);
    if (mask && index.rank() == 0) fail("a mask needs a dim: {}", to_string(index));
    std::size_t const start = dims.empty() ? next : static_cast<std::size_t>(base::wrap_dim("dims", dims[k].value, x.rank()));
    std::size_t const count = mask ? index.sizes.size() : 1;
    if (start + count > x.sizes.size()) fail("too many indices for {}", to_string(x));
    for (std::size_t d = 0; d < count; ++d) {
      if (picks.named[start + d]) fail("dim {} is indexed twice", start + d);
      picks.named[start + d] = true;
      if (mask && !same(index.sizes[d], x.sizes[start + d]))
        fail("mask size {} and size {} differ at dim {} of {}", index.sizes[d].value, x.sizes[start + d].value, start + d, to_string(x));
    }
    picks.first.push_back(start);
    picks.masks = picks.masks || mask;
    picks.rank = std::max(picks.rank, mask ? 1 : index.sizes.size());
    next = start + count;
  }
  auto const begin = static_cast<std::size_t>(std::ranges::find(picks.named, true) - picks.named.begin());
  auto const end = picks.named.size() - static_cast<std::size_t>(std::ranges::find(picks.named | std::views::reverse, true) - picks.named.rbegin());
  bool const adjacent =
      std::all_of(picks.named.begin() + static_cast<std::ptrdiff_t>(begin), picks.named.begin() + static_cast<std::ptrdiff_t>(end), std::identity());
  for (std::size_t d = 0; d < picks.named.size(); ++d)
    if (!picks.named[d]) (adjacent && d < begin ? picks.before : picks.behind).push_back(d);
  picks.at = picks.before.size();
  return picks;
}
// The sizes of the result; a mask's count is absent.
Dims picked_sizes(Meta const& x, std::span<Meta const* const> indices, Picks const& picks) {
  Dims block;
  if (picks.masks) {
    block.resize(picks.rank, Dim(absent));
  } else {
    block = indices[0]->sizes;
    for (auto const* index : indices.subspan(1)) {
      Meta const so_far = contiguous_meta(DType::i64, {}, block), other = contiguous_meta(DType::i64, {}, index->sizes);
      block = infer(add, std::array<Meta const*, 2>{&so_far, &other}, std::array<Scalar, 2>{}, Attrs{}.with_num(1.0))[0].sizes;
    }
  }
  Dims sizes;
  for (auto d : picks.before) sizes.push_back(x.sizes[d]);
  for (auto size : block) sizes.push_back(size);
  for (auto d : picks.behind) sizes.push_back(x.sizes[d]);
  return sizes;
}

// The same on memory: offsets into x for every element of the block, in row-major order.
struct Places {
  Picks picks;
  base::Shape block;
  std::vector<std::int64_t> offsets;
  Places(std::string_view op, Strided const& x, std::span<Strided const> indices, std::span<Dim const> dims) {
    auto const about = [](Strided const& of) { return contiguous_meta(of.dtype, {}, Dims(std::vector<Dim>(of.sizes.begin(), of.sizes.end()))); };
    std::vector<Meta> metas;
    std::vector<Meta const*> pointers;
    for (auto const& index : indices) metas.push_back(about(index));
    for (auto const& meta : metas) pointers.push_back(&meta);
    picks = picks_of(about(x), pointers, dims);
    std::vector<base::Shape> shapes;
    std::vector<std::vector<std::int64_t>> lists;  // per index: offsets into x
    for (std::size_t k = 0; k < indices.size(); ++k) {
      auto const& index = indices[k];
      auto const first = picks.first[k];
      auto& list = lists.emplace_back();
      if (is_mask(index.dtype)) {
        base::Shape const along(x.strides.begin() + static_cast<std::ptrdiff_t>(first),
                                x.strides.begin() + static_cast<std::ptrdiff_t>(first + index.sizes.size()));
        walk<2>(index.sizes, {&index.strides, &along}, [&](auto const& at) {
          if (index.whole(at[0])) list.push_back(at[1]);
        });
        shapes.push_back({std::ssize(list)});
        continue;
      }
      walk<1>(index.sizes, {&index.strides}, [&](auto const& at) {
        auto const n = index.whole(at[0]), size = x.sizes[first];
        if (n < -size || n >= size) fail("{}: index {} is out of range for size {} of dim {}", op, n, size, first);
        list.push_back((n < 0 ? n + size : n) * x.strides[first]);
      });
      shapes.push_back(index.sizes);
    }
    block.resize(picks.rank, 1);
    for (auto const& shape : shapes)
      for (std::size_t d = 0; d < shape.size(); ++d) {
        auto& size = block[block.size() - shape.size() + d];
        if (shape[d] != 1 && size != 1 && shape[d] != size) fail("{}: indices of sizes {} and {} do not broadcast", op, size, shape[d]);
        if (shape[d] != 1) size = shape[d];
      }
    offsets.resize(static_cast<std::size_t>(base::numel(block)), 0);
    for (std::size_t k = 0; k < lists.size(); ++k) {
      auto const own = base::contiguous_strides(shapes[k]);
      base::Shape strides(block.size(), 0);
      for (std::size_t d = 0; d < own.size(); ++d)
        if (shapes[k][d] != 1) strides[block.size() - own.size() + d] = own[d];
      std::size_t to = 0;
      walk<1>(block, {&strides}, [&](auto const& at) { offsets[to++] += lists[k][static_cast<std::size_t>(at[0])]; });
    }
  }
  base::Shape sizes(Strided const& x) const {
    base::Shape list;
    for (auto d : picks.before) list.push_back(x.sizes[d]);
    list.insert(list.end(), block.begin(), block.end());
    for (auto d : picks.behind) list.push_back(x.sizes[d]);
    return list;
  }
  /// f(offset in x, offset in other) for every element of the result, in row-major order; `strides` are the other's over the result's dims.
  template <class F>
  void each(Strided const& x, base::Shape const& strides, F f) const {
    auto const part = [&](std::vector<std::size_t> const& dims, std::size_t from) {
      std::array<base::Shape, 3> parts;
      for (std::size_t k = 0; k < dims.size(); ++k)
        parts[0].push_back(x.sizes[dims[k]]), parts[1].push_back(x.strides[dims[k]]), parts[2].push_back(strides[from + k]);
      return parts;
    };
    auto const outer = part(picks.before, 0), inner = part(picks.behind, picks.before.size() + block.size());
    base::Shape const across(strides.begin() + static_cast<std::ptrdiff_t>(picks.at), strides.begin() + static_cast<std::ptrdiff_t>(picks.at + block.size()));
    walk<2>(outer[0], {&outer[1], &outer[2]}, [&](auto const& a) {
      std::size_t k = 0;
      walk<1>(block, {&across}, [&](auto const& b) {
        std::int64_t const from = offsets[k++];
        walk<2>(inner[0], {&inner[1], &inner[2]}, [&](auto const& c) { f(a[0] + from + c[0], a[1] + b[0] + c[1]); });
      });
    });
  }
};
std::span<Dim const> dims_of(Attrs const& attrs) {
  AttrReader reader{attrs};
  return reader.list();
}
bool accumulates(Attrs const& attrs) { return attrs.ints[attrs.ints.size() - 1].value != 0; }
void infer_index(Inference& call) {
  auto const picks = picks_of(call.x(), call.in.subspan(1), dims_of(call.attrs));
  Dims sizes = picked_sizes(call.x(), call.in.subspan(1), picks);
  call.out.push_back(picks.masks ? unsized(call.x().dtype, call.x().device, std::move(sizes))
                                 : contiguous_meta(call.x().dtype, call.x().device, std::move(sizes)));
}
void evaluate_index(Kernel const& kernel) {
  auto const &x = kernel.in[0], &y = kernel.out[0];
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  Places(kernel.op.name, x, kernel.in.subspan(1), dims_of(kernel.attrs)).each(x, y.strides, [&](auto from, auto to) {
    std::memcpy(y.at(to), x.at(from), bytes);
  });
}
void infer_index_put(Inference& call) {
  auto const &x = call.x(0), &values = call.x(1);
  auto const indices = call.in.subspan(2);
  if (x.dtype != values.dtype) fail("dtypes differ: {} and {}", to_string(x), to_string(values));
  Dims const sizes = picked_sizes(x, indices, picks_of(x, indices, dims_of(call.attrs)));
  bool fits = values.rank() <= static_cast<int>(sizes.size());
  for (std::size_t d = 0; fits && d < values.sizes.size(); ++d) {
    auto const size = sizes[sizes.size() - values.sizes.size() + d];
    fits = size.value == absent || same(values.sizes[d], 1) || same(values.sizes[d], size);
  }
  if (!fits) fail("values {} do not broadcast to the {} dims that are picked of {}", to_string(values), sizes.size(), to_string(x));
  call.out.push_back(contiguous_meta(x.dtype, x.device, x.sizes));
}
void evaluate_index_put(Kernel const& kernel) {
  auto const &x = kernel.in[0], &values = kernel.in[1], &y = kernel.out[0];
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  walk<2>(x.sizes, {&x.strides, &y.strides}, [&](auto const& at) { std::memcpy(y.at(at[1]), x.at(at[0]), bytes); });
  Places const places(kernel.op.name, y, kernel.in.subspan(2), dims_of(kernel.attrs));
  auto const sizes = places.sizes(y);
  base::Shape strides(sizes.size(), 0);
  for (std::size_t d = 0; d < values.sizes.size(); ++d) {
    std::size_t const to = sizes.size() - values.sizes.size() + d;
    if (values.sizes[d] != 1 && values.sizes[d] != sizes[to]) fail("index_put: values of size {} for {} places at dim {}", values.sizes[d], sizes[to], to);
    if (values.sizes[d] != 1) strides[to] = values.strides[d];
  }
  bool const adds = accumulates(kernel.attrs), real = base::is_real(y.dtype);
  places.each(y, strides, [&](auto to, auto from) {
    if (!adds)
      std::memcpy(y.at(to), values.at(from), bytes);
    else if (real)
      y.set(to, y.real(to) + values.real(from));
    else
      y.set_whole(to, static_cast<std::int64_t>(static_cast<std::uint64_t>(y.whole(to)) + static_cast<std::uint64_t>(values.whole(from))));
  });
}
Var with_list(OpDef const& op, std::initializer_list<Var> fixed, std::span<Var const> list, Attrs attrs) {
  std::vector<Input> inputs;
  for (auto const& x : fixed) inputs.push_back(x.input);
  for (auto const& x : list) inputs.push_back(x.input);
  return {*fixed.begin()->emit, fixed.begin()->emit->op(op, inputs, std::move(attrs))};
}
// The gradient of the values: what arrives at the places. Under one mask whose count they do not follow it is a masked sum, of a known size.
Var values_grad(Vjp& v) {
  auto const indices = v.in.subspan(2);
  auto const dims = dims_of(v.attrs);
  Var const g = v.g(), mask = indices[0];
  Dims const sizes = v.x(1).meta().sizes;
  if (indices.size() == 1 && is_mask(mask.meta().dtype)) {
    std::array<Meta const*, 1> const about{&mask.meta()};
    auto const picks = picks_of(g.meta(), about, dims);
    std::size_t const block = picks.behind.size() + 1;  // counted from the last dim
    if (sizes.size() < block || same(sizes[sizes.size() - block], 1)) {
      Dims line, named;
      for (std::size_t d = 0; d < picks.named.size(); ++d) {
        line.push_back(picks.named[d] ? g.size(static_cast<int>(d)) : Dim(1));
        if (picks.named[d]) named.push_back(d);
      }
      Var const total = call(sum, {choose(shaped(mask, line), g, 0.0)}, summed(named, false));
      return sum_to(call(unsqueeze, {total}, at_dim(static_cast<int>(picks.at))), sizes);
    }
  }
  return sum_to(with_list(index_at, {g}, indices, Attrs{}.with(dims)), sizes);
}
// One index of whole numbers selects in its dim, which may be cut then; what several or a mask name stays whole. Of a put the block stays whole too.
std::string picks_equation(Attrs const& attrs, Meta const& x, Meta const* values, std::span<Meta const* const> indices) {
  auto const picks = picks_of(x, indices, dims_of(attrs));
  bool const selects = !values && !picks.masks && indices.size() == 1;
  auto const all = letters(x.rank()), block = letters(static_cast<int>(picks.rank), x.rank());
  Dims const sizes = picked_sizes(x, indices, picks);
  std::string wide, lists;
  for (std::size_t d = 0; d < all.size(); ++d) wide += std::string(1, all[d]) + (!picks.named[d] ? "" : selects ? "?" : "!");
  for (std::size_t k = 0; k < indices.size(); ++k) {
    lists += ',';
    bool const mask = is_mask(indices[k]->dtype);
    for (std::size_t d = 0; d < indices[k]->sizes.size(); ++d) {
      std::size_t const to = picks.rank - indices[k]->sizes.size() + d;
      if (mask)
        lists += std::string(1, all[picks.first[k] + d]) + '!';
      else if (picks.masks)
        lists += letters(1, x.rank() + static_cast<int>(picks.rank + lists.size())) + '!';  // broadcast against a count
      else if (indices[k]->sizes[d].value == 1 && sizes[picks.at + to].value != 1)
        lists += '1';
      else
        lists += std::string(1, block[to]) + (values ? "!" : "");
    }
  }
  std::vector<std::string> narrow;
  for (auto d : picks.before) narrow.emplace_back(1, all[d]);
  for (char letter : block) narrow.push_back(std::string(1, letter) + (values || picks.masks ? "!" : ""));
  for (auto d : picks.behind) narrow.emplace_back(1, all[d]);
  std::string result;
  if (!values) {
    for (auto const& name : narrow) result += name;
    return wide + lists + "->" + result;
  }
  for (std::size_t d = 0; d < values->sizes.size(); ++d) {
    std::size_t const to = narrow.size() - values->sizes.size() + d;
    result += values->sizes[d].value == 1 && sizes[to].value != 1 ? "1" : narrow[to];
  }
  return wide + "," + result + lists + "->" + wide;
}

// The same as rows: the named dims of x in front and flat, the places counted along them. Of masks only elements tell.
struct Rows {
  Var rows, at;  ///< [named, before…, behind…] and [block]
  Dims block, unnamed;
  std::vector<std::size_t> order;
  Rows(Var x, std::span<Var const> indices, Picks const& picks) {
    if (picks.masks) fail("a mask has no body: the places depend on elements");
    order = picks.first;
    order.insert(order.end(), picks.before.begin(), picks.before.end());
    order.insert(order.end(), picks.behind.begin(), picks.behind.end());
    Dims dims, flat{Dim(1)};
    for (std::size_t k = 0; k < order.size(); ++k) {
      dims.push_back(order[k]);
      Dim const size = x.size(static_cast<int>(order[k]));
      if (k < indices.size())
        flat[0] = flat[0] * size;
      else
        flat.push_back(size), unnamed.push_back(size);
    }
    rows = shaped(call(permute, {x}, Attrs{}.with(dims)), flat);
    Dim step = 1;
    for (std::size_t k = indices.size(); k-- > 0;) {
      Dim const size = x.size(static_cast<int>(picks.first[k]));
      Var const index = cast(indices[k], DType::i64), place = choose(call(lt, {index, Var(0)}), index + Var(size), index) * Var(step);
      at = at ? at + place : place;
      step = step * size;
    }
    block = at.meta().sizes;
    at = shaped(at, std::array{product(block)});
  }
};
Picks picks_in(Var x, std::span<Var const> indices, Attrs const& attrs) {
  std::vector<Meta const*> about;
  for (auto const& index : indices) about.push_back(&index.meta());
  return picks_of(x.meta(), about, dims_of(attrs));
}
Dims joined(Dims first, Dims const& second) {
  for (auto size : second) first.push_back(size);
  return first;
}
// Result dims (before, block, behind) in the order (block, before, behind).
Dims block_first(Picks const& picks) {
  Dims dims;
  std::size_t const before = picks.before.size();
  for (std::size_t d = 0; d < picks.rank; ++d) dims.push_back(before + d);
  for (std::size_t d = 0; d < before; ++d) dims.push_back(d);
  for (std::size_t d = 0; d < picks.behind.size(); ++d) dims.push_back(before + picks.rank + d);
  return dims;
}
Var put_back(Var x, std::span<Dim const> order) {  // undoes a permutation
  Dims inverse;
  inverse.resize(order.size());
  for (std::size_t d = 0; d < order.size(); ++d) inverse[static_cast<std::size_t>(order[d].value)] = d;
  return call(permute, {x}, Attrs{}.with(inverse));
}
void index_body(Body& b) {
  auto const indices = b.in.subspan(1);
  auto const picks = picks_in(b.x(), indices, b.attrs);
  Rows const rows(b.x(), indices, picks);
  Var const picked = shaped(call(index_select, {rows.rows, rows.at}, at_dim(0)), joined(rows.block, rows.unnamed));
  b.out.push_back(put_back(picked, block_first(picks)));
}
void index_put_body(Body& b) {
  Var const x = b.x();
  auto const indices = b.in.subspan(2);
  auto const picks = picks_in(x, indices, b.attrs);
  Rows const rows(x, indices, picks);
  Dims sizes, order;
  for (auto d : picks.before) sizes.push_back(x.size(static_cast<int>(d)));
  sizes = joined(sizes, rows.block);
  for (auto d : picks.behind) sizes.push_back(x.size(static_cast<int>(d)));
  Var const values = call(permute, {call(expand, {b.x(1)}, Attrs{}.with(sizes))}, Attrs{}.with(block_first(picks)));
  Var const source = shaped(values, joined(rows.at.meta().sizes, rows.unnamed));
  Dims line{rows.at.size(0)};
  while (line.size() < source.meta().sizes.size()) line.push_back(1);
  Var const written = accumulates(b.attrs)
                          ? call(index_add, {rows.rows, rows.at, source}, at_dim(0).with_num(1.0))
                          : call(scatter, {rows.rows, call(expand, {shaped(rows.at, line)}, Attrs{}.with(source.meta().sizes)), source}, at_dim(0));
  Dims wide;
  for (auto d : rows.order) wide.push_back(x.size(static_cast<int>(d))), order.push_back(d);
  b.out.push_back(put_back(shaped(written, wide), order));
}
}  // namespace

// clang-format off
constinit const OpDef index_at{.name = "index", .kind = Kind::gather, .signature = "Tensor input, Tensor[] indices, int[] dims=[]",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return picks_equation(attrs, *in[0], nullptr, in.subspan(1)); }},
    .terms = "a-*", .mono = "+.*", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) {
      Attrs attrs = v.attrs;
      v.grad(0) = with_list(index_put, {zeros_like(v.x()), v.g()}, v.in.subspan(1), attrs.with(Dim(true)));
    }, .saves = 0xfffe, .infer = infer_index, .evaluate = evaluate_index,
    .measured = [](Kernel const& kernel, std::span<Dims> sizes) {
      auto const measured = Places(kernel.op.name, kernel.in[0], kernel.in.subspan(1), dims_of(kernel.attrs)).sizes(kernel.in[0]);
      sizes[0] = Dims(std::vector<Dim>(measured.begin(), measured.end()));
    },
    .decompose = index_body};
constinit const OpDef index_put{.name = "index_put", .kind = Kind::gather, .signature = "Tensor input, Tensor values, Tensor[] indices, int[] dims=[], bool accumulate=False",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return picks_equation(attrs, *in[0], in[1], in.subspan(2)); }},
    .terms = "ab-*", .mono = "++.*", .types = Types::first,
    .vjp = [](Vjp& v) {  // as in PyTorch, of indices that name no place twice unless they accumulate
      bool const adds = accumulates(v.attrs);
      if (v.wants(0)) v.grad(0) = adds ? v.g() : with_list(index_put, {v.g(), lifted(Var(0.0), v.g())}, v.in.subspan(2), v.attrs);
      if (v.wants(1)) v.grad(1) = values_grad(v);
    }, .saves = 0xfffc, .infer = infer_index_put, .evaluate = evaluate_index_put, .decompose = index_put_body};

namespace {
constexpr std::array rows{&index_at, &index_put};
}
// clang-format on
std::span<OpDef const* const> place_rows() { return rows; }

}  // namespace tenon::ir::ops
