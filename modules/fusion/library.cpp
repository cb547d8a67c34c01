// Calls of ops by their fast functions. Sums by index are made by one thread an element, in the order of the indices.
module tenon.fusion;
import std;
import tenon.base;
import tenon.device;
import tenon.ir;

namespace tenon::fusion {
using base::DType;
using Call = ir::Kernel;
using ir::Strided;
namespace ops = ir::ops;
namespace {

// Lines along the last dim, wherever the others lie.
template <class T>
Dense<T> dense_of(Strided const& x) {
  if (x.dtype == dtype_for<T> && base::is_contiguous(x.sizes, x.strides)) return {.data = reinterpret_cast<T const*>(x.data)};
  Dense<T> result;
  auto const count = base::numel(x.sizes), length = x.sizes.empty() ? 1 : x.sizes.back();
  result.copy.resize(static_cast<std::size_t>(count));
  result.data = result.copy.data();
  base::Shape outer = x.sizes;
  if (!outer.empty()) outer.back() = std::min<std::int64_t>(outer.back(), 1);
  T* to = result.copy.data();
  ir::walk<1>(outer, {&x.strides}, [&](auto const& at) {
    load_line(x.dtype, x.at(at[0]), x.strides.empty() ? 1 : x.strides.back(), to, length);
    to += length;
  });
  return result;
}
}  // namespace
Dense<float> dense_f32(Strided const& x) { return dense_of<float>(x); }
Dense<double> dense_f64(Strided const& x) { return dense_of<double>(x); }

namespace {
// Whole numbers of an index in row-major order, each in [0, size).
std::vector<std::int64_t> indices(Call const& call, Strided const& index, std::int64_t size) {
  std::vector<std::int64_t> list;
  list.reserve(static_cast<std::size_t>(base::numel(index.sizes)));
  ir::walk<1>(index.sizes, {&index.strides}, [&](auto const& at) {
    auto const i = index.whole(at[0]);
    if (i < 0 || i >= size) base::fail("{}: index {} is out of range for size {}", call.op.name, i, size);
    list.push_back(i);
  });
  return list;
}
// A tensor as [outer, size, inner] about one dim; a 0-d one as [1, 1, 1].
struct About {
  std::size_t axis = 0;
  std::int64_t outer = 1, size = 1, inner = 1;
};
About about(Call const& call, base::Shape const& sizes) {
  About a;
  if (sizes.empty()) return a;
  a.axis = static_cast<std::size_t>(base::wrap_dim(call.op.name, call.attrs.ints[0].value, static_cast<int>(sizes.size())));
  a.size = sizes[a.axis];
  for (std::size_t d = 0; d < sizes.size(); ++d) (d < a.axis ? a.outer : d > a.axis ? a.inner : a.outer) *= d == a.axis ? 1 : sizes[d];
  return a;
}
// f(first, last) for stretches of [0, size) of at least `least`, one a thread.
template <class F>
void in_stretches(std::int64_t size, std::int64_t least, F f) {
  auto const each = std::max<std::int64_t>({(size + device::threads() - 1) / device::threads(), least, 1}), count = (size + each - 1) / each;
  if (count == 1) return f(std::int64_t{0}, size);
  device::parallel(count, [&](std::int64_t k, int) { f(k * each, std::min(size, (k + 1) * each)); });
}
// Elements of y as T while `f` adds to them: where they are, or beside y and then rounded once.
template <class T, class F>
void with_sums(Strided const& y, F f) {
  if (y.dtype == dtype_for<T>) return f(reinterpret_cast<T*>(y.data));
  auto const count = base::numel(y.sizes);
  Aligned<T> sums(static_cast<std::size_t>(count));
  f(sums.data());
  store_line(y.dtype, y.data, 1, sums.data(), count);
}

void embedding(Call const& call) {
  auto const &weight = call.in[0], &y = call.out[0];
  auto const rows = indices(call, call.in[1], weight.sizes[0]);
  auto const columns = weight.sizes[1], bytes = std::int64_t{base::bytes_of(y.dtype)};
  in_stretches(std::ssize(rows), (1 << 15) / std::max<std::int64_t>(columns, 1), [&](std::int64_t first, std::int64_t last) {
    for (auto i = first; i < last; ++i) {
      auto const row = rows[static_cast<std::size_t>(i)] * weight.strides[0];
      if (weight.strides[1] == 1 || columns == 1)
        std::memcpy(y.at(i * columns), weight.at(row), static_cast<std::size_t>(columns * bytes));
      else
        for (std::int64_t j = 0; j < columns; ++j) std::memcpy(y.at(i * columns + j), weight.at(row + j * weight.strides[1]), static_cast<std::size_t>(bytes));
    }
  });
}
template <class T>
void embedding_grad(Call const& call) {
  auto const& y = call.out[0];
  auto const rows = indices(call, call.in[1], y.sizes[0]);
  auto const g = dense<T>(call.in[0]);
  auto const columns = y.sizes[1];
  with_sums<T>(y, [&](T* sums) {
    in_stretches(y.sizes[0], (1 << 15) / std::max<std::int64_t>(columns, 1), [&](std::int64_t first, std::int64_t last) {  // of rows of the result
      std::fill(sums + first * columns, sums + last * columns, T{});
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] < first || rows[i] >= last) continue;
        T* const to = sums + rows[i] * columns;
        T const* const from = g.data + static_cast<std::int64_t>(i) * columns;
        for (std::int64_t j = 0; j < columns; ++j) to[j] += from[j];
      }
    });
  });
}
template <class T>
void index_add(Call const& call) {
  auto const& y = call.out[0];
  auto const a = about(call, y.sizes);
  auto const rows = indices(call, call.in[1], a.size);
  auto const x = dense<T>(call.in[0]), source = dense<T>(call.in[2]);
  auto const alpha = static_cast<T>(call.attrs.nums[0].real);
  auto const count = std::ssize(rows), least = (1 << 15) / std::max<std::int64_t>(count, 1);
  with_sums<T>(y, [&](T* sums) {
    in_stretches(a.outer * a.inner, least, [&](std::int64_t first, std::int64_t last) {  // of lines along the dim
      for (auto line = first; line < last;) {
        auto const outer = line / a.inner, from = line % a.inner, width = std::min(a.inner - from, last - line);
        for (std::int64_t i = 0; i < a.size; ++i)
          if (x.data != sums) std::copy_n(x.data + (outer * a.size + i) * a.inner + from, width, sums + (outer * a.size + i) * a.inner + from);
        for (std::int64_t i = 0; i < count; ++i) {
          T* const to = sums + (outer * a.size + rows[static_cast<std::size_t>(i)]) * a.inner + from;
          T const* const add = source.data + (outer * count + i) * a.inner + from;
          for (std::int64_t j = 0; j < width; ++j) to[j] += alpha * add[j];
        }
        line += width;
      }
    });
  });
}
template <class T>
void scatter_add(Call const& call) {
  auto const &index = call.in[1], &source = call.in[2], &y = call.out[0];
  auto const a = about(call, y.sizes);
  auto const places = indices(call, index, a.size);
  auto const x = dense<T>(call.in[0]), from = dense<T>(source);
  auto const count = base::numel(y.sizes);
  with_sums<T>(y, [&](T* sums) {
    if (x.data != sums) std::copy_n(x.data, count, sums);
    if (places.empty()) return;
    auto to_strides = y.sizes.empty() ? base::Shape(index.sizes.size(), 0) : base::contiguous_strides(y.sizes),
         from_strides = base::contiguous_strides(source.sizes);
    if (!y.sizes.empty()) to_strides[a.axis] = 0;
    std::size_t at_index = 0;
    ir::walk<2>(index.sizes, {&to_strides, &from_strides}, [&](auto const& at) { sums[at[0] + places[at_index++] * a.inner] += from.data[at[1]]; });
  });
}
// The running sums are doubles, as the reference's are.
template <class T>
void cumsum(Call const& call) {
  auto const& y = call.out[0];
  auto const a = about(call, y.sizes);
  auto const x = dense<T>(call.in[0]);
  with_sums<T>(y, [&](T* sums) {
    in_stretches(a.outer * a.inner, (1 << 14) / std::max<std::int64_t>(a.size, 1), [&](std::int64_t first, std::int64_t last) {  // of lines along the dim
      std::array<double, 64> running;
      for (auto line = first; line < last;) {
        auto const outer = line / a.inner, from = line % a.inner, width = std::min({a.inner - from, last - line, std::ssize(running)});
        running.fill(0);
        for (std::int64_t i = 0; i < a.size; ++i) {
          auto const at = (outer * a.size + i) * a.inner + from;
          for (std::int64_t j = 0; j < width; ++j) sums[at + j] = static_cast<T>(running[static_cast<std::size_t>(j)] += static_cast<double>(x.data[at + j]));
        }
        line += width;
      }
    });
  });
}

