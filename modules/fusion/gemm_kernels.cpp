// Products and conversions, compiled once an instruction set (TENON_ISA): the build renames Eigen for each, so that the linker never takes an
// inline function of one for another's.
#include "gemm_kernels.h"

#include <Eigen/Core>

namespace tenon::fusion::kernels {
namespace {

template <class T, int order>
using Stored = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, order>;
template <class T, int order>
using View = Eigen::Map<Stored<T, order> const, 0, Eigen::OuterStride<>>;

template <class T, int a_order, int b_order>
void multiply(Product<T> const& p) {
  View<T, a_order> const a(p.a, p.m, p.k, Eigen::OuterStride<>(a_order == Eigen::RowMajor ? p.a_row : p.a_column));
  View<T, b_order> const b(p.b, p.k, p.n, Eigen::OuterStride<>(b_order == Eigen::RowMajor ? p.b_row : p.b_column));
  Eigen::Map<Stored<T, Eigen::RowMajor>, 0, Eigen::OuterStride<>> c(p.c, p.m, p.n, Eigen::OuterStride<>(p.c_row));
  if (p.accumulate)
    c.noalias() += a * b;
  else
    c.noalias() = a * b;
}
template <class T>
void product(Product<T> const& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {  // sums of nothing
    for (std::int64_t i = 0; i < p.m && !p.accumulate; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) p.c[i * p.c_row + j] = 0;
    return;
  }
  constexpr int row = Eigen::RowMajor, column = Eigen::ColMajor;
  bool const a_rows = p.a_column == 1, b_rows = p.b_column == 1;
  auto* const act = a_rows ? (b_rows ? multiply<T, row, row> : multiply<T, row, column>) : (b_rows ? multiply<T, column, row> : multiply<T, column, column>);
  act(p);
}

float of_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }

void widen_bf16(std::uint16_t const* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = of_bits(std::uint32_t(from[i]) << 16);
}
void narrow_bf16(float const* from, std::uint16_t* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t const bits = bits_of(from[i]), nan = (bits >> 16) | 0x40, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to[i] = static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
}
// The exponents of f16 and f32 differ by 112; a multiplication shifts them, and denormals become normal on the way.
void widen_f16(std::uint16_t const* from, float* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t const half = from[i], sign = (half & 0x8000) << 16, rest = half & 0x7fff;
    std::uint32_t const special = (rest << 13) | 0x7f800000, finite = bits_of(of_bits(rest << 13) * 0x1p112f);
    to[i] = of_bits(sign | (rest >= 0x7c00 ? special : finite));
  }
}
void narrow_f16(float const* from, std::uint16_t* to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t const bits = bits_of(from[i]), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    std::uint32_t const normal = (size + 0xfff + ((size >> 13) & 1) - (112u << 23)) >> 13;
    std::uint32_t const tiny = bits_of(of_bits(size) + 0.5f) - 0x3f000000;  // the addition rounds at the denormals' last bit, 2^-24
    std::uint32_t const finite = size < (113u << 23) ? tiny : normal;
    std::uint32_t const beyond = size > 0x7f800000 ? 0x7e00 | ((size >> 13) & 0x1ff) : 0x7c00;
    to[i] = static_cast<std::uint16_t>(sign | (size >= 0x477ff000 ? beyond : finite));
  }
}

}  // namespace

constinit Table const TENON_ISA{.product_f32 = product<float>,
                                .product_f64 = product<double>,
                                .widen_bf16 = widen_bf16,
                                .widen_f16 = widen_f16,
                                .narrow_bf16 = narrow_bf16,
                                .narrow_f16 = narrow_f16};

}  // namespace tenon::fusion::kernels
