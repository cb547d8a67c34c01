// The tables of this processor, and OpenBLAS through its C functions, found at run time: no header or link dependency, and nothing lost without it.
#include <dlfcn.h>

#include "gemm_kernels.h"
import std;
import tenon.device;

namespace tenon::fusion::kernels {

namespace {
template <class T>
T const& of_this_processor(T const& baseline, T const& avx2, T const& avx512) {
  auto const isa = device::cpu().isa;
  return isa == device::Isa::avx512 ? avx512 : isa == device::Isa::avx2 ? avx2 : baseline;
}
}  // namespace
Table const& here() {
  static Table const& table = of_this_processor(baseline, avx2, avx512);
  return table;
}
Products const& blocks_here() {
  static Products const& products = of_this_processor(blocks::baseline, blocks::avx2, blocks::avx512);
  return products;
}
AttentionTable const& attention_here() {
  static AttentionTable const& table = of_this_processor(attention::baseline, attention::avx2, attention::avx512);
  return table;
}

namespace {
// BLAS wants each line of a matrix behind the one before it.
bool orderly(std::int64_t stride, std::int64_t length) { return stride >= length && stride <= std::numeric_limits<int>::max(); }
template <class T>
bool sayable(Product<T> const& p) {
  bool const a = p.a_column == 1 ? orderly(p.a_row, p.k) : orderly(p.a_column, p.m), b = p.b_column == 1 ? orderly(p.b_row, p.n) : orderly(p.b_column, p.k);
  return p.m > 0 && p.n > 0 && p.k > 0 && a && b && orderly(p.c_row, p.n);
}
template <class T>
std::int64_t a_line(Product<T> const& p) {
  return p.a_column == 1 ? p.a_row : p.a_column;
}
template <class T>
std::int64_t b_line(Product<T> const& p) {
  return p.b_column == 1 ? p.b_row : p.b_column;
}

template <class F>
bool bind(void* library, char const* name, F*& function) {
  function = reinterpret_cast<F*>(::dlsym(library, name));
  return function != nullptr;
}
template <class T>
using Gemm = void(int order, int turn_a, int turn_b, int m, int n, int k, T alpha, T const* a, int lda, T const* b, int ldb, T beta, T* c, int ldc);
struct OpenBlas {
  Gemm<float>* sgemm = nullptr;
  Gemm<double>* dgemm = nullptr;
  bool ready = false;
  OpenBlas() {
    void* const library = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void (*set_threads)(int) = nullptr;
    ready = library && bind(library, "cblas_sgemm", sgemm) && bind(library, "cblas_dgemm", dgemm) && bind(library, "openblas_set_num_threads", set_threads);
    if (ready) set_threads(1);
  }
};
OpenBlas const& blas() {
  static OpenBlas const library;
  return library;
}
constexpr int row_major = 101, as_it_is = 111, turned = 112;  // CBLAS
template <class T>
void call_blas(Product<T> const& p, Gemm<T>* gemm, void (*otherwise)(Product<T> const&)) {
  if (!sayable(p)) return otherwise(p);
  gemm(row_major, p.a_column == 1 ? as_it_is : turned, p.b_column == 1 ? as_it_is : turned, static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k),
       T{1}, p.a, static_cast<int>(a_line(p)), p.b, static_cast<int>(b_line(p)), p.accumulate ? T{1} : T{0}, p.c, static_cast<int>(p.c_row));
}

}  // namespace

Products const* openblas() {
  static constexpr Products products{.f32 = [](Product<float> const& p) { call_blas(p, blas().sgemm, here().product_f32); },
                                     .f64 = [](Product<double> const& p) { call_blas(p, blas().dgemm, here().product_f64); }};
  return blas().ready ? &products : nullptr;
}

}  // namespace tenon::fusion::kernels
