// Rows that pick or place elements by an index operand, concatenation and triangles.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
std::size_t axis_of(Kernel const& kernel, std::size_t rank) {
  return rank == 0 ? 0 : static_cast<std::size_t>(base::wrap_dim(kernel.op.name, kernel.attrs.ints[0].value, static_cast<int>(rank)));
}
std::size_t axis_of(Inference const& call, Meta const& x) {
  return x.rank() == 0 ? 0 : static_cast<std::size_t>(base::wrap_dim(call.op.name, call.attrs.ints[0].value, x.rank()));
}
void need_index(Inference const& call, Meta const& index) {
  bool const whole = index.dtype == DType::i64 || index.dtype == DType::i32;
  if (!whole && !same(product(index.sizes), 0))  // an empty one may have any dtype, as in PyTorch

    fail("{}: the index must be i64 or i32, not {}", call.op.name, base::info(index.dtype).name);
}
std::int64_t checked(Kernel const& kernel, std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size) fail("{}: index {} is out of range for size {}", kernel.op.name, index, size);
  return index;
}
void copy_element(Strided const& to, std::int64_t at, Strided const& from, std::int64_t offset) {
  std::memcpy(to.at(at), from.at(offset), static_cast<std::size_t>(base::bytes_of(to.dtype)));
}
void add_into(Strided const& y, std::int64_t at, Strided const& x, std::int64_t from) {
  if (base::is_real(y.dtype))
    y.set(at, y.real(at) + x.real(from));
  else
    y.set_whole(at, static_cast<std::int64_t>(static_cast<std::uint64_t>(y.whole(at)) + static_cast<std::uint64_t>(x.whole(from))));
}
void copy_all(Strided const& from, Strided const& to) {
  walk<2>(from.sizes, {&from.strides, &to.strides}, [&](auto const& at) { copy_element(to, at[1], from, at[0]); });
}

// embedding(weight, indices): rows of weight; embedding_grad adds rows of g where it read.
void infer_embedding(Inference& call) {
  auto const &weight = call.x(0), &index = call.x(1);
  need_index(call, index);
  if (weight.rank() != 2) fail("embedding: weight needs rank 2, not {}", to_string(weight));
  Dims sizes = index.sizes;
  sizes.push_back(weight.sizes[1]);
  call.out.push_back(contiguous_meta(weight.dtype, weight.device, std::move(sizes)));
}
void evaluate_embedding(Kernel const& kernel) {
  auto const &weight = kernel.in[0], &index = kernel.in[1], &y = kernel.out[0];
  std::int64_t to = 0;
  walk<1>(index.sizes, {&index.strides}, [&](auto const& at) {
    std::int64_t const row = checked(kernel, index.whole(at[0]), weight.sizes[0]);
    for (std::int64_t j = 0; j < weight.sizes[1]; ++j) copy_element(y, to++, weight, row * weight.strides[0] + j * weight.strides[1]);
  });
}
void evaluate_embedding_grad(Kernel const& kernel) {
  auto const &g = kernel.in[0], &index = kernel.in[1], &y = kernel.out[0];
  std::vector<double> sums(static_cast<std::size_t>(base::numel(y.sizes)), 0.0);
  base::Shape row_strides(g.strides.begin(), g.strides.end() - 1);
  walk<2>(index.sizes, {&index.strides, &row_strides}, [&](auto const& at) {
    std::int64_t const row = checked(kernel, index.whole(at[0]), y.sizes[0]);
    for (std::int64_t j = 0; j < y.sizes[1]; ++j) sums[static_cast<std::size_t>(row * y.sizes[1] + j)] += g.real(at[1] + j * g.strides.back());
  });
  for (std::size_t i = 0; i < sums.size(); ++i) y.set(static_cast<std::int64_t>(i), sums[i]);
}

