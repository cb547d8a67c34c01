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
  bool narrow = false;  ///< the product that this is a part of has hardly rows or columns: as products with vectors
  bool near = false;    ///< operands and result lie in the caches already: nothing is fetched ahead
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
  bool (*bf16)(Product<std::uint16_t> const&) = nullptr;  ///< rounded once; false: not this one
};
/// Products in blocks of registers, the toolkit's own.
namespace blocks {
extern Products const baseline, avx2, avx512;
}
Products const& blocks_here();
/// A library's, loaded at the first call; null if this machine lacks it. What its conventions can't say is computed by `here()`.
Products const *openblas(), *onednn();

/// Queries [low, high) of one head: q [queries, features], k [keys, features], v [keys, value features], each with a stride from row to row.
template <class T>
struct AttentionPart {
  std::int64_t low = 0, high = 0, keys = 0, features = 0, value_features = 0;
  T scale = 1;
  bool causal = false;  ///< query i sees keys up to i
  T const *q = nullptr, *k = nullptr, *v = nullptr, *g = nullptr;
  std::int64_t q_row = 0, k_row = 0, v_row = 0, g_row = 0, out_row = 0;
  T* out = nullptr;                ///< softmax(q kᵀ scale) v; of the gradient: dq
  T *dk = nullptr, *dv = nullptr;  ///< of the gradient, row-major: this part's is added
  T* scratch = nullptr;            ///< as many elements as `scratch` says
};
struct AttentionTable {
  std::int64_t (*scratch_f32)(std::int64_t keys, std::int64_t features, std::int64_t value_features);
  std::int64_t (*scratch_f64)(std::int64_t keys, std::int64_t features, std::int64_t value_features);
  void (*forward_f32)(AttentionPart<float> const&);
  void (*forward_f64)(AttentionPart<double> const&);
  void (*backward_f32)(AttentionPart<float> const&);
  void (*backward_f64)(AttentionPart<double> const&);
};
namespace attention {
extern AttentionTable const baseline, avx2, avx512;
}
AttentionTable const& attention_here();

}  // namespace tenon::fusion::kernels
