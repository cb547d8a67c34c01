// Rows that pick elements by their values or by a mask, and what is measured for them: sizes that depend on elements are `absent` in their inference,
// so that no graph holds such a call.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;

/// A meta whose sizes may be absent.
Meta unsized(DType dtype, base::Device device, Dims sizes) {
  Meta meta;
  meta.dtype = dtype;
  meta.device = device;
  meta.strides.resize(sizes.size(), Dim(1));
  meta.sizes = std::move(sizes);
  return meta;
}

extern OpDef const repeat_places;

namespace {
std::string whole_letters(int n, int first) {
  std::string text;
  for (char letter : letters(n, first)) text += {letter, '!'};
  return text;
}

// -- nonzero, unique, repeats ---------------------------------------------------------------------------------------------------------------

template <class F>
void each_nonzero(Strided const& x, F f) {  // f(index)
  base::Shape index(x.sizes.size(), 0);
  bool const real = base::is_real(x.dtype);
  walk<1>(x.sizes, {&x.strides}, [&](auto const& at) {
    if (real ? x.real(at[0]) != 0 : x.whole(at[0]) != 0) f(index);
    for (std::size_t d = index.size(); d-- > 0 && ++index[d] == x.sizes[d];) index[d] = 0;
  });
}
std::int64_t nonzeros(Strided const& x) {
  std::int64_t count = 0;
  each_nonzero(x, [&](base::Shape const&) { ++count; });
  return count;
}
void evaluate_nonzero(Kernel const& kernel) {
  auto const& y = kernel.out[0];
  std::int64_t row = 0;
  each_nonzero(kernel.in[0], [&](base::Shape const& index) {
    for (std::size_t d = 0; d < index.size(); ++d) y.set_whole(row * y.strides[0] + static_cast<std::int64_t>(d) * y.strides[1], index[d]);
    ++row;
  });
}

// The distinct items of a tensor, which are its elements or its slices along a dim: items in order, and where a new one begins.
struct Distinct {
  std::vector<std::int64_t> starts, inner, order, first;  // offsets of items and inside an item; item numbers sorted; places in `order`
  Distinct(Strided const& x, std::optional<std::size_t> dim) {
    auto const offsets = [&](base::Shape const& sizes) {
      std::vector<std::int64_t> list;
      walk<1>(sizes, {&x.strides}, [&](auto const& at) { list.push_back(at[0]); });
      return list;
    };
    if (dim && !x.sizes.empty()) {
      base::Shape line(x.sizes.size(), 1), rest = x.sizes;
      line[*dim] = x.sizes[*dim];
      rest[*dim] = 1;
      starts = offsets(line), inner = offsets(rest);
    } else {
      starts = offsets(x.sizes), inner = {0};
    }
    bool const real = base::is_real(x.dtype);
    auto const before = [&](std::int64_t i, std::int64_t j) {
      for (auto const at : inner) {
        auto const a = starts[static_cast<std::size_t>(i)] + at, b = starts[static_cast<std::size_t>(j)] + at;
        if (!real && x.whole(a) != x.whole(b)) return x.whole(a) < x.whole(b);
        if (!real) continue;
        double const p = x.real(a), q = x.real(b);
        if (p < q || (p == p && q != q)) return true;
        if (q < p || (q == q && p != p)) return false;
      }
      return false;
    };
    auto const differ = [&](std::int64_t i, std::int64_t j) {  // a NaN differs from every other
      return std::ranges::any_of(inner, [&](auto at) {
        auto const a = starts[static_cast<std::size_t>(i)] + at, b = starts[static_cast<std::size_t>(j)] + at;
        return real ? x.real(a) != x.real(b) : x.whole(a) != x.whole(b);
      });
    };
    order.resize(starts.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, before);
    for (std::size_t k = 0; k < order.size(); ++k)
      if (k == 0 || differ(order[k - 1], order[k])) first.push_back(static_cast<std::int64_t>(k));
  }
  std::int64_t count() const { return std::ssize(first); }
};
struct UniqueCall {
  bool inverse, counts;
  std::optional<std::size_t> dim;
  UniqueCall(Attrs const& attrs, int rank) {
    AttrReader reader{attrs};
    reader.flag();
    inverse = reader.flag(), counts = reader.flag();
    if (auto const d = reader.number(); d.value != absent) dim = static_cast<std::size_t>(base::wrap_dim("unique", d.value, std::max(rank, 1)));
  }
};
void infer_unique(Inference& call) {
  auto const& x = call.x();
  UniqueCall const wish(call.attrs, x.rank());
  Dims values{Dim(absent)}, inverse = x.sizes;
  if (wish.dim && x.rank() > 0) {
    values = x.sizes, values[*wish.dim] = absent;
    inverse = Dims{x.sizes[*wish.dim]};
  }
  call.out.push_back(unsized(x.dtype, x.device, std::move(values)));
  call.out.push_back(contiguous_meta(DType::i64, x.device, wish.inverse ? inverse : Dims{Dim(0)}));
  call.out.push_back(unsized(DType::i64, x.device, Dims{wish.counts ? Dim(absent) : Dim(0)}));
}
void measure_unique(Kernel const& kernel, std::span<Dims> sizes) {
  UniqueCall const wish(kernel.attrs, static_cast<int>(kernel.in[0].sizes.size()));
  std::int64_t const count = Distinct(kernel.in[0], wish.dim).count();
  for (auto& list : sizes)
    for (auto& size : list)
      if (size.value == absent) size = count;
}
void evaluate_unique(Kernel const& kernel) {
  auto const& x = kernel.in[0];
  UniqueCall const wish(kernel.attrs, static_cast<int>(x.sizes.size()));
  Distinct const distinct(x, wish.dim);
  std::size_t const n = distinct.order.size();
  bool const along = wish.dim && !x.sizes.empty();
  base::Shape rest = kernel.out[0].sizes;
  if (along) rest[*wish.dim] = 1;
  std::int64_t const step = along ? kernel.out[0].strides[*wish.dim] : kernel.out[0].strides[0];
  std::vector<std::int64_t> inside;
  if (along)
    walk<1>(rest, {&kernel.out[0].strides}, [&](auto const& at) { inside.push_back(at[0]); });
  else
    inside = {0};
  for (std::size_t k = 0; k < distinct.first.size(); ++k) {
    auto const begin = static_cast<std::size_t>(distinct.first[k]), end = k + 1 < distinct.first.size() ? static_cast<std::size_t>(distinct.first[k + 1]) : n;
    auto const to = static_cast<std::int64_t>(k);
    for (std::size_t i = 0; i < distinct.inner.size(); ++i)
      std::memcpy(kernel.out[0].at(to * step + inside[i]), x.at(distinct.starts[static_cast<std::size_t>(distinct.order[begin])] + distinct.inner[i]),
                  static_cast<std::size_t>(base::bytes_of(x.dtype)));
    if (wish.inverse)
      for (std::size_t j = begin; j < end; ++j) kernel.out[1].set_whole(distinct.order[j], to);
    if (wish.counts) kernel.out[2].set_whole(to, static_cast<std::int64_t>(end - begin));
  }
}

// How often each number of `repeats` stands in the result; checked.
std::int64_t total_of(Strided const& repeats) {
  std::int64_t total = 0;
  walk<1>(repeats.sizes, {&repeats.strides}, [&](auto const& at) {
    auto const n = repeats.whole(at[0]);
    if (n < 0) fail("the number of repeats can't be negative: {}", n);
    total = plus(total, n);
  });
  return total;
}
void need_repeats(Meta const& repeats) {
  if (repeats.rank() > 1 || (repeats.dtype != DType::i64 && repeats.dtype != DType::i32))
    fail("repeats must be i64 or i32 of rank 0 or 1, not {}", to_string(repeats));
}
void need_length(Dim length) {
  if (length.value != absent && less(length, 0)) fail("output_size can't be negative: {}", length.value);
}
void evaluate_places(Kernel const& kernel) {
  auto const &repeats = kernel.in[0], &y = kernel.out[0];
  if (auto const total = total_of(repeats); total != y.sizes[0]) fail("{}: output_size is {}, the repeats add up to {}", kernel.op.name, y.sizes[0], total);
  std::int64_t place = 0, to = 0;
  walk<1>(repeats.sizes, {&repeats.strides}, [&](auto const& at) {
    for (std::int64_t k = 0; k < repeats.whole(at[0]); ++k) y.set_whole(to++ * y.strides[0], place);
    ++place;
  });
}
void infer_repeats(Inference& call) {
  auto const &x = call.x(0), &repeats = call.x(1);
  need_repeats(repeats);
  need_length(call.attrs.ints[1]);
  bool const flat = call.attrs.ints[0].value == absent;
  int const d = flat ? 0 : base::wrap_dim("dim", call.attrs.ints[0].value, std::max(x.rank(), 1));
  Dim const size = flat ? product(x.sizes) : x.rank() ? x.sizes[static_cast<std::size_t>(d)] : Dim(1);
  bool const spread = repeats.rank() == 0 || same(repeats.sizes[0], 1);
  if (!spread && !same(repeats.sizes[0], size)) fail("repeat_interleave: {} repeats for size {} of {}", repeats.sizes[0].value, size.value, to_string(x));
  Dims sizes = flat || x.rank() == 0 ? Dims{Dim(1)} : x.sizes;
  sizes[static_cast<std::size_t>(d)] = call.attrs.ints[1];
  call.out.push_back(sizes[static_cast<std::size_t>(d)].value == absent ? unsized(x.dtype, x.device, std::move(sizes))
                                                                        : contiguous_meta(x.dtype, x.device, std::move(sizes)));
}
void measure_repeats(Kernel const& kernel, std::span<Dims> sizes) {
  auto const &x = kernel.in[0], &repeats = kernel.in[1];
  bool const flat = kernel.attrs.ints[0].value == absent || x.sizes.empty();
  auto const d = flat ? 0 : static_cast<std::size_t>(base::wrap_dim("dim", kernel.attrs.ints[0].value, static_cast<int>(x.sizes.size())));
  std::int64_t const size = flat ? base::numel(x.sizes) : x.sizes[d];
  std::int64_t const total = total_of(repeats);
  sizes[0][d] = base::numel(repeats.sizes) == 1 ? times(total, size) : total;
}
void repeats_body(Body& b) {
  bool const flat = b.attrs.ints[0].value == absent || b.x().rank() == 0;
  Var const x = flat ? shaped(b.x(), std::array{product(b.x().meta().sizes)}) : b.x();
  int const d = flat ? 0 : dim_of(x, b.attrs.ints[0]);
  Var const spread = call(expand, {shaped(b.x(1), std::array{Dim(-1)})}, Attrs{}.with(std::array{x.size(d)}));
  b.out.push_back(call(index_select, {x, call(repeat_places, {spread}, Attrs{}.with(b.attrs.ints[1]))}, at_dim(d)));
}

// Without a number of classes, as many zeros as there are: the largest class, repeated once more than it counts.
void one_hot_body(Body& b) {
  Dim const classes = b.attrs.ints[0];
  Var const at = call(unsqueeze, {cast(b.x(), DType::i64)}, at_dim(-1)), zero = zeros_like(at);
  Var row;
  if (classes.value == -1) {
    Var const most = shaped(call(amax, {at}, over(std::span<Dim const>{}, false)), std::array{Dim(1)});
    row = call(repeat_places, {most + Var(1)}, Attrs{}.with(Dim(absent)));
  } else {
    row = create(*at.emit, full, Attrs{}.with(std::array{classes}).with(DType::i64).with(at.meta().device).with_num(0));
  }
  b.out.push_back(call(scatter, {zero + row, at, zero + Var(1)}, at_dim(-1)));
}
Var flat_of(Var x) { return shaped(x, std::array{product(x.meta().sizes)}); }
// Element k of the source goes to the k-th place that the mask names: its number is the running count of the mask.
void masked_body(Body& b) {
  Var const x = b.x(0), mask = b.x(1), source = flat_of(b.x(2));
  if (x.meta().dtype != source.meta().dtype) fail("dtypes differ: {} and {}", to_string(x.meta()), to_string(source.meta()));
  if (mask.meta().dtype != DType::boolean) fail("masked_scatter: the mask must be bool, not {}", to_string(mask.meta()));
  Dims sizes = call(logical_and, {call(isnan, {x}), mask}).meta().sizes;
  Var const wide = call(expand, {mask}, Attrs{}.with(sizes));
  Var const count = call(cumsum, {flat_of(wide)}, at_dim(0).with(Dim(absent)));
  Var const place = call(maximum, {count - Var(1), Var(0)});
  Var const picked = shaped(call(index_select, {source, place}, at_dim(0)), sizes);
  b.out.push_back(choose(wide, picked, call(expand, {x}, Attrs{}.with(sizes))));
}
void masked_select_body(Body& b) {
  Dims const sizes = call(logical_and, {call(isnan, {b.x(0)}), b.x(1)}).meta().sizes;
  if (sizes.empty()) {
    auto const flat = std::array{Dim(1)};
    return void(b.out.push_back(call(index_at, {shaped(b.x(0), flat), shaped(b.x(1), flat)}, Attrs{}.with(std::span<Dim const>{}))));
  }
  auto const wide = [&](Var x) { return call(expand, {x}, Attrs{}.with(sizes)); };
  b.out.push_back(call(index_at, {wide(b.x(0)), wide(b.x(1))}, Attrs{}.with(std::span<Dim const>{})));
}
void measure_masked(Kernel const& kernel, std::span<Dims> sizes) {
  auto const &x = kernel.in[0], &mask = kernel.in[1];
  Meta const a = contiguous_meta(x.dtype, {}, Dims(std::vector<Dim>(x.sizes.begin(), x.sizes.end()))),
             m = contiguous_meta(mask.dtype, {}, Dims(std::vector<Dim>(mask.sizes.begin(), mask.sizes.end())));
  auto const wide = infer(logical_and, std::array<Meta const*, 2>{&a, &m}, std::array<Scalar, 2>{}, {})[0].sizes;
  std::int64_t each = 1;  // how often an element of the mask stands in the common sizes
  for (std::size_t d = 0; d < wide.size(); ++d) {
    std::size_t const lead = wide.size() - mask.sizes.size();
    if (d < lead || mask.sizes[d - lead] != wide[d].value) each = times(each, wide[d].value);
  }
  sizes[0][0] = times(nonzeros(mask), each);
}
}  // namespace