// gather(x, dim, index): y[i][j] = x[index[i][j]][j] for dim 0; scatter_add is its transpose.
void infer_gather(Inference& call) {
  auto const &x = call.x(0), &index = call.x(1);
  need_index(call, index);
  bool const none = same(product(index.sizes), 0);  // then its rank is free, as in PyTorch
  if (!none && std::max(x.rank(), 1) != std::max(index.rank(), 1)) fail("{}: ranks differ: {} and {}", call.op.name, to_string(x), to_string(index));
  auto const axis = axis_of(call, x);
  if (none && x.rank() != index.rank()) return void(call.out.push_back(contiguous_meta(x.dtype, x.device, index.sizes)));
  for (std::size_t d = 0; d < index.sizes.size() && x.rank() > 0; ++d)
    if (d != axis && !less_equal(index.sizes[d], x.sizes[d]))
      fail("{}: index size {} exceeds {} at dim {}", call.op.name, index.sizes[d].value, x.sizes[d].value, d);
  call.out.push_back(contiguous_meta(x.dtype, x.device, index.sizes));
}
template <class F>
void pairs(Kernel const& kernel, Strided const& x, Strided const& index, Strided const& other, F f) {  // f(offset in x, offset in other)
  std::size_t const axis = axis_of(kernel, x.sizes.size());
  base::Shape strides = x.sizes.empty() ? base::Shape(index.sizes.size(), 0) : x.strides;
  std::int64_t const size = x.sizes.empty() ? 1 : x.sizes[axis], stride = x.sizes.empty() ? 0 : x.strides[axis];
  if (axis < strides.size()) strides[axis] = 0;
  walk<3>(index.sizes, {&index.strides, &strides, &other.strides},
          [&](auto const& at) { f(at[1] + checked(kernel, index.whole(at[0]), size) * stride, at[2]); });
}
void evaluate_gather(Kernel const& kernel) {
  pairs(kernel, kernel.in[0], kernel.in[1], kernel.out[0], [&](auto from, auto to) { copy_element(kernel.out[0], to, kernel.in[0], from); });
}
void infer_scatter(Inference& call) {
  auto const &x = call.x(0), &index = call.x(1), &source = call.x(2);
  need_index(call, index);
  if (x.dtype != source.dtype) fail("{}: dtypes differ: {} and {}", call.op.name, base::info(x.dtype).name, base::info(source.dtype).name);
  if (same(product(index.sizes), 0) && x.rank() != index.rank())  // nothing is written
    return void(call.out.push_back(contiguous_meta(x.dtype, x.device, x.sizes)));
  bool const one = x.rank() == 0 && index.rank() == 1;  // into a 0-d tensor as if it had one dim
  if ((x.rank() != index.rank() && !one) || index.rank() != source.rank())
    fail("{}: ranks differ: {}, {} and {}", call.op.name, to_string(x), to_string(index), to_string(source));
  auto const axis = axis_of(call, x);
  for (std::size_t d = 0; d < index.sizes.size(); ++d)
    if (!less_equal(index.sizes[d], source.sizes[d]) || (d != axis && !less_equal(index.sizes[d], x.sizes[d])))
      fail("{}: index {} exceeds {} or {} at dim {}", call.op.name, to_string(index), to_string(source), to_string(x), d);
  call.out.push_back(contiguous_meta(x.dtype, x.device, x.sizes));
}
template <bool adds>
void evaluate_scatter(Kernel const& kernel) {
  copy_all(kernel.in[0], kernel.out[0]);
  Strided source = kernel.in[2];
  source.sizes = kernel.in[1].sizes;
  pairs(kernel, kernel.out[0], kernel.in[1], source,
        [&](auto to, auto from) { adds ? add_into(kernel.out[0], to, source, from) : copy_element(kernel.out[0], to, source, from); });
}
std::string scatter_equation(Attrs const&, std::span<Meta const* const> in) {
  std::string wide, index, source;
  int next = 0;
  for (auto* side : {&wide, &index, &source})
    for (int d = in [side == &wide ? 0 : side == &index ? 1 : 2]->rank(); d-- > 0; ++next) *side += letters(1, next) + "!";
  return wide + "," + index + "," + source + "->" + wide;
}
Var source_grad(Vjp& v) {  // src may be larger than the index: pad with zeros
  Var g = call(gather, {v.g(), v.x(1)}, v.attrs);
  auto const &have = v.x(1).meta().sizes, &need = v.x(2).meta().sizes;
  for (std::size_t d = 0; d < need.size(); ++d)
    if (!same(have[d], need[d])) {
      Dims sizes = g.meta().sizes;
      sizes[d] = need[d];
      g = call(slice_grad, {g}, Attrs{}.with(sizes).with(Dim(d)).with(Dim(0)).with(have[d]).with(Dim(1)));
    }
  return g;
}

