#pragma once
// Vectors of the instruction set that a source is compiled for, in the compiler's own vector types. W: lanes.
#include <cstdint>
#include <utility>

namespace tenon::fusion::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(vector_bytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
constexpr int W = vector_bytes / int{sizeof(T)};

template <class T>
Vector<T> load(T const* from) {
  Vector<T> x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
template <class T>
void store(T* to, Vector<T> x) {
  __builtin_memcpy(to, &x, sizeof x);
}

// The two halves of one exchange: lanes `step` apart change places between a and b.
template <class T, int step, int... I>
Vector<T> low_lanes(Vector<T> a, Vector<T> b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I & step) ? W<T> + I - step : I)...);
}
template <class T, int step, int... I>
Vector<T> high_lanes(Vector<T> a, Vector<T> b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, ((I & step) ? W<T> + I : I + step)...);
}
// A square of W x W elements on its side.
template <class T, int step = 1>
void turn_square(Vector<T> (&x)[W<T>]) {
  if constexpr (step < W<T>) {
    using Lanes = std::make_integer_sequence<int, W<T>>;
    for (int r = 0; r < W<T>; ++r)
      if (!(r & step)) {
        auto const a = low_lanes<T, step>(x[r], x[r + step], Lanes{}), b = high_lanes<T, step>(x[r], x[r + step], Lanes{});
        x[r] = a, x[r + step] = b;
      }
    turn_square<T, 2 * step>(x);
  }
}
// to[l * width + i] = from[i * line + l] for l below `length` and i below `lines` <= W; always writes W elements for each l, zeros behind the lines.
template <class T>
void turn(T const* from, std::int64_t line, std::int64_t lines, std::int64_t length, T* to, std::int64_t width) {
  std::int64_t l = 0;
  for (; l + W<T> <= length; l += W<T>) {
    Vector<T> x[W<T>];
    for (int i = 0; i < W<T>; ++i) x[i] = i < lines ? load(from + i * line + l) : Vector<T>{};
    turn_square<T>(x);
    for (int i = 0; i < W<T>; ++i) store(to + (l + i) * width, x[i]);
  }
  for (; l < length; ++l)
    for (int i = 0; i < W<T>; ++i) to[l * width + i] = i < lines ? from[i * line + l] : T{};
}

}  // namespace
}  // namespace tenon::fusion::kernels
