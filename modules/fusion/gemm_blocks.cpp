// A product in blocks of registers, compiled once an instruction set: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
// A panel of b of `terms` rows and two vectors stays in the first cache, blocks of a in the second; both are copied in the order in which they are
// read, unless they lie well enough and are read too seldom for that to pay.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "gemm_kernels.h"
#include "vectors.h"

namespace tenon::fusion::kernels {
namespace {

constexpr int height = vector_bytes == 64 ? 14 : 6;  // rows of a block of registers: with two vectors each they fill 32 or 16 registers
template <class T>
constexpr std::int64_t terms_at_once = 1024 / std::int64_t{sizeof(T)};
constexpr std::int64_t rows_at_once = 12 * height, columns_at_once = 1024;

// c (+)= a b for R rows and N vectors: a's element (i, l) lies at a[i * a_row + l * a_column], of which one is 1.
template <class T, bool by_rows, int R, int N>
void block(std::int64_t k, T const* a, std::int64_t line, T const* b, std::int64_t b_row, T* c, std::int64_t c_row, bool accumulate) {
  Vector<T> sums[R][N];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) sums[i][j] = Vector<T>{};
  std::int64_t const a_row = by_rows ? line : 1, a_column = by_rows ? 1 : line;
  for (std::int64_t l = 0; l < k; ++l) {
    Vector<T> x[N];
    for (int j = 0; j < N; ++j) x[j] = load(b + j * W<T>);
    for (int i = 0; i < R; ++i) {
      T const y = a[i * a_row];
      for (int j = 0; j < N; ++j) sums[i][j] += y * x[j];
    }
    a += a_column, b += b_row;
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) {
      T* const to = c + i * c_row + j * W<T>;
      store(to, accumulate ? load<T>(to) + sums[i][j] : sums[i][j]);
    }
}
template <class T>
using BlockOf = void (*)(std::int64_t, T const*, std::int64_t, T const*, std::int64_t, T*, std::int64_t, bool);
template <class T>
struct Heights {
  BlockOf<T> of[height];
};
template <class T, bool by_rows, int N, int... R>
constexpr Heights<T> heights(std::integer_sequence<int, R...>) {
  return {{block<T, by_rows, R + 1, N>...}};
}
using AllHeights = std::make_integer_sequence<int, height>;
template <class T>
constexpr Heights<T> blocks_of[2][2]{{heights<T, false, 1>(AllHeights{}), heights<T, false, 2>(AllHeights{})},
                                     {heights<T, true, 1>(AllHeights{}), heights<T, true, 2>(AllHeights{})}};

// Memory of a thread for the copies: one block of a, whose last line may be written W elements long, and one of b.
template <class T>
struct Copies {
  static constexpr std::int64_t a_size = rows_at_once * terms_at_once<T> + 64, b_size = columns_at_once * terms_at_once<T>;
  T* a = static_cast<T*>(std::aligned_alloc(64, static_cast<std::size_t>(a_size + b_size) * sizeof(T)));
  T* b = a + a_size;
  Copies() {
    if (!a) throw std::bad_alloc();
  }
  ~Copies() { std::free(a); }
  Copies(Copies const&) = delete;
  Copies& operator=(Copies const&) = delete;
};

// Columns of b in panels of one or two vectors, each row by row; what is missing of the last vector is 0.
template <class T>
void copy_b(T const* b, std::int64_t row, std::int64_t column, std::int64_t k, std::int64_t n, T* to) {
  for (std::int64_t j = 0; j < n;) {
    std::int64_t const width = n - j > W<T> ? 2 * W<T> : W<T>, have = std::min(width, n - j);
    if (column != 1) {
      for (std::int64_t i = 0; i < width; i += W<T>) turn(b + (j + i) * column, column, std::clamp<std::int64_t>(have - i, 0, W<T>), k, to + i, width);
    } else if (have == 2 * W<T>) {
      for (std::int64_t l = 0; l < k; ++l) {
        store(to + l * width, load(b + l * row + j));
        store(to + l * width + W<T>, load(b + l * row + j + W<T>));
      }
    } else {
      for (std::int64_t l = 0; l < k; ++l)
        for (std::int64_t i = 0; i < width; ++i) to[l * width + i] = i < have ? b[l * row + j + i] : T{};
    }
    to += width * k, j += width;
  }
}
// Rows of a in panels of `height`, each term by term.
template <class T>
void copy_a(T const* a, std::int64_t row, std::int64_t column, std::int64_t m, std::int64_t k, T* to) {
  for (std::int64_t i = 0; i < m; i += height) {
    auto const rows = std::min<std::int64_t>(height, m - i);
    if (column == 1 && height <= W<T>)
      turn(a + i * row, row, rows, k, to, rows);
    else if (row == 1 && rows == height)
      for (std::int64_t l = 0; l < k; ++l) __builtin_memcpy(to + l * height, a + i + l * column, height * sizeof(T));
    else
      for (std::int64_t l = 0; l < k; ++l)
        for (std::int64_t r = 0; r < rows; ++r) to[l * rows + r] = a[(i + r) * row + l * column];
    to += rows * k;
  }
}
// Whether the rows of a block of a may be read side by side where they are, and so the many rows of a panel of b: not where they would share too few
// places of the first cache.
template <class T>
bool few_apart(std::int64_t line) {
  return line * std::int64_t{sizeof(T)} % 2048 != 0;
}
template <class T>
bool many_apart(std::int64_t line) {
  return line * std::int64_t{sizeof(T)} % 128 != 0;
}

// Products with vectors are bound by memory and leave blocks of registers empty.
void narrow(Product<float> const& p) { TENON_ISA.product_f32(p); }
void narrow(Product<double> const& p) { TENON_ISA.product_f64(p); }

template <class T>
void product(Product<T> const& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.narrow || p.k == 0) return narrow(p);
  thread_local Copies<T> const copies;
  bool const a_by_rows = p.a_column == 1, a_there = p.n <= 256 && few_apart<T>(a_by_rows ? p.a_row : p.a_column);
  bool const b_there = p.b_column == 1 && (p.m <= 2 * height || (p.m <= 6 * height && many_apart<T>(p.b_row)));
  alignas(64) T edge[height * 2 * W<T>];
  for (std::int64_t j0 = 0; j0 < p.n; j0 += columns_at_once)
    for (std::int64_t l0 = 0; l0 < p.k; l0 += terms_at_once<T>) {
      auto const n = std::min(columns_at_once, p.n - j0), k = std::min(terms_at_once<T>, p.k - l0);
      bool const accumulate = p.accumulate || l0 > 0;
      T const* const b = p.b + l0 * p.b_row + j0 * p.b_column;
      std::int64_t const whole = b_there ? n / W<T> * W<T> : 0;  // columns that are read where they are
      copy_b(b + whole * p.b_column, p.b_row, p.b_column, k, n - whole, copies.b);
      for (std::int64_t i0 = 0; i0 < p.m; i0 += rows_at_once) {
        auto const m = std::min(rows_at_once, p.m - i0);
        T const* const a = p.a + i0 * p.a_row + l0 * p.a_column;
        if (!a_there) copy_a(a, p.a_row, p.a_column, m, k, copies.a);
        T const* b_copy = copies.b;
        for (std::int64_t j = 0; j < n;) {
          std::int64_t const left = j < whole ? whole - j : n - j, width = left > W<T> ? 2 * W<T> : W<T>, have = std::min(width, left);
          bool const direct = j < whole;
          T const* a_copy = copies.a;
          for (std::int64_t i = 0; i < m; i += height) {
            auto const rows = std::min<std::int64_t>(height, m - i);
            auto const run = blocks_of<T>[a_there && a_by_rows][width > W<T>].of[rows - 1];
            T const* const from = a_there ? a + i * p.a_row : a_copy;
            std::int64_t const line = a_there ? (a_by_rows ? p.a_row : p.a_column) : rows;
            T const* const right = direct ? b + j : b_copy;
            T* const to = p.c + (i0 + i) * p.c_row + j0 + j;
            if (have == width) {
              run(k, from, line, right, direct ? p.b_row : width, to, p.c_row, accumulate);
            } else {
              run(k, from, line, right, width, edge, width, false);
              for (std::int64_t r = 0; r < rows; ++r)
                for (std::int64_t q = 0; q < have; ++q) to[r * p.c_row + q] = accumulate ? to[r * p.c_row + q] + edge[r * width + q] : edge[r * width + q];
            }
            a_copy += rows * k;
          }
          if (!direct) b_copy += width * k;
          j += width;
        }
      }
    }
}
}  // namespace

constinit Products const blocks::TENON_ISA{.f32 = product<float>, .f64 = product<double>};

}  // namespace tenon::fusion::kernels