// index_select(x, dim, index): whole slices; index_add is its transpose.
Dims with_size(Meta const& x, std::size_t axis, Dim size) {
  Dims sizes = x.sizes;
  if (axis < sizes.size()) sizes[axis] = size;
  return sizes;
}
void infer_index_select(Inference& call) {
  auto const &x = call.x(0), &index = call.x(1);
  need_index(call, index);
  if (index.rank() > 1) fail("index_select: the index needs rank 0 or 1, not {}", to_string(index));
  call.out.push_back(contiguous_meta(x.dtype, x.device, with_size(x, axis_of(call, x), index.rank() ? index.sizes[0] : Dim(1))));
}
template <class F>
void slices(Kernel const& kernel, Strided const& x, Strided const& index, Strided const& other,
            F f) {  // f(offset in x, offset in other) for other[.., i, ..] and x[.., index[i], ..]
  std::size_t const axis = axis_of(kernel, x.sizes.size());
  if (x.sizes.empty()) return f(std::int64_t{0}, std::int64_t{0});
  base::Shape outer = x.sizes;
  outer[axis] = 1;
  std::int64_t const count = index.sizes.empty() ? 1 : index.sizes[0];
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t const from = checked(kernel, index.whole(index.sizes.empty() ? 0 : i * index.strides[0]), x.sizes[axis]);
    walk<2>(outer, {&x.strides, &other.strides}, [&](auto const& at) { f(at[0] + from * x.strides[axis], at[1] + i * other.strides[axis]); });
  }
}
void evaluate_index_select(Kernel const& kernel) {
  slices(kernel, kernel.in[0], kernel.in[1], kernel.out[0], [&](auto from, auto to) { copy_element(kernel.out[0], to, kernel.in[0], from); });
}
void infer_index_add(Inference& call) {
  auto const &x = call.x(0), &index = call.x(1), &source = call.x(2);
  need_index(call, index);
  if (x.dtype != source.dtype) fail("index_add: dtypes differ: {} and {}", base::info(x.dtype).name, base::info(source.dtype).name);
  auto const axis = axis_of(call, x);
  Dims const wish = with_size(x, axis, index.rank() ? index.sizes[0] : Dim(1));
  bool fits = wish.size() == source.sizes.size();
  for (std::size_t d = 0; fits && d < wish.size(); ++d) fits = same(wish[d], source.sizes[d]);
  if (!fits) fail("index_add: source {} does not fit {} with {} indices", to_string(source), to_string(x), index.rank() ? index.sizes[0].value : 1);
  call.out.push_back(contiguous_meta(x.dtype, x.device, x.sizes));
}
void evaluate_index_add(Kernel const& kernel) {
  copy_all(kernel.in[0], kernel.out[0]);
  AttrReader reader{kernel.attrs};
  Scalar const alpha = reader.num();
  slices(kernel, kernel.out[0], kernel.in[1], kernel.in[2], [&](auto to, auto from) {
    auto const& y = kernel.out[0];
    if (base::is_real(y.dtype))
      y.set(to, y.real(to) + alpha.real * kernel.in[2].real(from));
    else
      y.set_whole(to, static_cast<std::int64_t>(static_cast<std::uint64_t>(y.whole(to)) +
                                                static_cast<std::uint64_t>(base::truncate(alpha.real)) * static_cast<std::uint64_t>(kernel.in[2].whole(from))));
  });
}
std::string slices_equation(Attrs const& attrs, Meta const& x, Meta const& index, bool transposed) {
  std::string const one = letters(1, x.rank()), mark = transposed ? "!" : "", picks = index.rank() ? one + (x.rank() ? mark : "!") : "";
  auto wide = letters(x.rank()), narrow = wide;
  if (x.rank() > 0) {
    auto const d = static_cast<std::size_t>(base::wrap_dim("equation", attrs.ints[0].value, x.rank()));
    narrow.replace(d, 1, index.rank() ? one + mark : "1");  // an index without dims picks one slice
    wide.insert(d + 1, transposed ? "!" : "?");
  }
  return wide + "," + picks + (transposed ? "," + narrow + "->" + wide : "->" + narrow);
}