// Strides over the dims before the last two of a result of `rank` dims, 0 where x has one entry or lacks the dim.
base::Shape lead_strides(Strided const& x, std::size_t own, std::size_t lead) {
  base::Shape strides(lead, 0);
  for (std::size_t d = 0; d < own; ++d)
    if (x.sizes[d] != 1) strides[lead - own + d] = x.strides[d];
  return strides;
}
void matmul(Call const& call) { gemm(gemm_of(call.in[0], call.in[1], call.out[0])); }

// f(attention of the two dims before the last two, offset of each operand) for each entry of the dims before those.
template <class F>
void each_attention(Call const& call, std::span<Strided const* const> operands, ir::Scalar const& scale, F f) {
  auto const &q = *operands[0], &k = *operands[1], &v = *operands[2];
  std::size_t lead = 0;
  for (auto const* x : operands) lead = std::max(lead, x->sizes.size() - 2);
  base::Shape sizes(std::max<std::size_t>(lead, 2), 1);
  std::vector<base::Shape> strides;
  for (auto const* x : operands) {
    auto const own = x->sizes.size() - 2;
    strides.push_back(lead_strides(*x, own, sizes.size()));
    for (std::size_t d = 0; d < own; ++d)
      if (x->sizes[d] != 1) sizes[sizes.size() - own + d] = x->sizes[d];
  }
  auto const last = [](base::Shape const& list, std::size_t back) { return list[list.size() - back]; };
  Attention attention{.dtype = q.dtype,
                      .batch = last(sizes, 2),
                      .heads = last(sizes, 1),
                      .queries = last(q.sizes, 2),
                      .keys = last(k.sizes, 2),
                      .features = last(q.sizes, 1),
                      .value_features = last(v.sizes, 1)};
  attention.causal = call.attrs.ints[0].value != 0;
  attention.scale = scale.kind == ir::ScalarKind::none ? 1 / std::sqrt(static_cast<double>(attention.features)) : scale.real;
  base::Shape const outer(sizes.begin(), sizes.end() - 2), index_strides = base::contiguous_strides(outer);
  ir::walk<1>(outer, {&index_strides}, [&](auto const& at) {
    std::vector<Heads> heads;
    for (std::size_t x = 0; x < operands.size(); ++x) {
      std::int64_t rest = at[0], offset = 0;
      for (std::size_t d = outer.size(); d-- > 0; rest /= outer[d]) offset += rest % outer[d] * strides[x][d];
      heads.push_back({operands[x]->at(offset), last(strides[x], 2), last(strides[x], 1), last(operands[x]->strides, 2), last(operands[x]->strides, 1)});
    }
    f(attention, heads);
  });
}
void attend(Call const& call) {
  std::array<Strided const*, 4> const operands{&call.in[0], &call.in[1], &call.in[2], &call.out[0]};
  each_attention(call, operands, call.attrs.nums[1], [](Attention each, std::vector<Heads> const& heads) {
    each.q = heads[0], each.k = heads[1], each.v = heads[2], each.o = heads[3];
    attention(each);
  });
}
void attend_grad(Call const& call) {
  std::array<Strided const*, 7> const operands{&call.in[1], &call.in[2], &call.in[3], &call.in[0], &call.out[0], &call.out[1], &call.out[2]};
  each_attention(call, operands, call.attrs.nums[0], [](Attention each, std::vector<Heads> const& heads) {
    each.q = heads[0], each.k = heads[1], each.v = heads[2];
    attention_grad({.call = each, .g = heads[3], .dq = heads[4], .dk = heads[5], .dv = heads[6]});
  });
}
void convolve(Call const& call) { convolution(call.attrs, call.in[0], call.in[1], call.out[0]); }

