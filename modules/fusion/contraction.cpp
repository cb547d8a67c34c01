// Products as tiles, each on one thread: operands that the engines can't read (small floats, two strides) go through panels of f32 or f64.
module;
#include "gemm_kernels.h"
module tenon.fusion;
import std;
import tenon.base;
import tenon.device;

namespace tenon::fusion {
using base::DType;
using kernels::Product;

std::int64_t entries(Gemm const& gemm) { return base::numel(gemm.batch); }

namespace {
std::int64_t parts(std::int64_t size, std::int64_t each) { return (size + each - 1) / each; }
std::int64_t rounded_up(std::int64_t size, std::int64_t step) { return parts(size, step) * step; }

// A matrix with sizes; `data` points at the element of index 0.
struct Block {
  Matrix at;
  std::int64_t rows = 0, columns = 0;
  DType dtype = DType::f32;
  std::byte* element(std::int64_t i, std::int64_t j) const { return at.data + (i * at.row_stride + j * at.column_stride) * base::bytes_of(dtype); }
  // A single row or column has a stride that is never used: then it is 1.
  Block part(std::int64_t row, std::int64_t height, std::int64_t column, std::int64_t width) const {
    bool const lone_row = height <= 1 && at.column_stride != 1, lone_column = width <= 1 && at.row_stride != 1;
    return {.at = {element(row, column), lone_row ? 1 : at.row_stride, lone_column && !lone_row ? 1 : at.column_stride},
            .rows = height,
            .columns = width,
            .dtype = dtype};
  }
  Block turned() const { return {.at = {at.data, at.column_stride, at.row_stride}, .rows = columns, .columns = rows, .dtype = dtype}; }
};

// Memory of this thread that only grows; what it held is lost where it does. One slot an operand.
template <class T>
T* scratch(std::size_t slot, std::int64_t elements) {
  thread_local std::array<Aligned<double>, 3> slots;
  auto& memory = slots[slot];
  auto const needed = static_cast<std::size_t>(elements) * sizeof(T) / sizeof(double) + 1;
  if (memory.size() < needed) memory = Aligned<double>(needed);
  return reinterpret_cast<T*>(memory.data());
}

constexpr bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// One line of n elements, `stride` apart, as T.
template <class T>
void load_as(DType dtype, std::byte const* from, std::int64_t stride, T* to, std::int64_t n) {
  if (dtype == dtype_for<T>) {
    auto const* const x = reinterpret_cast<T const*>(from);
    if (stride == 1) return void(std::copy_n(x, n, to));
    for (std::int64_t i = 0; i < n; ++i) to[i] = x[i * stride];
    return;
  }
  if constexpr (std::is_same_v<T, float>)
    if (is_half(dtype)) {
      auto const* const x = reinterpret_cast<std::uint16_t const*>(from);
      auto* const widen = dtype == DType::bf16 ? kernels::here().widen_bf16 : kernels::here().widen_f16;
      if (stride == 1) return widen(x, to, n);
      std::array<std::uint16_t, 256> piece;
      for (std::int64_t first = 0; first < n; first += 256) {
        auto const count = std::min<std::int64_t>(256, n - first);
        for (std::int64_t i = 0; i < count; ++i) piece[static_cast<std::size_t>(i)] = x[(first + i) * stride];
        widen(piece.data(), to + first, count);
      }
      return;
    }
  auto const step = stride * base::bytes_of(dtype);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(base::load_real(dtype, from + i * step));
}
template <class T>
void store_as(DType dtype, std::byte* to, std::int64_t stride, T const* from, std::int64_t n) {
  if (dtype == dtype_for<T>) {
    auto* const y = reinterpret_cast<T*>(to);
    if (stride == 1) return void(std::copy_n(from, n, y));
    for (std::int64_t i = 0; i < n; ++i) y[i * stride] = from[i];
    return;
  }
  if constexpr (std::is_same_v<T, float>)
    if (is_half(dtype)) {
      auto* const y = reinterpret_cast<std::uint16_t*>(to);
      auto* const narrow = dtype == DType::bf16 ? kernels::here().narrow_bf16 : kernels::here().narrow_f16;
      if (stride == 1) return narrow(from, y, n);
      std::array<std::uint16_t, 256> piece;
      for (std::int64_t first = 0; first < n; first += 256) {
        auto const count = std::min<std::int64_t>(256, n - first);
        narrow(from + first, piece.data(), count);
        for (std::int64_t i = 0; i < count; ++i) y[(first + i) * stride] = piece[static_cast<std::size_t>(i)];
      }
      return;
    }
  auto const step = stride * base::bytes_of(dtype);
  for (std::int64_t i = 0; i < n; ++i) base::store_real(dtype, to + i * step, static_cast<double>(from[i]));
}

}  // namespace

void load_line(DType dtype, std::byte const* from, std::int64_t stride, float* to, std::int64_t n) { load_as(dtype, from, stride, to, n); }
void load_line(DType dtype, std::byte const* from, std::int64_t stride, double* to, std::int64_t n) { load_as(dtype, from, stride, to, n); }
void store_line(DType dtype, std::byte* to, std::int64_t stride, float const* from, std::int64_t n) { store_as(dtype, to, stride, from, n); }
void store_line(DType dtype, std::byte* to, std::int64_t stride, double const* from, std::int64_t n) { store_as(dtype, to, stride, from, n); }

namespace {
bool is_unit(Block const& x) { return x.at.column_stride == 1 || x.at.row_stride == 1; }
template <class T>
bool is_ready(Block const& x) {
  return x.dtype == dtype_for<T> && is_unit(x);
}
// `x` as elements of T with a unit stride: itself, or a copy along its shorter stride.
template <class T>
Block ready(Block const& x, std::size_t slot) {
  if (is_ready<T>(x)) return x;
  T* const copy = scratch<T>(slot, x.rows * x.columns);
  bool const down = std::abs(x.at.row_stride) < std::abs(x.at.column_stride);
  Block const lines = down ? x.turned() : x;
  for (std::int64_t i = 0; i < lines.rows; ++i) load_line(x.dtype, lines.element(i, 0), lines.at.column_stride, copy + i * lines.columns, lines.columns);
  Block const packed{.at = {reinterpret_cast<std::byte*>(copy), lines.columns, 1}, .rows = lines.rows, .columns = lines.columns, .dtype = dtype_for<T>};
  return down ? packed.turned() : packed;
}

// Null: Eigen's, which are in the table of this processor.
kernels::Products const* products_of(Engine engine) {
  switch (engine) {
    case Engine::blocks:
      return &kernels::blocks_here();
    case Engine::openblas:
      return kernels::openblas();
    case Engine::onednn:
      return kernels::onednn();
    case Engine::eigen:
      break;
  }
  return nullptr;
}
// Of the product that a tile is part of: how it is computed must not depend on how it is cut, or bits would depend on threads.
struct Extent {
  std::int64_t rows, columns;
};
template <class T>
Product<T> product_of(Block const& a, Block const& b, Block const& c, bool accumulate, Extent whole) {
  return {.m = c.rows,
          .n = c.columns,
          .k = a.columns,
          .a = reinterpret_cast<T const*>(a.at.data),
          .a_row = a.at.row_stride,
          .a_column = a.at.column_stride,
          .b = reinterpret_cast<T const*>(b.at.data),
          .b_row = b.at.row_stride,
          .b_column = b.at.column_stride,
          .c = reinterpret_cast<T*>(c.at.data),
          .c_row = c.at.row_stride,
          .accumulate = accumulate,
          .narrow = whole.rows <= 1 || whole.columns <= 4};
}
// c (+)= a b where a and b are ready and c has a unit stride.
template <class T>
void multiply(Block const& a, Block const& b, Block const& c, bool accumulate, Engine engine, Extent whole) {
  if (c.at.column_stride != 1) return multiply<T>(b.turned(), a.turned(), c.turned(), accumulate, engine, {whole.columns, whole.rows});
  auto const product = product_of<T>(a, b, c, accumulate, whole);
  auto const* const products = products_of(engine);
  if constexpr (std::is_same_v<T, float>)
    (products && products->f32 ? products->f32 : kernels::here().product_f32)(product);
  else
    (products && products->f64 ? products->f64 : kernels::here().product_f64)(product);
}

// Panels of at most this many rows, columns and terms are converted at a time.
constexpr std::int64_t panel_rows = 512, panel_columns = 512, panel_terms = 512;

template <class T>
void in_panels(Block const& a, Block const& b, Block const& c, bool accumulate, Engine engine, Extent whole) {
  for (std::int64_t i = 0; i < c.rows; i += panel_rows)
    for (std::int64_t j = 0; j < c.columns; j += panel_columns) {
      auto const rows = std::min(panel_rows, c.rows - i), columns = std::min(panel_columns, c.columns - j);
      Block const result = c.part(i, rows, j, columns);
      bool const direct = is_ready<T>(c);
      bool const down = std::abs(c.at.row_stride) < std::abs(c.at.column_stride);
      Block const lines = down ? result.turned() : result;
      Block sum = result;
      if (!direct) {
        T* const sums = scratch<T>(2, rows * columns);
        Block const flat{.at = {reinterpret_cast<std::byte*>(sums), lines.columns, 1}, .rows = lines.rows, .columns = lines.columns, .dtype = dtype_for<T>};
        for (std::int64_t l = 0; l < lines.rows && accumulate; ++l)
          load_line(c.dtype, lines.element(l, 0), lines.at.column_stride, sums + l * lines.columns, lines.columns);
        sum = down ? flat.turned() : flat;
      }
      for (std::int64_t first = 0; first == 0 || first < a.columns; first += panel_terms) {
        auto const terms = std::min(panel_terms, a.columns - first);
        multiply<T>(ready<T>(a.part(i, rows, first, terms), 0), ready<T>(b.part(first, terms, j, columns), 1), sum, accumulate || first > 0, engine, whole);
      }
      if (!direct)
        for (std::int64_t l = 0; l < lines.rows; ++l)
          store_line(c.dtype, lines.element(l, 0), lines.at.column_stride, scratch<T>(2, 0) + l * lines.columns, lines.columns);
    }
}

// A product of bf16 as a library has it: operands and result where they are.
bool in_bf16(Block const& a, Block const& b, Block const& c, Engine engine) {
  auto const* const products = products_of(engine);
  if (!products || !products->bf16 || !is_unit(a) || !is_unit(b) || !is_unit(c)) return false;
  if (c.at.column_stride != 1) return in_bf16(b.turned(), a.turned(), c.turned(), engine);
  return products->bf16(product_of<std::uint16_t>(a, b, c, false, {c.rows, c.columns}));
}

template <class T>
void in_floats(Block const& a, Block const& b, Block const& c, bool accumulate, Engine engine, Extent whole) {
  if (is_ready<T>(a) && is_ready<T>(b) && is_ready<T>(c))
    multiply<T>(a, b, c, accumulate, engine, whole);
  else
    in_panels<T>(a, b, c, accumulate, engine, whole);
}
// Whole numbers wrap; sums of booleans are compared with 0 at the end.
void in_integers(Block const& a, Block const& b, Block const& c, bool accumulate) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(c.columns)), right(static_cast<std::size_t>(b.rows * b.columns));
  for (std::int64_t l = 0, at = 0; l < b.rows; ++l)
    for (std::int64_t j = 0; j < b.columns; ++j) right[static_cast<std::size_t>(at++)] = static_cast<std::uint64_t>(base::load_whole(b.dtype, b.element(l, j)));
  for (std::int64_t i = 0; i < c.rows; ++i) {
    for (std::int64_t j = 0; j < c.columns; ++j)
      sums[static_cast<std::size_t>(j)] = accumulate ? static_cast<std::uint64_t>(base::load_whole(c.dtype, c.element(i, j))) : 0;
    for (std::int64_t l = 0; l < a.columns; ++l) {
      auto const factor = static_cast<std::uint64_t>(base::load_whole(a.dtype, a.element(i, l)));
      auto const* const row = right.data() + l * b.columns;
      for (std::int64_t j = 0; j < c.columns; ++j) sums.data()[j] += factor * row[j];
    }
    for (std::int64_t j = 0; j < c.columns; ++j) base::store_whole(c.dtype, c.element(i, j), static_cast<std::int64_t>(sums[static_cast<std::size_t>(j)]));
  }
}