void infer_cat(Inference& call) {
  if (call.in.empty()) fail("cat: needs at least one tensor");
  std::vector<DType> dtypes;
  std::vector<int> ranks;
  Meta const* first = nullptr;
  for (auto const* meta : call.in) {
    if (!meta) fail("cat: a number can't be concatenated");
    dtypes.push_back(meta->dtype), ranks.push_back(meta->rank());
    bool const legacy = meta->rank() == 1 && same(meta->sizes[0], 0);  // an empty vector joins anything, as in PyTorch
    if (!first && !legacy) first = meta;
  }
  if (!first) first = call.in[0];
  if (first->rank() == 0) fail("cat: 0-d tensors can't be concatenated");
  auto const axis = axis_of(call, *first);
  Dims sizes = first->sizes;
  Dim total = 0;
  for (std::size_t k = 0; k < call.in.size(); ++k) {
    auto const& x = *call.in[k];
    if (x.rank() == 1 && same(x.sizes[0], 0)) continue;
    if (x.rank() != first->rank()) fail("cat: ranks differ: {} and {}", to_string(*first), to_string(x));
    for (std::size_t d = 0; d < sizes.size(); ++d)
      if (d != axis && !same(sizes[d], x.sizes[d])) fail("cat: sizes {} and {} differ at dim {} of operand {}", sizes[d].value, x.sizes[d].value, d, k);
    total = total + x.sizes[axis];
  }
  sizes[axis] = total;
  call.out.push_back(contiguous_meta(common_type(dtypes, ranks, std::vector<Scalar>(ranks.size())), first->device, std::move(sizes)));
}
void evaluate_cat(Kernel const& kernel) {
  auto const& y = kernel.out[0];
  std::size_t const axis = axis_of(kernel, y.sizes.size());
  std::int64_t start = 0;
  for (auto const& x : kernel.in) {
    if (x.sizes.size() != y.sizes.size()) continue;
    walk<2>(x.sizes, {&x.strides, &y.strides}, [&](auto const& at) {
      std::int64_t const to = start * y.strides[axis] + at[1];
      base::is_real(y.dtype) ? y.set(to, x.real(at[0])) : y.set_whole(to, x.whole(at[0]));
    });
    start += x.sizes[axis];
  }
}
void cat_vjp(Vjp& v) {
  auto const axis = v.attrs.ints[0];
  Dim start = 0;
  for (std::size_t k = 0; k < v.in.size(); ++k) {
    auto const& x = v.in[k].meta();
    if (x.rank() != v.g().rank()) continue;
    Dim const end = start + x.sizes[static_cast<std::size_t>(base::wrap_dim("cat", axis.value, x.rank()))];
    if (v.wanted[k]) v.grads[k] = call(slice, {v.g()}, Attrs{}.with(axis).with(start).with(end).with(Dim(1)));
    start = end;
  }
}

