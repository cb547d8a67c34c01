// A product in blocks of registers, compiled once an instruction set: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
// A panel of b of `terms` rows and two vectors stays in the first cache, a block of a in the second; both are copied in the order in which they are
// read, unless they lie well enough and are read too seldom for that to pay. While a panel meets a block the next ones are fetched and copied, a little
// behind each block of registers, so that neither the memory nor the multipliers wait.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <new>

#include "gemm_kernels.h"
#include "vectors.h"

namespace tenon::fusion::kernels {
namespace {

constexpr std::int64_t height = vector_bytes == 64 ? 14 : 6;  // rows of a block of registers: with two vectors each they fill 32 or 16 registers
template <class T>
constexpr std::int64_t terms_at_once = 1024 / std::int64_t{sizeof(T)};
constexpr std::int64_t rows_at_once = 37 * height;
template <class T>
constexpr std::int64_t line_size = 64 / std::int64_t{sizeof(T)};  // elements of a line of the caches

// Lines that will be read soon: as many as a line has elements, `stride` bytes apart, and with each what lies `second` bytes behind it.
struct Fetch {
  char const* at;
  std::int64_t stride, second;
};

// c (+)= a b for R rows and N vectors: a's element (i, l) lies at a[i * a_row + l * a_column], of which one is 1. Each fetch takes line_size terms.
template <class T, bool by_rows, int R, int N>
void block(std::int64_t k, T const* a, std::int64_t line, T const* b, std::int64_t b_row, T* c, std::int64_t c_row, bool accumulate, Fetch const* ahead,
           Fetch const* end) {
  Vector<T> sums[R][N];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) sums[i][j] = Vector<T>{};
  std::int64_t const a_row = by_rows ? line : 1, a_column = by_rows ? 1 : line;
  auto const add_term = [&]() __attribute__((always_inline)) {
    Vector<T> x[N];
    for (int j = 0; j < N; ++j) x[j] = load(b + j * W<T>);
    for (int i = 0; i < R; ++i) {
      T const y = a[i * a_row];
      for (int j = 0; j < N; ++j) sums[i][j] += y * x[j];
    }
    a += a_column, b += b_row;
  };
  for (; ahead != end && k >= line_size<T>; ++ahead, k -= line_size<T>) {
    auto at = ahead->at;
    auto const stride = ahead->stride, second = ahead->second;
#pragma clang loop unroll(disable)
    for (std::int64_t l = 0; l < line_size<T>; ++l) {
      __builtin_prefetch(at, 0, 2), __builtin_prefetch(at + second, 0, 2);
      at += stride;
      add_term();
    }
  }
#pragma clang loop unroll(disable)
  for (; k > 0; --k) add_term();
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < N; ++j) {
      T* const to = c + i * c_row + j * W<T>;
      store(to, accumulate ? load<T>(to) + sums[i][j] : sums[i][j]);
    }
}
template <class T>
using BlockOf = void (*)(std::int64_t, T const*, std::int64_t, T const*, std::int64_t, T*, std::int64_t, bool, Fetch const*, Fetch const*);
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

// Memory of a thread for the copies: two blocks of a, whose last line may be written W elements long, and two panels of b.
template <class T>
struct Copies {
  static constexpr std::int64_t a_size = rows_at_once * terms_at_once<T> + 64, b_size = 2 * W<T> * terms_at_once<T>;
  T* memory = static_cast<T*>(std::aligned_alloc(64, static_cast<std::size_t>(2 * (a_size + b_size)) * sizeof(T)));
  T *a[2]{memory, memory + a_size}, *b[2]{memory + 2 * a_size, memory + 2 * a_size + b_size};
  Copies() {
    if (!memory) throw std::bad_alloc();
  }
  ~Copies() { std::free(memory); }
  Copies(Copies const&) = delete;
  Copies& operator=(Copies const&) = delete;
};