Block operand(Gemm const& gemm, Matrix matrix, base::InlineVector<std::int64_t, 4> const& strides, std::int64_t entry, std::int64_t rows,
              std::int64_t columns) {
  for (std::size_t d = gemm.batch.size(); d-- > 0; entry /= gemm.batch[d])
    matrix.data += entry % gemm.batch[d] * (strides.empty() ? 0 : strides[d]) * base::bytes_of(gemm.dtype);
  return {.at = matrix, .rows = rows, .columns = columns, .dtype = gemm.dtype};
}
}  // namespace

void gemm(Gemm const& g, Tile const& t) {
  if (t.rows <= 0 || t.columns <= 0) return;
  auto const a = operand(g, g.a, g.a_batch, t.entry, g.m, g.k).part(t.row, t.rows, 0, g.k);
  auto const b = operand(g, g.b, g.b_batch, t.entry, g.k, g.n).part(0, g.k, t.column, t.columns);
  auto const c = operand(g, g.c, g.c_batch, t.entry, g.m, g.n).part(t.row, t.rows, t.column, t.columns);
  if (!base::is_real(g.dtype)) return in_integers(a, b, c, g.accumulate);
  auto const engine = g.engine ? *g.engine : preferred(g.dtype);
  if (g.dtype == DType::bf16 && !g.accumulate && in_bf16(a, b, c, engine)) return;
  g.dtype == DType::f64 ? in_floats<double>(a, b, c, g.accumulate, engine, {g.m, g.n}) : in_floats<float>(a, b, c, g.accumulate, engine, {g.m, g.n});
}
void gemm_rows(Gemm const& g, std::int64_t entry, std::int64_t low, std::int64_t high) {
  gemm(g, Tile{.entry = entry, .row = low, .rows = high - low, .column = 0, .columns = g.n});
}
void gemm(Gemm const& g) {
  auto const cut = tiling(g, device::threads());
  auto const count = tiles(g, cut);
  if (count == 1) return gemm(g, tile(g, cut, 0));
  device::parallel(count, [&](std::int64_t k, int) { gemm(g, tile(g, cut, k)); });
}