template <bool upper>
void evaluate_triangle(Kernel const& kernel) {
  auto const &x = kernel.in[0], &y = kernel.out[0];
  copy_all(x, y);
  std::size_t const r = y.sizes.size();
  std::int64_t const diagonal = kernel.attrs.ints[0].value;
  base::Shape const outer(y.sizes.begin(), y.sizes.end() - 2), strides(y.strides.begin(), y.strides.end() - 2);
  walk<1>(outer, {&strides}, [&](auto const& at) {
    for (std::int64_t i = 0; i < y.sizes[r - 2]; ++i)
      for (std::int64_t j = 0; j < y.sizes[r - 1]; ++j)
        if (upper ? j - i < diagonal : j - i > diagonal) y.set_whole(at[0] + i * y.strides[r - 2] + j * y.strides[r - 1], 0);
  });
}
void infer_triangle(Inference& call) {
  if (call.x().rank() < 2) fail("{}: needs at least two dims, not {}", call.op.name, to_string(call.x()));
  call.out.push_back(contiguous_meta(call.x().dtype, call.x().device, call.x().sizes));
}
std::string triangle_equation(Attrs const&, std::span<Meta const* const> in) {
  auto text = letters(in[0]->rank());
  auto const result = text.substr(0, text.size() - 2) + text[text.size() - 2] + "+" + text.back() + "+";
  return result + "->" + result;
}
}  // namespace

// clang-format off
constinit const OpDef embedding{.name = "embedding", .kind = Kind::gather, .signature = "Tensor weight, Tensor input",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const index = letters(in[1]->rank(), 2);
      return "a?b," + index + "->" + index + "b";
    }},
    .terms = "a-", .mono = "+.", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(embedding_grad, {v.g(), v.x(1)}, Attrs{}.with(v.x(0).size(0))); }, .saves = 2, .infer = infer_embedding, .evaluate = evaluate_embedding};
constinit const OpDef embedding_grad{.name = "embedding_grad", .kind = Kind::gather, .signature = "Tensor grad, Tensor input, size rows",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const index = letters(in[1]->rank(), 2);
      return index + "b," + index + "->a!b";
    }},
    .terms = "a-", .combine = Monoid::sum, .mono = "+.", .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(embedding, {v.g(), v.x(1)}); }, .saves = 2,
    .infer = [](Inference& call) {
      auto const &g = call.x(0), &index = call.x(1);
      need_index(call, index);
      bool fits = g.rank() == index.rank() + 1 && !less(call.attrs.ints[0], 0);
      for (std::size_t d = 0; fits && d < index.sizes.size(); ++d) fits = same(g.sizes[d], index.sizes[d]);
      if (!fits) fail("embedding_grad: a gradient {} does not fit indices {} into {} rows", to_string(g), to_string(index), call.attrs.ints[0].value);
      call.out.push_back(contiguous_meta(g.dtype, g.device, Dims{call.attrs.ints[0], g.sizes[g.sizes.size() - 1]}));
    },
    .evaluate = evaluate_embedding_grad};
constinit const OpDef gather{.name = "gather", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      auto from = letters(in[0]->rank()), index = letters(in[1]->rank());
      if (from.size() != index.size()) {  // from a 0-d tensor, or nothing at all
        std::string text;
        for (int d = 0; d < in[0]->rank() + in[1]->rank(); ++d) text += (d == in[0]->rank() ? "," : "") + letters(1, d) + "!";
        if (index.empty()) text += ',';
        return text + "->" + text.substr(text.find(',') + 1);
      }
      auto const axis = in[0]->rank() ? static_cast<std::size_t>(base::wrap_dim("gather", attrs.ints[0].value, in[0]->rank())) : 0;
      std::string marked, wide;
      for (std::size_t d = 0; d < from.size(); ++d) {  // the index may be smaller than the operand, so only dims of equal size are shared
        bool const shared = d != axis && in[0]->sizes[d] == in[1]->sizes[d];
        wide += d == axis ? letters(1, in[0]->rank()) + "?" : shared ? letters(1, static_cast<int>(d)) : letters(1, in[0]->rank() + 1 + static_cast<int>(d)) + "!";
        marked += d == axis || shared ? index.substr(d, 1) : index.substr(d, 1) + "!";
      }
      return wide + "," + marked + "->" + marked;
    }},
    .terms = "a-", .mono = "+.", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) {
      Var const zeros = zeros_like(v.x(0));
      v.grad(0) = call(scatter_add, {zeros, v.x(1), v.g()}, v.attrs);
    }, .saves = 2, .infer = infer_gather, .evaluate = evaluate_gather};