// clang-format off
constinit const OpDef nonzero{.name = "nonzero", .kind = Kind::gather, .signature = "Tensor input",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) { return whole_letters(in[0]->rank(), 2) + "->a!b!"; }}, .terms = "-", .mono = ".", .types = Types::index,
    .infer = [](Inference& call) { call.out.push_back(unsized(DType::i64, call.x().device, Dims{Dim(absent), Dim(call.x().rank())})); }, .evaluate = evaluate_nonzero,
    .measured = [](Kernel const& kernel, std::span<Dims> sizes) { sizes[0][0] = nonzeros(kernel.in[0]); }};
constinit const OpDef masked_select{.name = "masked_select", .kind = Kind::gather, .signature = "Tensor input, Tensor mask",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      return whole_letters(in[0]->rank(), 1) + "," + whole_letters(in[1]->rank(), 1 + in[0]->rank()) + "->a!";
    }},
    .terms = "a-", .mono = "+.", .copy = true, .types = Types::first,
    .infer = [](Inference& call) {
      if (call.x(1).dtype != DType::boolean) fail("masked_select: the mask must be bool, not {}", to_string(call.x(1)));
      infer(logical_and, call.in, std::array<Scalar, 2>{}, {});
      call.out.push_back(unsized(call.x().dtype, call.x().device, Dims{Dim(absent)}));
    },
    .measured = measure_masked, .decompose = masked_select_body};
