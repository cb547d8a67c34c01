// OpenBLAS and oneDNN through their C functions, found at run time: no header or link dependency, and nothing lost where they are missing.
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
void* opened(std::initializer_list<char const*> names) {
  for (auto const* name : names)
    if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

template <class T>
using Gemm = void(int order, int turn_a, int turn_b, int m, int n, int k, T alpha, T const* a, int lda, T const* b, int ldb, T beta, T* c, int ldc);
struct OpenBlas {
  Gemm<float>* sgemm = nullptr;
  Gemm<double>* dgemm = nullptr;
  bool ready = false;
  OpenBlas() {
    void* const library = opened({"libopenblas.so.0"});
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

struct OneDnn {
  int (*sgemm)(char turn_a, char turn_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, float const* a, std::int64_t lda, float const* b,
               std::int64_t ldb, float beta, float* c, std::int64_t ldc) = nullptr;
  void (*set_threads)(int) = nullptr;  // of OpenMP, for the calling thread
  bool ready = false;
  OneDnn() {
    void* const library = opened({"libdnnl.so.3", "libdnnl.so.2"});
    void* const threads = library ? opened({"libgomp.so.1"}) : nullptr;
    ready = threads && bind(library, "dnnl_sgemm", sgemm) && bind(threads, "omp_set_num_threads", set_threads);
  }
};
OneDnn const& dnn() {
  static OneDnn const library;
  return library;
}
void call_dnn(Product<float> const& p) {
  if (!sayable(p)) return here().product_f32(p);
  thread_local bool single = false;
  if (!std::exchange(single, true)) dnn().set_threads(1);
  int const status = dnn().sgemm(p.a_column == 1 ? 'N' : 'T', p.b_column == 1 ? 'N' : 'T', p.m, p.n, p.k, 1, p.a, a_line(p), p.b, b_line(p),
                                 p.accumulate ? 1.0f : 0.0f, p.c, p.c_row);
  if (status != 0) here().product_f32(p);
}
}  // namespace

Products const* openblas() {
  static constexpr Products products{.f32 = [](Product<float> const& p) { call_blas(p, blas().sgemm, here().product_f32); },
                                     .f64 = [](Product<double> const& p) { call_blas(p, blas().dgemm, here().product_f64); }};
  return blas().ready ? &products : nullptr;
}
Products const* onednn() {
  static constexpr Products products{.f32 = call_dnn};
  return dnn().ready ? &products : nullptr;
}

}  // namespace tenon::fusion::kernels