// Below this many multiplications a second thread costs more than it brings; a tile narrower than these leaves the engine's registers idle.
constexpr std::int64_t worth_a_thread = 1 << 16, least_rows = 32, least_columns = 64;

Tiling tiling(Gemm const& g, int threads, Cut cut) {
  Tiling whole{.rows = std::max<std::int64_t>(g.m, 1), .columns = std::max<std::int64_t>(g.n, 1)};
  auto const count = std::max<std::int64_t>(entries(g), 1);
  auto const work = static_cast<double>(count) * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(std::max<std::int64_t>(g.k, 1));
  auto const wanted = std::min<std::int64_t>(threads, static_cast<std::int64_t>(work / worth_a_thread));
  if (count >= wanted) return whole;
  auto const pieces = parts(wanted, count);
  // A thread copies its rows of a and its columns of b, so the longer side is cut, unless its pieces would be too narrow.
  bool const by_rows = g.m >= g.n ? g.m >= pieces * least_rows || g.n < pieces * least_columns : g.n < pieces * least_columns && g.m >= pieces * least_rows;
  if (cut == Cut::whole_rows || by_rows)
    whole.rows = std::min(whole.rows, rounded_up(parts(whole.rows, pieces), g.m >= pieces * least_rows ? 16 : 1));
  else
    whole.columns = std::min(whole.columns, std::max(rounded_up(parts(whole.columns, pieces), 16), least_columns));
  return whole;
}
std::int64_t tiles(Gemm const& g, Tiling const& cut) { return g.m == 0 || g.n == 0 ? 0 : entries(g) * parts(g.m, cut.rows) * parts(g.n, cut.columns); }
Tile tile(Gemm const& g, Tiling const& cut, std::int64_t k) {
  auto const across = parts(g.n, cut.columns), down = parts(g.m, cut.rows);
  auto const column = k % across * cut.columns, row = k / across % down * cut.rows;
  return {.entry = k / across / down, .row = row, .rows = std::min(cut.rows, g.m - row), .column = column, .columns = std::min(cut.columns, g.n - column)};
}

}  // namespace tenon::fusion