constinit const OpDef masked_scatter{.name = "masked_scatter", .kind = Kind::gather, .signature = "Tensor input, Tensor mask, Tensor source", .terms = "a-b", .mono = "+.+",
    .copy = true, .decompose = masked_body};
constinit const OpDef unique{.name = "unique", .kind = Kind::sort,
    .signature = "Tensor input, bool sorted=True, bool return_inverse=False, bool return_counts=False, int? dim=None", .results = 3,
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      UniqueCall const wish(attrs, in[0]->rank());
      int const n = in[0]->rank(), values = wish.dim && n ? n : 1, inverse = wish.inverse && !wish.dim ? n : 1;
      return whole_letters(n, 0) + "->" + whole_letters(values, n) + "," + whole_letters(inverse, n + values) + "," + whole_letters(1, n + values + inverse);
    }},
    .terms = "-", .mono = ".", .infer = infer_unique, .evaluate = evaluate_unique, .measured = measure_unique};
constinit const OpDef repeat_places{.name = "repeat_interleave.Tensor", .kind = Kind::gather, .signature = "Tensor repeats, *, int? output_size=None", .equation = {"a!->b!"},
    .terms = "-", .mono = ".", .types = Types::index,
    .infer = [](Inference& call) {
      need_repeats(call.x());
      need_length(call.attrs.ints[0]);
      if (call.x().rank() != 1) fail("repeats need rank 1, not {}", to_string(call.x()));
      call.out.push_back(unsized(DType::i64, call.x().device, Dims{call.attrs.ints[0]}));
    },
    .evaluate = evaluate_places, .measured = [](Kernel const& kernel, std::span<Dims> sizes) { sizes[0][0] = total_of(kernel.in[0]); }};
