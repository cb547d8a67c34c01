export module tenon.fusion:contraction;
import std;
import tenon.base;
import tenon.device;

namespace tenon::fusion {

// Memory whose first byte is the first of a cache line, so that code which peels elements up to a boundary does the same in every thread and run.
template <class T>
struct InLines {
  using value_type = T;
  InLines() = default;
  template <class U>
  InLines(InLines<U> const&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t{64}); }
  bool operator==(InLines const&) const { return true; }
};
template <class T>
using Aligned = std::vector<T, InLines<T>>;

}  // namespace tenon::fusion

export namespace tenon::fusion {

/// Elements of a matrix; strides in elements, of any sign, 0 where all rows or columns are one.
struct Matrix {
  std::byte* data = nullptr;
  std::int64_t row_stride = 0, column_stride = 1;
};

/// Who computes a product: our own blocks of registers, or a library.
enum class Engine : std::uint8_t { blocks, eigen, openblas, onednn };
/// "blocks", "eigen", "openblas", "onednn".
std::string_view name_of(Engine engine);
/// The engine of that name; Error if there is none, or not on this machine.
Engine engine_of(std::string_view name);

/// c = a b, or c += a b, for each entry of a batch: a [m, k], b [k, n] and c [m, n] of one dtype. Small floats are summed in f32 and rounded once.
struct Gemm {
  base::DType dtype = base::DType::f32;
  std::int64_t m = 0, n = 0, k = 0;
  Matrix a{}, b{}, c{};
  bool accumulate = false;
  base::InlineVector<std::int64_t, 4> batch{};                          ///< its sizes, outermost first
  base::InlineVector<std::int64_t, 4> a_batch{}, b_batch{}, c_batch{};  ///< strides over it, in elements
  std::optional<Engine> engine{};                                       ///< none: `preferred` decides
};
/// How many products a call has: the product of the batch's sizes.
std::int64_t entries(Gemm const& gemm);

/// A part of one entry's result.
struct Tile {
  std::int64_t entry = 0, row = 0, rows = 0, column = 0, columns = 0;
};
/// How results are cut in tiles of up to `rows` and `columns`.
struct Tiling {
  std::int64_t rows = 1, columns = 1;
};
/// As many tiles as keep `threads` busy, and no more: small products stay whole. `whole_rows` cuts rows only, for what comes after each block of them.
enum class Cut : std::uint8_t { any, whole_rows };
Tiling tiling(Gemm const& gemm, int threads, Cut cut = Cut::any);
/// How many tiles that makes, and the k-th of them.
std::int64_t tiles(Gemm const& gemm, Tiling const& tiling);
Tile tile(Gemm const& gemm, Tiling const& tiling, std::int64_t k);

/// Computes one tile on the calling thread; several threads may compute tiles of one call.
void gemm(Gemm const& gemm, Tile const& tile);
/// Rows [low, high) of one entry, on the calling thread.
void gemm_rows(Gemm const& gemm, std::int64_t entry, std::int64_t low, std::int64_t high);
/// All of it, on the threads of `device::parallel`.
void gemm(Gemm const& gemm);

/// The engines that this process can use, blocks and Eigen first; libraries are looked for once.
std::span<Engine const> engines();
/// Who computes if nobody is named, the same in every run: TENON_GEMM=blocks|eigen|openblas|onednn (Error if it is not there), else oneDNN for bf16 where
/// processor and library have matrix tiles, else blocks.
Engine preferred(base::DType dtype);
/// The fastest engine for products of this dtype, layout and size (to a power of two), by timing each that is present for about `seconds` once a process.
Engine fastest(Gemm const& gemm, double seconds = 0.02);

/// An operand of attention [batch, head, time, feature]; strides in elements.
struct Heads {
  std::byte* data = nullptr;
  std::int64_t batch = 0, head = 0, time = 0, feature = 1;
};
/// o = softmax(q kᵀ scale) v for each batch and head, of one dtype; causal: query i sees keys up to i. Small floats are computed in f32.
struct Attention {
  base::DType dtype = base::DType::f32;
  std::int64_t batch = 1, heads = 1, queries = 0, keys = 0, features = 0, value_features = 0;
  double scale = 1;
  bool causal = false;
  Heads q{}, k{}, v{}, o{};
};
/// Queries [low, high) of head `head % heads` of batch `head / heads`, on the calling thread.
void attention(Attention const& call, std::int64_t head, std::int64_t low, std::int64_t high);
/// All of it, on the threads of `device::parallel`.
void attention(Attention const& call);

/// Its gradient: dq, dk and dv from g, what `call.o` got; the weights are computed again and `call.o` is not read.
struct AttentionGrad {
  Attention call{};
  Heads g{}, dq{}, dk{}, dv{};
};
/// One head on the calling thread.
void attention_grad(AttentionGrad const& grad, std::int64_t head);
/// All of it; fewer heads than threads are cut in parts of their queries, whose dk and dv are added in order.
void attention_grad(AttentionGrad const& grad);

}  // namespace tenon::fusion

namespace tenon::fusion {  // for the calls
/// n elements, `stride` apart, as f32 or f64, and back with one rounding.
void load_line(base::DType dtype, std::byte const* from, std::int64_t stride, float* to, std::int64_t n);
void load_line(base::DType dtype, std::byte const* from, std::int64_t stride, double* to, std::int64_t n);
void store_line(base::DType dtype, std::byte* to, std::int64_t stride, float const* from, std::int64_t n);
void store_line(base::DType dtype, std::byte* to, std::int64_t stride, double const* from, std::int64_t n);
}  // namespace tenon::fusion
