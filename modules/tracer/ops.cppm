export module tenon.tracer:ops;
import std;
import tenon.base;
import tenon.ir;
import :tensor;
import :interpreter;

export namespace tenon::tracer {

// Each function is the op of its name in tenon.ir; see there for shapes and formulas. B batch, C channels, H W image.

inline Tensor operator+(Arg a, Arg b) { return apply(ir::ops::add, {a, b}, ir::Attrs{}.with_num(1.0), b.at); }
inline Tensor operator-(Arg a, Arg b) { return apply(ir::ops::sub, {a, b}, ir::Attrs{}.with_num(1.0), b.at); }
inline Tensor operator*(Arg a, Arg b) { return apply(ir::ops::mul, {a, b}, {}, b.at); }
inline Tensor operator/(Arg a, Arg b) { return apply(ir::ops::div, {a, b}, {}, b.at); }
inline Tensor operator-(Arg a) { return apply(ir::ops::neg, {a}, {}, a.at); }
inline Tensor operator>(Arg a, Arg b) { return apply(ir::ops::gt, {a, b}, {}, b.at); }
inline Tensor operator<(Arg a, Arg b) { return apply(ir::ops::lt, {a, b}, {}, b.at); }
inline Tensor operator>=(Arg a, Arg b) { return apply(ir::ops::ge, {a, b}, {}, b.at); }
inline Tensor operator<=(Arg a, Arg b) { return apply(ir::ops::le, {a, b}, {}, b.at); }
inline Tensor eq(Arg a, Arg b) { return apply(ir::ops::eq, {a, b}, {}, b.at); }
inline Tensor ne(Arg a, Arg b) { return apply(ir::ops::ne, {a, b}, {}, b.at); }
Tensor& operator+=(Tensor& a, Arg b);
Tensor& operator-=(Tensor& a, Arg b);
Tensor& operator*=(Tensor& a, Arg b);
Tensor& operator/=(Tensor& a, Arg b);

inline Tensor pow(Arg a, Arg exponent) { return apply(ir::ops::pow, {a, exponent}, {}, exponent.at); }
inline Tensor maximum(Arg a, Arg b) { return apply(ir::ops::maximum, {a, b}, {}, b.at); }
inline Tensor minimum(Arg a, Arg b) { return apply(ir::ops::minimum, {a, b}, {}, b.at); }
inline Tensor where(Arg condition, Arg yes, Arg no) { return apply(ir::ops::where, {condition, yes, no}, {}, condition.at); }

inline Tensor abs(Tensor const& x, At at = At::current()) { return apply(ir::ops::abs, {x}, {}, at); }
inline Tensor exp(Tensor const& x, At at = At::current()) { return apply(ir::ops::exp, {x}, {}, at); }
inline Tensor log(Tensor const& x, At at = At::current()) { return apply(ir::ops::log, {x}, {}, at); }
inline Tensor sqrt(Tensor const& x, At at = At::current()) { return apply(ir::ops::sqrt, {x}, {}, at); }
inline Tensor rsqrt(Tensor const& x, At at = At::current()) { return apply(ir::ops::rsqrt, {x}, {}, at); }
inline Tensor sin(Tensor const& x, At at = At::current()) { return apply(ir::ops::sin, {x}, {}, at); }
inline Tensor cos(Tensor const& x, At at = At::current()) { return apply(ir::ops::cos, {x}, {}, at); }
inline Tensor tanh(Tensor const& x, At at = At::current()) { return apply(ir::ops::tanh, {x}, {}, at); }
inline Tensor sigmoid(Tensor const& x, At at = At::current()) { return apply(ir::ops::sigmoid, {x}, {}, at); }
inline Tensor relu(Tensor const& x, At at = At::current()) { return apply(ir::ops::relu, {x}, {}, at); }
inline Tensor silu(Tensor const& x, At at = At::current()) { return apply(ir::ops::silu, {x}, {}, at); }
enum class Gelu { exact, tanh };
inline Tensor gelu(Tensor const& x, Gelu form = Gelu::exact, At at = At::current()) {
  return apply(ir::ops::gelu, {x}, ir::Attrs{}.with(Dim(form == Gelu::tanh)), at);
}
Tensor clamp(Tensor const& x, std::optional<double> min, std::optional<double> max = {}, At at = At::current());
Tensor to(Tensor const& x, DType dtype, At at = At::current());
/// x itself if it is there, else a copy on the device.
Tensor to(Tensor const& x, base::Device device, At at = At::current());
inline Tensor clone(Tensor const& x, At at = At::current()) { return apply(ir::ops::clone, {x}, {}, at); }
/// x itself if it is row-major, else a row-major copy.
Tensor contiguous(Tensor const& x, At at = At::current());

Tensor sum(Tensor const& x, DimList const& dims = {}, bool keepdim = false, At at = At::current());
Tensor mean(Tensor const& x, DimList const& dims = {}, bool keepdim = false, At at = At::current());
Tensor amax(Tensor const& x, DimList const& dims = {}, bool keepdim = false, At at = At::current());
Tensor amin(Tensor const& x, DimList const& dims = {}, bool keepdim = false, At at = At::current());
Tensor argmax(Tensor const& x, std::optional<int> dim = {}, bool keepdim = false, At at = At::current());
Tensor cumsum(Tensor const& x, int dim, At at = At::current());
Tensor softmax(Tensor const& x, int dim, At at = At::current());
Tensor log_softmax(Tensor const& x, int dim, At at = At::current());

inline Tensor matmul(Arg a, Arg b) { return apply(ir::ops::matmul, {a, b}, {}, b.at); }
Tensor linear(Tensor const& x, Tensor const& weight, Tensor const& bias = {}, At at = At::current());
struct Window {
  DimList stride = 1, padding = 0, dilation = 1;
  int groups = 1;
};
Tensor conv2d(Tensor const& x, Tensor const& weight, Tensor const& bias = {}, Window const& window = {}, At at = At::current());
Tensor max_pool2d(Tensor const& x, DimList const& kernel, DimList const& stride = {}, DimList const& padding = 0, At at = At::current());
Tensor avg_pool2d(Tensor const& x, DimList const& kernel, DimList const& stride = {}, DimList const& padding = 0, At at = At::current());
Tensor layer_norm(Tensor const& x, DimList const& normalized_shape, Tensor const& weight = {}, Tensor const& bias = {}, double eps = 1e-5,
                  At at = At::current());
enum class Reduction { none, mean, sum };
struct LossOptions {
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;
  Tensor weight{};
};
/// -log softmax(x)[target] over classes in dim 1 (dim 0 without a batch).
Tensor cross_entropy(Tensor const& x, Tensor const& target, LossOptions const& options = {}, At at = At::current());
Tensor mse_loss(Tensor const& x, Tensor const& target, Reduction reduction = Reduction::mean, At at = At::current());
Tensor dropout(Tensor const& x, double p, bool training = true, At at = At::current());
struct AttentionOptions {
  Tensor mask{};
  bool causal = false;
  std::optional<double> scale{};
  bool enable_gqa = false;
};
/// softmax(q kᵀ · scale + mask) v over [B, heads, T, features]; scale is 1/√features unless given.
Tensor scaled_dot_product_attention(Tensor const& q, Tensor const& k, Tensor const& v, AttentionOptions const& options = {}, At at = At::current());

Tensor reshape(Tensor const& x, DimList const& sizes, At at = At::current());
Tensor flatten(Tensor const& x, int start_dim = 0, int end_dim = -1, At at = At::current());
Tensor permute(Tensor const& x, DimList const& dims, At at = At::current());
Tensor transpose(Tensor const& x, int dim0, int dim1, At at = At::current());
Tensor expand(Tensor const& x, DimList const& sizes, At at = At::current());
Tensor unsqueeze(Tensor const& x, int dim, At at = At::current());
Tensor squeeze(Tensor const& x, DimList const& dims = {}, At at = At::current());
Tensor slice(Tensor const& x, int dim, Dim start, Dim end = std::numeric_limits<std::int64_t>::max(), Dim step = 1, At at = At::current());
Tensor select(Tensor const& x, int dim, Dim index, At at = At::current());
Tensor cat(std::span<Tensor const> tensors, int dim = 0, At at = At::current());
Tensor stack(std::span<Tensor const> tensors, int dim = 0, At at = At::current());
Tensor embedding(Tensor const& weight, Tensor const& indices, At at = At::current());
Tensor gather(Tensor const& x, int dim, Tensor const& index, At at = At::current());
Tensor index_select(Tensor const& x, int dim, Tensor const& index, At at = At::current());
Tensor tril(Tensor const& x, int diagonal = 0, At at = At::current());
/// Their results' sizes depend on elements: in a compiled function they break the graph unless the operands' elements are there.
Tensor nonzero(Tensor const& x, At at = At::current());
Tensor masked_select(Tensor const& x, Tensor const& mask, At at = At::current());
struct Unique {
  Tensor values, inverse{}, counts{};  ///< inverse and counts only where asked for
};
struct UniqueOptions {
  bool inverse = false, counts = false;
  std::optional<int> dim{};
};
Unique unique(Tensor const& x, UniqueOptions options = {}, At at = At::current());

/// A tensor of these elements, copied from the host.
Tensor tensor(std::span<double const> elements, DimList const& sizes, DType dtype = ir::default_dtype());
Tensor tensor(std::initializer_list<double> elements, DType dtype = ir::default_dtype());
/// A tensor of these integers (i64).
Tensor index_tensor(std::span<std::int64_t const> elements, DimList const& sizes);
/// A copy of an entry of a safetensors file.
Tensor from_file(base::FileTensor const& entry);
Tensor full(DimList const& sizes, Scalar value, DType dtype = ir::default_dtype(), At at = At::current());
inline Tensor zeros(DimList const& sizes, DType dtype = ir::default_dtype(), At at = At::current()) { return full(sizes, 0.0, dtype, at); }
inline Tensor ones(DimList const& sizes, DType dtype = ir::default_dtype(), At at = At::current()) { return full(sizes, 1.0, dtype, at); }
Tensor arange(Scalar start, Scalar end, Scalar step = 1, At at = At::current());
/// Elements from this thread's generator, in the order of the calls whatever runs them.
Tensor rand(DimList const& sizes, DType dtype = ir::default_dtype(), At at = At::current());
Tensor randn(DimList const& sizes, DType dtype = ir::default_dtype(), At at = At::current());
Tensor randint(std::int64_t low, std::int64_t high, DimList const& sizes, At at = At::current());
Tensor randperm(Dim n, At at = At::current());
/// Starts this thread's generator anew.
void manual_seed(std::uint64_t seed);
/// The generator's key and the streams it has given out, to save and restore.
struct GeneratorState {
  std::uint64_t seed = 0, offset = 0;
};
GeneratorState generator_state();
void set_generator_state(GeneratorState state);

}  // namespace tenon::tracer