constinit const OpDef scatter_add{.name = "scatter_add", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, Tensor src",
    .equation = {.build = scatter_equation}, .terms = "a-b", .mono = "+.+", .types = Types::first,
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      if (v.wants(2)) v.grad(2) = source_grad(v);
    }, .saves = 2, .infer = infer_scatter, .evaluate = evaluate_scatter<true>};
constinit const OpDef scatter{.name = "scatter", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, Tensor src",
    .equation = {.build = scatter_equation}, .terms = "a-b", .mono = "+.+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) {  // as in PyTorch, of an index that names no place twice
      auto const& index = v.x(1).meta();
      Var const zeros = create(*v.x(1).emit, full, Attrs{}.with(index.sizes).with(v.g().meta().dtype).with(index.device).with_num(0.0));
      if (v.wants(0)) v.grad(0) = call(scatter, {v.g(), v.x(1), zeros}, v.attrs);
      if (v.wants(2)) v.grad(2) = source_grad(v);
    }, .saves = 2, .infer = infer_scatter, .evaluate = evaluate_scatter<false>};
constinit const OpDef index_select{.name = "index_select", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return slices_equation(attrs, *in[0], *in[1], false); }}, .terms = "a-", .mono = "+.", .copy = true,
    .types = Types::first,
    .vjp = [](Vjp& v) {
      Attrs attrs = v.attrs;
      v.grad(0) = call(index_add, {zeros_like(v.x(0)), v.x(1), v.g()}, attrs.with_num(1.0));
    }, .saves = 2, .infer = infer_index_select, .evaluate = evaluate_index_select};
constinit const OpDef index_add{.name = "index_add", .kind = Kind::gather, .signature = "Tensor input, int dim, Tensor index, Tensor source, *, float alpha=1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) { return slices_equation(attrs, *in[0], *in[1], true); }}, .terms = "a-b", .mono = "+.+",
    .types = Types::first,
    .vjp = [](Vjp& v) {
      v.grad(0) = v.g();
      if (v.wants(2)) v.grad(2) = call(index_select, {v.g(), v.x(1)}, Attrs{}.with(v.attrs.ints[0])) * num(v.attrs.nums[0]);
    }, .saves = 2, .infer = infer_index_add, .evaluate = evaluate_index_add};
constinit const OpDef cat{.name = "cat", .kind = Kind::gather, .signature = "Tensor[] tensors, int dim=0",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      std::string left, result;
      int const rank = in[0]->rank();
      auto const axis = static_cast<std::size_t>(base::wrap_dim("cat", attrs.ints[0].value, rank));
      auto const named = [&](int fresh) {
        auto text = letters(rank);
        text.replace(axis, 1, letters(1, rank + fresh) + "!");
        return text;
      };
      for (std::size_t k = 0; k < in.size(); ++k) left += (k ? "," : "") + named(static_cast<int>(k % 40));
      return left + "->" + named(40);
    }},
    .terms = "*", .mono = "*", .copy = true, .types = Types::promote, .vjp = cat_vjp, .infer = infer_cat, .evaluate = evaluate_cat};
constinit const OpDef tril{.name = "tril", .kind = Kind::gather, .signature = "Tensor input, int diagonal=0", .equation = {.build = triangle_equation}, .terms = "a", .mono = "+",
    .copy = true, .types = Types::first, .vjp = [](Vjp& v) { v.grad(0) = call(tril, {v.g()}, v.attrs); }, .infer = infer_triangle, .evaluate = evaluate_triangle<false>};
constinit const OpDef triu{.name = "triu", .kind = Kind::gather, .signature = "Tensor input, int diagonal=0", .equation = {.build = triangle_equation}, .terms = "a", .mono = "+",
    .copy = true, .types = Types::first, .vjp = [](Vjp& v) { v.grad(0) = call(triu, {v.g()}, v.attrs); }, .infer = infer_triangle, .evaluate = evaluate_triangle<true>};

namespace {
constexpr std::array rows{&embedding, &embedding_grad, &gather, &scatter_add, &scatter, &index_select, &index_add, &cat, &tril, &triu};
}
// clang-format on
std::span<OpDef const* const> gather_rows() { return rows; }

}  // namespace tenon::ir::ops