// `have` columns of b as a panel of `width` columns, row by row; what is missing is 0.
template <class T>
void copy_b(T const* b, std::int64_t row, std::int64_t column, std::int64_t k, std::int64_t have, std::int64_t width, T* to) {
  if (column != 1) {
    for (std::int64_t i = 0; i < width; i += W<T>) turn(b + i * column, column, std::clamp<std::int64_t>(have - i, 0, W<T>), k, to + i, width);
  } else if (have == 2 * W<T>) {
    for (std::int64_t l = 0; l < k; ++l) {
      store(to + l * width, load(b + l * row));
      store(to + l * width + W<T>, load(b + l * row + W<T>));
    }
  } else {
    for (std::int64_t l = 0; l < k; ++l)
      for (std::int64_t i = 0; i < width; ++i) to[l * width + i] = i < have ? b[l * row + i] : T{};
  }
}
// Up to `height` rows of a as a panel, term by term.
template <class T>
void copy_a(T const* a, std::int64_t row, std::int64_t column, std::int64_t rows, std::int64_t k, T* to) {
  if (column == 1 && height <= W<T>)
    turn(a, row, rows, k, to, rows);
  else if (row == 1 && rows == height)
    for (std::int64_t l = 0; l < k; ++l) __builtin_memcpy(to + l * height, a + l * column, height * sizeof(T));
  else
    for (std::int64_t l = 0; l < k; ++l)
      for (std::int64_t r = 0; r < rows; ++r) to[l * rows + r] = a[r * row + l * column];
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

constexpr std::int64_t parts(std::int64_t size, std::int64_t each) { return (size + each - 1) / each; }

// A panel of b, columns from j, that meets a block of a, rows from i, for terms from l.
struct Stage {
  std::int64_t l = 0, i = 0, j = 0;
};
// A product as the sequence of its stages. What is copied is counted in units: line_size terms of a panel of b, or of up to `height` rows of a.
template <class T>
class Walk {
 public:
  explicit Walk(Product<T> const& product)
      : p(product),
        terms(parts(p.k, parts(p.k, terms_at_once<T>))),
        a_by_rows(p.a_column == 1),
        a_line(a_by_rows ? p.a_row : p.a_column),
        a_there(p.n <= 4 * W<T> && few_apart<T>(a_line)),
        b_there(p.b_column == 1 && (p.m <= 2 * height || (p.m <= 6 * height && many_apart<T>(p.b_row)))) {}

  void run() {
    thread_local Copies<T> const copies;
    if (a_there) return few_columns(copies);
    Stage now{};
    int a_slot = 0, b_slot = 0;
    copy_block(now, 0, a_units(now), copies.a[0]);
    if (!direct(now)) copy_panel(now, 0, units(now), copies.b[0]);
    while (now.l < p.k) {
      auto const [next, next_block] = behind(now);
      bool const new_block = next.j == 0;
      meet(now, next, next_block, copies.a[a_slot], copies.b[b_slot], copies.a[1 - a_slot], copies.b[1 - b_slot]);
      b_slot = 1 - b_slot, a_slot = new_block ? 1 - a_slot : a_slot;
      now = next;
    }
  }

 private:
  Product<T> const& p;
  std::int64_t terms;
  bool a_by_rows;
  std::int64_t a_line;
  bool a_there, b_there;  // read where they are

  std::int64_t k(Stage const& s) const { return std::min(terms, p.k - s.l); }
  std::int64_t m(Stage const& s) const { return std::min(rows_at_once, p.m - s.i); }
  std::int64_t width(Stage const& s) const { return p.n - s.j > W<T> ? 2 * W<T> : W<T>; }
  std::int64_t have(Stage const& s) const { return std::min(width(s), p.n - s.j); }
  bool direct(Stage const& s) const { return b_there && have(s) == width(s); }
  std::int64_t units(Stage const& s) const { return parts(k(s), line_size<T>); }
  std::int64_t a_units(Stage const& s) const { return parts(m(s), height) * units(s); }
  T const* a(Stage const& s) const { return p.a + s.i * p.a_row + s.l * p.a_column; }
  T const* b(Stage const& s) const { return p.b + s.l * p.b_row + s.j * p.b_column; }

  struct Behind {
    Stage panel, block;  // what follows, and the first stage of the block of a that follows
  };
  Behind behind(Stage const& now) const {
    bool const last_rows = now.i + rows_at_once >= p.m;
    Stage const block{.l = last_rows ? now.l + terms : now.l, .i = last_rows ? 0 : now.i + rows_at_once};
    auto const j = now.j + width(now);
    return {.panel = j < p.n ? Stage{.l = now.l, .i = now.i, .j = j} : block, .block = block};
  }

  void copy_panel(Stage const& s, std::int64_t low, std::int64_t high, T* to) const {
    auto const from = low * line_size<T>, until = std::min(high * line_size<T>, k(s));
    copy_b(b(s) + from * p.b_row, p.b_row, p.b_column, until - from, have(s), width(s), to + from * width(s));
  }
  // Units of a block are those of its first panel, then of its second.
  void copy_block(Stage const& s, std::int64_t low, std::int64_t high, T* to) const {
    auto const each = units(s);
    for (auto unit = low; unit < high;) {
      auto const first = unit % each, last = std::min(each, first + high - unit), i = unit / each * height, rows = std::min<std::int64_t>(height, m(s) - i);
      auto const from = first * line_size<T>, until = std::min(last * line_size<T>, k(s));
      copy_a(a(s) + i * p.a_row + from * p.a_column, p.a_row, p.a_column, rows, until - from, to + i * k(s) + from * rows);
      unit += last - first;
    }
  }

  // What a block of registers fetches at most, in terms of its own: longer lists would not be worked off.
  struct Fetches {
    Fetch of[terms_at_once<T> / line_size<T>];
    int count = 0;
    void add(T const* at, std::int64_t stride, std::int64_t second) {
      if (count < static_cast<int>(std::size(of))) of[count++] = {reinterpret_cast<char const*>(at), stride * std::int64_t{sizeof(T)}, second};
    }
  };
  static constexpr std::int64_t in_line = 64 - std::int64_t{sizeof(T)},
                                in_panel = std::min<std::int64_t>(64, 2 * std::int64_t{vector_bytes} - std::int64_t{sizeof(T)});

  // One or two panels of b stay in the first cache, and each of a's rows is read once, where it is.
  void few_columns(Copies<T> const& copies) const {
    for (Stage now{}; now.l < p.k; now.l += terms) {
      T const* right[2]{};
      for (now.j = 0; now.j < p.n; now.j += width(now)) {
        auto const slot = now.j / (2 * W<T>);
        right[slot] = direct(now) ? b(now) : copies.b[slot];
        if (!direct(now)) copy_panel(now, 0, units(now), copies.b[slot]);
      }
      for (std::int64_t i = 0; i < p.m; i += height)
        for (now.j = 0; now.j < p.n; now.j += width(now)) {
          Fetches ahead;
          multiply(now, i, std::min<std::int64_t>(height, p.m - i), p.a + i * p.a_row + now.l * p.a_column, a_line, right[now.j / (2 * W<T>)], ahead);
        }
    }
  }
  // A block of registers: rows from i on, against a panel.
  void multiply(Stage const& now, std::int64_t i, std::int64_t rows, T const* left, std::int64_t left_line, T const* right, Fetches const& ahead) const {
    auto const wide = width(now), filled = have(now), right_line = direct(now) ? p.b_row : wide;
    bool const accumulate = p.accumulate || now.l > 0;
    T* const to = p.c + i * p.c_row + now.j;
    auto const run = blocks_of<T>[a_there && a_by_rows][wide > W<T>].of[rows - 1];
    if (filled == wide) return run(k(now), left, left_line, right, right_line, to, p.c_row, accumulate, ahead.of, ahead.of + ahead.count);
    alignas(64) T edge[height * 2 * W<T>];
    run(k(now), left, left_line, right, right_line, edge, wide, false, ahead.of, ahead.of + ahead.count);
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t q = 0; q < filled; ++q) to[r * p.c_row + q] = accumulate ? to[r * p.c_row + q] + edge[r * wide + q] : edge[r * wide + q];
  }

  void meet(Stage const& now, Stage const& next, Stage const& next_block, T const* a_copy, T const* b_copy, T* a_next, T* b_next) const {
    auto const blocks = parts(m(now), height);
    T const* const right = direct(now) ? b(now) : b_copy;
    auto const b_left = next.l < p.k && !direct(next) ? units(next) : 0, a_left = next_block.l < p.k ? a_units(next_block) : 0;
    auto const b_each = parts(b_left, blocks), a_each = parts(a_left, parts(p.n, 2 * W<T>) * blocks), a_before = now.j / (2 * W<T>)*blocks * a_each;
    for (std::int64_t block = 0; block < blocks; ++block) {
      auto const i = block * height, rows = std::min<std::int64_t>(height, m(now) - i);
      auto const b_low = std::min(block * b_each, b_left), b_high = std::min(b_low + b_each, b_left);
      auto const a_low = std::min(a_before + block * a_each, a_left), a_high = std::min(a_low + a_each, a_left);
      Fetches ahead;
      if (!p.near) {
        if (block + 1 < blocks) ahead.add(p.c + (now.i + i + height) * p.c_row + now.j, p.c_row, in_panel);
        for (auto unit = b_low; unit < b_high; ++unit) fetch_b(next, unit, ahead);
        for (auto unit = a_low; unit < a_high; ++unit) fetch_a(next_block, unit, ahead);
      }
      multiply(now, now.i + i, rows, a_copy + i * k(now), rows, right, ahead);
      if (b_low < b_high) copy_panel(next, b_low, b_high, b_next);
      if (a_low < a_high) copy_block(next_block, a_low, a_high, a_next);
    }
  }
  void fetch_b(Stage const& s, std::int64_t unit, Fetches& ahead) const {
    T const* const at = b(s) + unit * line_size<T> * p.b_row;
    if (p.b_column == 1) return ahead.add(at, p.b_row, in_panel);
    for (std::int64_t j = 0; j < width(s); j += line_size<T>) ahead.add(at + j * p.b_column, p.b_column, in_line);
  }
  void fetch_a(Stage const& s, std::int64_t unit, Fetches& ahead) const {
    auto const i = unit / units(s) * height, l = unit % units(s) * line_size<T>;
    ahead.add(a(s) + i * p.a_row + l * p.a_column, a_line, in_line);
  }
};

template <class T>
void product(Product<T> const& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.narrow || p.k == 0) return narrow(p);
  Walk<T>(p).run();
}
}  // namespace

constinit Products const blocks::TENON_ISA{.f32 = product<float>, .f64 = product<double>};

}  // namespace tenon::fusion::kernels
