// oneDNN through its C functions, found at run time. Its products of bf16 run on matrix tiles (AMX) where the processor has them; those need the
// primitives of version 2, whose descriptions are plain memory of a size that only its headers tell: what is set aside here is several times that.
#include <dlfcn.h>

#include "gemm_kernels.h"
import std;

namespace tenon::fusion::kernels {
namespace {

struct alignas(64) MatrixDescription {
  std::byte bytes[4096];
};
struct alignas(64) ProductDescription {
  std::byte bytes[16384];
};
struct Argument {
  int place;
  void* memory;
};
constexpr int type_bf16 = 2, cpu_engine = 1, in_order = 1, at_a = 1, at_b = 33, at_c = 17;  // oneDNN's numbers

struct OneDnn {
  int (*sgemm)(char turn_a, char turn_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, float const* a, std::int64_t lda, float const* b,
               std::int64_t ldb, float beta, float* c, std::int64_t ldc) = nullptr;
  int (*describe)(void* matrix, int dims, std::int64_t const* sizes, int type, std::int64_t const* strides) = nullptr;
  int (*describe_product)(void* product, void const* a, void const* b, void const* bias, void const* c) = nullptr;
  int (*prepare)(void** prepared, void const* product, void const* attributes, void* engine, void const* hint) = nullptr;
  int (*create)(void** primitive, void* prepared) = nullptr;
  int (*forget)(void* prepared) = nullptr;
  int (*hold)(void** memory, void const* matrix, void* engine, void* data) = nullptr;
  int (*point)(void* memory, void* data) = nullptr;
  int (*execute)(void* primitive, void* stream, int count, Argument const* arguments) = nullptr;
  int (*create_engine)(void** engine, int kind, std::size_t index) = nullptr;
  int (*create_stream)(void** stream, void* engine, unsigned flags) = nullptr;
  int (*wait)(void* stream) = nullptr;
  void (*set_threads)(int) = nullptr;  // of OpenMP, for the calling thread
  bool ready = false, small = false;
  void* engine = nullptr;

  static void* opened(std::initializer_list<char const*> names) {
    for (auto const* name : names)
      if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    return nullptr;
  }
  OneDnn() {
    void* const library = opened({"libdnnl.so.2", "libdnnl.so.3"});
    void* const threads = library ? opened({"libgomp.so.1"}) : nullptr;
    auto const bind = [](void* from, char const* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(from, name));
      return function != nullptr;
    };
    ready = threads && bind(library, "dnnl_sgemm", sgemm) && bind(threads, "omp_set_num_threads", set_threads);
    small = ready && bind(library, "dnnl_memory_desc_init_by_strides", describe) && bind(library, "dnnl_matmul_desc_init", describe_product) &&
            bind(library, "dnnl_primitive_desc_create", prepare) && bind(library, "dnnl_primitive_create", create) &&
            bind(library, "dnnl_primitive_desc_destroy", forget) && bind(library, "dnnl_memory_create", hold) &&
            bind(library, "dnnl_memory_set_data_handle", point) && bind(library, "dnnl_primitive_execute", execute) &&
            bind(library, "dnnl_engine_create", create_engine) && bind(library, "dnnl_stream_create", create_stream) &&
            bind(library, "dnnl_stream_wait", wait) && create_engine(&engine, cpu_engine, 0) == 0;
  }
};
OneDnn const& dnn() {
  static OneDnn const library;
  return library;
}
// Rows of results are split by who calls; OpenMP's number of threads belongs to each thread.
void stay_single() {
  thread_local bool single = false;
  if (!std::exchange(single, true)) dnn().set_threads(1);
}

void in_f32(Product<float> const& p) {
  auto const orderly = [](std::int64_t line, std::int64_t length) { return line >= length; };
  bool const a = p.a_column == 1, b = p.b_column == 1;
  auto const a_line = a ? p.a_row : p.a_column, b_line = b ? p.b_row : p.b_column;
  bool const sayable = p.m > 0 && p.n > 0 && p.k > 0 && orderly(a_line, a ? p.k : p.m) && orderly(b_line, b ? p.n : p.k) && orderly(p.c_row, p.n);
  stay_single();
  if (!sayable || dnn().sgemm(a ? 'N' : 'T', b ? 'N' : 'T', p.m, p.n, p.k, 1, p.a, a_line, p.b, b_line, p.accumulate ? 1.0f : 0.0f, p.c, p.c_row) != 0)
    here().product_f32(p);
}

// A product made ready for one shape and layout, and the memory that it is pointed at. Kept for as long as the thread lives.
struct Ready {
  void *primitive = nullptr, *a = nullptr, *b = nullptr, *c = nullptr;
};
Ready ready_for(Product<std::uint16_t> const& p) {
  auto const& d = dnn();
  MatrixDescription a, b, c;
  ProductDescription product;
  auto const described = [&](MatrixDescription& matrix, std::int64_t rows, std::int64_t columns, std::int64_t row, std::int64_t column) {
    std::array const sizes{rows, columns}, strides{row, column};
    return d.describe(&matrix, 2, sizes.data(), type_bf16, strides.data()) == 0;
  };
  Ready ready;
  void* prepared = nullptr;
  bool const known = described(a, p.m, p.k, p.a_row, p.a_column) && described(b, p.k, p.n, p.b_row, p.b_column) && described(c, p.m, p.n, p.c_row, 1) &&
                     d.describe_product(&product, &a, &b, nullptr, &c) == 0 && d.prepare(&prepared, &product, nullptr, d.engine, nullptr) == 0;
  if (!known) return {};
  bool const made = d.create(&ready.primitive, prepared) == 0 && d.hold(&ready.a, &a, d.engine, nullptr) == 0 && d.hold(&ready.b, &b, d.engine, nullptr) == 0 &&
                    d.hold(&ready.c, &c, d.engine, nullptr) == 0;
  d.forget(prepared);
  return made ? ready : Ready{};
}
bool in_bf16(Product<std::uint16_t> const& p) {
  auto const& d = dnn();
  if (!d.small || p.accumulate || p.m == 0 || p.n == 0 || p.k == 0) return false;
  if ((p.a_column == 1 ? p.a_row < p.k : p.a_column < p.m) || (p.b_column == 1 ? p.b_row < p.n : p.b_column < p.k) || p.c_row < p.n) return false;
  stay_single();
  thread_local std::map<std::array<std::int64_t, 8>, Ready> all;
  thread_local void* const stream = [&] {
    void* made = nullptr;
    return d.create_stream(&made, d.engine, in_order) == 0 ? made : nullptr;
  }();
  if (all.size() >= 1024) return false;  // sizes that never come again
  auto const [place, fresh] = all.try_emplace({p.m, p.n, p.k, p.a_row, p.a_column, p.b_row, p.b_column, p.c_row});
  if (fresh) place->second = ready_for(p);
  auto const& ready = place->second;
  if (!stream || !ready.primitive) return false;
  std::array const arguments{Argument{at_a, ready.a}, Argument{at_b, ready.b}, Argument{at_c, ready.c}};
  auto const at = [&](void* memory, std::uint16_t const* data) { return d.point(memory, const_cast<std::uint16_t*>(data)) == 0; };
  return at(ready.a, p.a) && at(ready.b, p.b) && at(ready.c, p.c) && d.execute(ready.primitive, stream, 3, arguments.data()) == 0 && d.wait(stream) == 0;
}
}  // namespace

Products const* onednn() {
  static constexpr Products products{.f32 = in_f32, .bf16 = in_bf16};
  return dnn().ready ? &products : nullptr;
}

}  // namespace tenon::fusion::kernels
