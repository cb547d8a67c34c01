module tenon.nn;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

// B batch, T tokens, C features or channels.
namespace tenon::nn {
using base::fail;
using tracer::Arg;
using tracer::NoGrad;

namespace {
// A parameter uniform in ±1/√fan_in.
Tensor uniform_parameter(DimList const& sizes, std::int64_t fan_in) {
  NoGrad const off;
  double const bound = fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
  return (tracer::rand(sizes) * (2 * bound) - bound).set_requires_grad();
}
Tensor normal_parameter(DimList const& sizes, double deviation) {
  NoGrad const off;
  return (tracer::randn(sizes) * deviation).set_requires_grad();
}
void check_size(std::string_view layer, std::string_view what, std::int64_t size, std::int64_t least = 0) {
  if (size < least) fail("{}: {} must be at least {}, not {}", layer, what, least, size);
}
constexpr double gpt_deviation = 0.02;  // Radford et al. 2019, for every weight but the norms'
Linear gpt_linear(std::int64_t in, std::int64_t out) {
  Linear layer;
  layer.weight = normal_parameter({out, in}, gpt_deviation);
  layer.bias = tracer::zeros(out).set_requires_grad();
  return layer;
}
Embedding gpt_embedding(std::int64_t rows, std::int64_t features) {
  Embedding layer;
  layer.weight = normal_parameter({rows, features}, gpt_deviation);
  return layer;
}
void check(GptConfig const& config) {
  check_size("gpt", "vocabulary", config.vocabulary, 1);
  check_size("gpt", "context", config.context, 1);
  check_size("gpt", "layers", config.layers);
  check_size("gpt", "heads", config.heads, 1);
  check_size("gpt", "features", config.features, 1);
  if (config.features % config.heads != 0) fail("gpt: {} features are not divisible by {} heads", config.features, config.heads);
}
}  // namespace

Linear::Linear(std::int64_t in, std::int64_t out, bool with_bias) {
  check_size("linear", "the input size", in), check_size("linear", "the output size", out);
  weight = uniform_parameter({out, in}, in);
  if (with_bias) bias = uniform_parameter(out, in);
}
Tensor Linear::operator()(Tensor const& x, base::At at) const {
  tracer::ModuleScope const scope(*this);
  return tracer::linear(x, weight, bias, at);
}

Conv2d::Conv2d(std::int64_t in, std::int64_t out, DimList const& kernel, tracer::Window how, bool with_bias) : window(std::move(how)) {
  check_size("conv2d", "groups", window.groups, 1);
  check_size("conv2d", "input channels", in, 1), check_size("conv2d", "output channels", out, 1);
  if (in % window.groups != 0 || out % window.groups != 0)
    fail("conv2d: {} input and {} output channels are not both divisible by {} groups", in, out, window.groups);
  if (kernel.empty() || kernel.size() > 2) fail("conv2d: a kernel has one size or two, not {}", kernel.size());
  std::int64_t const height = kernel[0].value, width = kernel.back().value, depth = in / window.groups;
  check_size("conv2d", "the kernel", std::min(height, width), 1);
  weight = uniform_parameter({out, depth, height, width}, depth * height * width);
  if (with_bias) bias = uniform_parameter(out, depth * height * width);
}
Tensor Conv2d::operator()(Tensor const& x, base::At at) const {
  tracer::ModuleScope const scope(*this);
  return tracer::conv2d(x, weight, bias, window, at);
}

Embedding::Embedding(std::int64_t rows, std::int64_t features) {
  check_size("embedding", "rows", rows), check_size("embedding", "features", features);
  weight = normal_parameter({rows, features}, 1);
}
Tensor Embedding::operator()(Tensor const& indices, base::At at) const {
  tracer::ModuleScope const scope(*this);
  return tracer::embedding(weight, indices, at);
}

LayerNorm::LayerNorm(std::int64_t features, double epsilon) : eps(epsilon) {
  check_size("layer_norm", "features", features, 1);
  weight = tracer::ones(features).set_requires_grad();
  bias = tracer::zeros(features).set_requires_grad();
}
Tensor LayerNorm::operator()(Tensor const& x, base::At at) const {
  tracer::ModuleScope const scope(*this);
  return tracer::layer_norm(x, {weight.dim(0, at)}, weight, bias, eps, at);
}

GptBlock::GptBlock(GptConfig const& config) : norm1(config.features), norm2(config.features), heads(config.heads) {
  check(config);
  auto const features = config.features;
  qkv = gpt_linear(features, 3 * features);
  projection = gpt_linear(features, features);
  up = gpt_linear(features, 4 * features);
  down = gpt_linear(4 * features, features);
}
Tensor GptBlock::operator()(Tensor const& x, base::At at) const {
  tracer::ModuleScope const scope(*this);
  Dim const batch = x.dim(0, at), tokens = x.dim(1, at), features = x.dim(2, at);
  Tensor const packed = tracer::reshape(qkv(norm1(x, at), at), {batch, tokens, 3, heads, features / Dim(heads)}, at);
  Tensor const parts = tracer::permute(packed, {2, 0, 3, 1, 4}, at);  // [3, B, heads, T, C / heads]
  auto const part = [&](std::int64_t k) { return tracer::select(parts, 0, k, at); };
  Tensor const mixed = tracer::scaled_dot_product_attention(part(0), part(1), part(2), {.causal = true}, at);
  Tensor const joined = tracer::reshape(tracer::transpose(mixed, 1, 2, at), {batch, tokens, features}, at);
  Tensor const attended = x + Arg(projection(joined, at), at);
  return attended + Arg(down(tracer::gelu(up(norm2(attended, at), at), tracer::Gelu::tanh, at), at), at);
}

Gpt::Gpt(GptConfig const& how) : config(how) {
  check(config);
  tokens = gpt_embedding(config.vocabulary, config.features);
  positions = gpt_embedding(config.context, config.features);
  for (std::int64_t k = 0; k < config.layers; ++k) blocks.emplace_back(config);
  norm = LayerNorm(config.features);
}
Tensor Gpt::operator()(Tensor const& indices, base::At at) const {
  if (indices.rank() != 2) fail("gpt: indices must be [batch, tokens], not {}", ir::to_string(indices.meta()));
  if (indices.size(1) > config.context) fail("gpt: {} tokens exceed the context of {}", indices.size(1), config.context);
  Tensor const places = tracer::slice(positions.weight, 0, 0, indices.dim(1, at), 1, at);
  Tensor x = tokens(indices, at) + Arg(places, at);
  for (auto const& block : blocks) x = block(x, at);
  return tracer::linear(norm(x, at), tokens.weight, {}, at);
}

}  // namespace tenon::nn