// A row: the op, its function for floats summed in f32 and in f64, and whether it takes whole numbers too.
struct CallRow {
  ir::OpDef const* op;
  void (*small)(Call const&);
  void (*wide)(Call const&);
  bool any_dtype = false;
};
constexpr std::array call_rows{
    CallRow{&ops::matmul, matmul, matmul, true},
    CallRow{&ops::convolution, convolve, convolve},
    CallRow{&ops::scaled_dot_product_attention, attend, attend},
    CallRow{&ops::scaled_dot_product_attention_grad, attend_grad, attend_grad},
    CallRow{&ops::embedding, embedding, embedding, true},
    CallRow{&ops::embedding_grad, embedding_grad<float>, embedding_grad<double>},
    CallRow{&ops::index_add, index_add<float>, index_add<double>},
    CallRow{&ops::scatter_add, scatter_add<float>, scatter_add<double>},
    CallRow{&ops::cumsum, cumsum<float>, cumsum<double>},
};
CallRow const* row_of(ir::OpDef const& op) {
  auto const* const row = std::ranges::find(call_rows, &op, &CallRow::op);
  return row == call_rows.end() ? nullptr : row;
}
}  // namespace

bool has_library_call(ir::OpDef const& op) { return row_of(op) != nullptr; }
bool adds_to_first(ir::OpDef const& op) { return &op == &ops::index_add || &op == &ops::scatter_add; }

