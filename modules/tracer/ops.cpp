module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import :session;

namespace tenon::tracer {
namespace ops = ir::ops;
using ir::Attrs;

namespace {
thread_local GeneratorState generator;
Arg optional(Tensor const& tensor, At at) { return tensor.defined() ? Arg(tensor, at) : Arg(Scalar(), at); }
Scalar optional(std::optional<double> number) { return number ? Scalar(*number) : Scalar(); }
Attrs reduced(DimList const& dims, bool keepdim) { return Attrs{}.with(dims).with(Dim(keepdim)); }
// The next stream of this thread's generator as two counter attributes.
Attrs& with_stream(Attrs& attrs) { return attrs.with(Dim(static_cast<std::int64_t>(generator.seed))).with(Dim(static_cast<std::int64_t>(generator.offset++))); }
}  // namespace

Tensor clamp(Tensor const& x, std::optional<double> min, std::optional<double> max, At at) {
  return apply(ops::clamp, {x}, Attrs{}.with_num(optional(min)).with_num(optional(max)), at);
}
Tensor to(Tensor const& x, DType dtype, At at) { return x.dtype() == dtype ? x : apply(ops::to, {x}, Attrs{}.with(dtype), at); }
Tensor to(Tensor const& x, base::Device device, At at) { return x.device() == device ? x : apply(ops::to_device, {x}, Attrs{}.with(device), at); }
Tensor contiguous(Tensor const& x, At at) { return x.is_contiguous() ? x : clone(x, at); }

Tensor sum(Tensor const& x, DimList const& dims, bool keepdim, At at) { return apply(ops::sum, {x}, reduced(dims, keepdim).with(Dim(ir::absent)), at); }
Tensor mean(Tensor const& x, DimList const& dims, bool keepdim, At at) { return apply(ops::mean, {x}, reduced(dims, keepdim).with(Dim(ir::absent)), at); }
Tensor amax(Tensor const& x, DimList const& dims, bool keepdim, At at) { return apply(ops::amax, {x}, reduced(dims, keepdim), at); }
Tensor amin(Tensor const& x, DimList const& dims, bool keepdim, At at) { return apply(ops::amin, {x}, reduced(dims, keepdim), at); }
Tensor argmax(Tensor const& x, std::optional<int> dim, bool keepdim, At at) {
  return apply(ops::argmax, {x}, Attrs{}.with(dim ? Dim(*dim) : Dim(ir::absent)).with(Dim(keepdim)), at);
}
Tensor cumsum(Tensor const& x, int dim, At at) { return apply(ops::cumsum, {x}, Attrs{}.with(Dim(dim)).with(Dim(ir::absent)), at); }
Tensor softmax(Tensor const& x, int dim, At at) { return apply(ops::softmax, {x}, Attrs{}.with(Dim(dim)).with(Dim(ir::absent)), at); }
Tensor log_softmax(Tensor const& x, int dim, At at) { return apply(ops::log_softmax, {x}, Attrs{}.with(Dim(dim)).with(Dim(ir::absent)), at); }

Tensor linear(Tensor const& x, Tensor const& weight, Tensor const& bias, At at) { return apply(ops::linear, {x, weight, optional(bias, at)}, {}, at); }
Tensor conv2d(Tensor const& x, Tensor const& weight, Tensor const& bias, Window const& window, At at) {
  auto const attrs = Attrs{}.with(window.stride).with(window.padding).with(window.dilation).with(Dim(window.groups)).with(Dim(0));
  return apply(ops::conv2d, {x, weight, optional(bias, at)}, attrs, at);
}
Tensor max_pool2d(Tensor const& x, DimList const& kernel, DimList const& stride, DimList const& padding, At at) {
  auto const attrs = Attrs{}.with(kernel).with(stride).with(padding).with(DimList(1)).with(Dim(false)).with(Dim(false));
  return apply(ops::max_pool2d, {x}, attrs, at);
}
Tensor avg_pool2d(Tensor const& x, DimList const& kernel, DimList const& stride, DimList const& padding, At at) {
  auto const attrs = Attrs{}.with(kernel).with(stride).with(padding).with(Dim(false)).with(Dim(true)).with(Dim(ir::absent));
  return apply(ops::avg_pool2d, {x}, attrs, at);
}
Tensor layer_norm(Tensor const& x, DimList const& normalized_shape, Tensor const& weight, Tensor const& bias, double eps, At at) {
  return apply(ops::layer_norm, {x, optional(weight, at), optional(bias, at)}, Attrs{}.with(normalized_shape).with_num(eps), at);
}
Tensor cross_entropy(Tensor const& x, Tensor const& target, LossOptions const& options, At at) {
  return apply(ops::cross_entropy, {x, target, optional(options.weight, at)},
               Attrs{}.with(Dim(options.ignore_index)).with(Dim(static_cast<int>(options.reduction))).with_num(options.label_smoothing), at);
}
Tensor mse_loss(Tensor const& x, Tensor const& target, Reduction reduction, At at) {
  return apply(ops::mse_loss, {x, target}, Attrs{}.with(Dim(static_cast<int>(reduction))), at);
}
Tensor dropout(Tensor const& x, double p, bool training, At at) {
  if (!training) return x;
  Attrs attrs = Attrs{}.with(Dim(true)).with_num(p);
  return apply(ops::dropout, {x}, with_stream(attrs), at);
}
Tensor scaled_dot_product_attention(Tensor const& q, Tensor const& k, Tensor const& v, AttentionOptions const& options, At at) {
  return apply(ops::scaled_dot_product_attention, {q, k, v, optional(options.mask, at)},
               Attrs{}.with(Dim(options.causal)).with(Dim(options.enable_gqa)).with_num(0.0).with_num(optional(options.scale)), at);
}

Tensor reshape(Tensor const& x, DimList const& sizes, At at) { return apply(ops::reshape, {x}, Attrs{}.with(sizes), at); }
Tensor flatten(Tensor const& x, int start_dim, int end_dim, At at) { return apply(ops::flatten, {x}, Attrs{}.with(Dim(start_dim)).with(Dim(end_dim)), at); }
Tensor permute(Tensor const& x, DimList const& dims, At at) { return apply(ops::permute, {x}, Attrs{}.with(dims), at); }
Tensor transpose(Tensor const& x, int dim0, int dim1, At at) { return apply(ops::transpose, {x}, Attrs{}.with(Dim(dim0)).with(Dim(dim1)), at); }
Tensor expand(Tensor const& x, DimList const& sizes, At at) { return apply(ops::expand, {x}, Attrs{}.with(sizes), at); }
Tensor unsqueeze(Tensor const& x, int dim, At at) { return apply(ops::unsqueeze, {x}, Attrs{}.with(Dim(dim)), at); }
Tensor squeeze(Tensor const& x, DimList const& dims, At at) { return apply(ops::squeeze, {x}, Attrs{}.with(dims), at); }
Tensor slice(Tensor const& x, int dim, Dim start, Dim end, Dim step, At at) {
  return apply(ops::slice, {x}, Attrs{}.with(Dim(dim)).with(start).with(end).with(step), at);
}
Tensor select(Tensor const& x, int dim, Dim index, At at) { return apply(ops::select, {x}, Attrs{}.with(Dim(dim)).with(index), at); }
namespace {
Tensor joined(ir::OpDef const& op, std::span<Tensor const> tensors, int dim, At at) {
  std::vector<Arg> parts;
  for (auto const& part : tensors) parts.emplace_back(part, at);
  return apply(op, parts, Attrs{}.with(Dim(dim)), at);
}
}  // namespace
Tensor cat(std::span<Tensor const> tensors, int dim, At at) { return joined(ops::cat, tensors, dim, at); }
Tensor stack(std::span<Tensor const> tensors, int dim, At at) { return joined(ops::stack, tensors, dim, at); }
Tensor embedding(Tensor const& weight, Tensor const& indices, At at) { return apply(ops::embedding, {weight, indices}, {}, at); }
Tensor gather(Tensor const& x, int dim, Tensor const& index, At at) { return apply(ops::gather, {x, index}, Attrs{}.with(Dim(dim)), at); }
Tensor index_select(Tensor const& x, int dim, Tensor const& index, At at) { return apply(ops::index_select, {x, index}, Attrs{}.with(Dim(dim)), at); }
Tensor tril(Tensor const& x, int diagonal, At at) { return apply(ops::tril, {x}, Attrs{}.with(Dim(diagonal)), at); }
Tensor nonzero(Tensor const& x, At at) { return apply(ops::nonzero, {x}, {}, at); }
Tensor masked_select(Tensor const& x, Tensor const& mask, At at) { return apply(ops::masked_select, {x, mask}, {}, at); }
Unique unique(Tensor const& x, UniqueOptions options, At at) {
  std::array const operands{Arg(x, at)};
  auto results =
      apply_all(ops::unique, operands,
                Attrs{}.with(Dim(true)).with(Dim(options.inverse)).with(Dim(options.counts)).with(options.dim ? Dim(*options.dim) : Dim(ir::absent)), at);
  return {results[0], options.inverse ? results[1] : Tensor(), options.counts ? results[2] : Tensor()};
}

namespace {
template <class T>
Tensor from_host(std::span<T const> elements, DimList const& sizes, DType dtype) {
  auto result = allocate(ir::contiguous_meta(dtype, {}, sizes));
  if (std::cmp_not_equal(result.numel(), elements.size())) base::fail("tensor: {} elements do not fill {}", elements.size(), base::to_string(result.shape()));
  auto const memory = memory_of(*result.impl());
  for (std::size_t i = 0; i < elements.size(); ++i)
    if constexpr (std::is_integral_v<T>)
      memory.set_whole(static_cast<std::int64_t>(i), elements[i]);
    else
      memory.set(static_cast<std::int64_t>(i), elements[i]);
  return result;
}
}  // namespace
Tensor tensor(std::span<double const> elements, DimList const& sizes, DType dtype) { return from_host(elements, sizes, dtype); }
Tensor tensor(std::initializer_list<double> elements, DType dtype) {
  return from_host(std::span<double const>(elements.begin(), elements.size()), DimList(elements.size()), dtype);
}
Tensor index_tensor(std::span<std::int64_t const> elements, DimList const& sizes) { return from_host(elements, sizes, DType::i64); }
Tensor from_file(base::FileTensor const& entry) {
  auto result = allocate(ir::contiguous_meta(entry.dtype, {}, DimList(entry.shape)));
  if (!entry.data.empty()) std::memcpy(memory_of(*result.impl()).data, entry.data.data(), entry.data.size());
  return result;
}

Tensor full(DimList const& sizes, Scalar value, DType dtype, At at) {
  return apply(ops::full, std::span<Arg const>(), Attrs{}.with(sizes).with(dtype).with(base::Device{}).with_num(value), at);
}
Tensor arange(Scalar start, Scalar end, Scalar step, At at) {
  return apply(ops::arange, std::span<Arg const>(), Attrs{}.with(Dim(ir::absent)).with(base::Device{}).with_num(start).with_num(end).with_num(step), at);
}
namespace {
Tensor random(ir::OpDef const& op, DimList const& sizes, DType dtype, At at) {
  Attrs attrs = Attrs{}.with(sizes);
  return apply(op, std::span<Arg const>(), with_stream(attrs).with(dtype).with(base::Device{}), at);
}
}  // namespace
Tensor rand(DimList const& sizes, DType dtype, At at) { return random(ops::rand, sizes, dtype, at); }
Tensor randn(DimList const& sizes, DType dtype, At at) { return random(ops::randn, sizes, dtype, at); }
Tensor randint(std::int64_t low, std::int64_t high, DimList const& sizes, At at) {
  Attrs attrs = Attrs{}.with(Dim(low)).with(Dim(high)).with(sizes);
  return apply(ops::randint, std::span<Arg const>(), with_stream(attrs).with(DType::i64).with(base::Device{}), at);
}
Tensor randperm(Dim n, At at) {
  Attrs attrs = Attrs{}.with(n);
  return apply(ops::randperm, std::span<Arg const>(), with_stream(attrs).with(base::Device{}), at);
}
void manual_seed(std::uint64_t seed) { generator = {seed, 0}; }
GeneratorState generator_state() { return generator; }
void set_generator_state(GeneratorState state) { generator = state; }

}  // namespace tenon::tracer
