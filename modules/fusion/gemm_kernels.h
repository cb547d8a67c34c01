#pragma once
// What the sources that are compiled once an instruction set offer to the layer: plain C++ without modules, one table each.
#include <cstdint>

namespace tenon::fusion::kernels {

/// c = a b, or c += a b: a [m, k] and b [k, n] with a stride of 1 along rows or columns, c [m, n] with `c_row` from row to row. Strides in elements.
template <class T>
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  T const* a = nullptr;
  std::int64_t a_row = 0, a_column = 1;
  T const* b = nullptr;
  std::int64_t b_row = 0, b_column = 1;
  T* c = nullptr;
  std::int64_t c_row = 0;
  bool accumulate = false;
};

/// One instruction set's functions. Narrowing rounds to nearest even.
struct Table {
  void (*product_f32)(Product<float> const&);
  void (*product_f64)(Product<double> const&);
  void (*widen_bf16)(std::uint16_t const* from, float* to, std::int64_t n);
  void (*widen_f16)(std::uint16_t const* from, float* to, std::int64_t n);
  void (*narrow_bf16)(float const* from, std::uint16_t* to, std::int64_t n);
  void (*narrow_f16)(float const* from, std::uint16_t* to, std::int64_t n);
};
/// Its products are Eigen's.
extern Table const baseline, avx2, avx512;
/// The table for this processor.
Table const& here();

/// Products of one engine, one thread each; null where it has none of that type.
struct Products {
  void (*f32)(Product<float> const&) = nullptr;
  void (*f64)(Product<double> const&) = nullptr;
};
/// Products in blocks of registers, the toolkit's own.
namespace blocks {
extern Products const baseline, avx2, avx512;
}
Products const& blocks_here();
/// A library's, loaded at the first call; null if this machine lacks it. What its conventions can't say is computed by `here()`.
Products const *openblas(), *onednn();

}  // namespace tenon::fusion::kernels