void library_call(ir::OpDef const& op, std::span<Strided const> in, std::span<ir::Scalar const> scalars, ir::Attrs const& attrs, std::span<Strided> out) {
  auto const* const row = row_of(op);
  bool const fits = row && (row->any_dtype || (base::is_real(out[0].dtype) && base::is_real(in[0].dtype)));
  if (!fits) return ir::evaluate(op, in, scalars, attrs, out);
  Call const call{.op = op, .attrs = attrs, .in = in, .scalars = scalars, .out = out};
  (out[0].dtype == DType::f64 ? row->wide : row->small)(call);
}

Gemm gemm_of(Strided const& a, Strided const& b, Strided const& y) {
  bool const row = a.sizes.size() == 1, column = b.sizes.size() == 1;
  auto const last = [](base::Shape const& list, std::size_t back) { return list[list.size() - back]; };
  auto const lead = y.sizes.size() - !row - !column;
  Gemm g{.dtype = a.dtype, .m = row ? 1 : last(a.sizes, 2), .n = column ? 1 : last(b.sizes, 1), .k = last(a.sizes, 1)};
  g.a = {a.data, row ? 0 : last(a.strides, 2), last(a.strides, 1)};
  g.b = {b.data, column ? last(b.strides, 1) : last(b.strides, 2), column ? 0 : last(b.strides, 1)};
  g.c = {y.data, row ? 0 : y.strides[lead], column ? 0 : last(y.strides, 1)};
  auto const own = [](Strided const& x) { return x.sizes.size() > 2 ? x.sizes.size() - 2 : 0; };
  g.batch.assign(std::span(y.sizes).first(lead));
  g.a_batch.assign(lead_strides(a, own(a), lead)), g.b_batch.assign(lead_strides(b, own(b), lead)), g.c_batch.assign(lead_strides(y, lead, lead));
  if (!g.b_batch.empty() && own(b) == 0 && !row && lead > 0) {  // one right operand: rows of all entries are rows of one product, if they follow each other
    bool follows = true;
    auto rows = g.m;
    for (std::size_t d = lead; d-- > 0; rows *= g.batch[d])
      follows = follows && (g.batch[d] == 1 || (g.a_batch[d] == rows * g.a.row_stride && g.c_batch[d] == rows * g.c.row_stride));
    if (follows) g.m = rows, g.batch.clear(), g.a_batch.clear(), g.b_batch.clear(), g.c_batch.clear();
  }
  return g;
}

}  // namespace tenon::fusion