constinit const OpDef repeat_each{.name = "repeat_interleave.self_Tensor", .kind = Kind::gather,
    .signature = "Tensor input, Tensor repeats, int? dim=None, *, int? output_size=None",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      int const n = in[0]->rank();
      bool const flat = attrs.ints[0].value == absent || n == 0;
      auto const all = letters(n);
      std::string left, right = flat ? letters(1, n) + "!" : "";
      for (std::size_t d = 0; d < all.size(); ++d) {
        bool const repeated = flat || d == static_cast<std::size_t>(base::wrap_dim("equation", attrs.ints[0].value, n));
        left += std::string(1, all[d]) + (repeated ? "!" : "");
        if (!flat) right += repeated ? letters(1, n) + "!" : std::string(1, all[d]);
      }
      return left + "," + whole_letters(in[1]->rank(), n + 1) + "->" + right;
    }},
    .terms = "a-", .mono = "+.", .copy = true, .types = Types::first, .infer = infer_repeats, .measured = measure_repeats, .decompose = repeats_body};
constinit const OpDef one_hot{.name = "one_hot", .kind = Kind::gather, .signature = "Tensor input, int num_classes=-1",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const all = letters(in[0]->rank(), 1);
      return all + "->" + all + "a!";
    }},
    .terms = "-", .mono = ".", .types = Types::index,
    .infer = [](Inference& call) {
      Dim const classes = call.attrs.ints[0];
      if (call.x().dtype != DType::i64 && call.x().dtype != DType::i32) fail("one_hot: classes must be i64 or i32, not {}", to_string(call.x()));
      if (classes.value < -1 || classes.value == 0) fail("one_hot: num_classes must be at least 1, not {}", classes.value);
      Dims sizes = call.x().sizes;
      sizes.push_back(classes.value == -1 ? Dim(absent) : classes);
      call.out.push_back(classes.value == -1 ? unsized(DType::i64, call.x().device, sizes) : contiguous_meta(DType::i64, call.x().device, sizes));
    },
    .measured = [](Kernel const& kernel, std::span<Dims> sizes) {
      auto const& x = kernel.in[0];
      if (base::numel(x.sizes) == 0) fail("one_hot: no elements tell the number of classes");
      std::int64_t most = 0;
      walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { most = std::max(most, x.whole(at[0])); });
      sizes[0][x.sizes.size()] = plus(most, 1);
    },
    .decompose = one_hot_body};
namespace {
constexpr std::array rows{&nonzero, &masked_select, &masked_scatter, &unique, &repeat_places, &repeat_each, &one_hot};
}
// clang-format on
std::span<OpDef const* const> selection_rows() { return rows; }

}  // namespace tenon::ir::ops
