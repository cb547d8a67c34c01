import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;

namespace support {
namespace {

// A line a call, in the order of the table of ops. Real elements lie in [-2, 2], whole ones in [0, 4], unless a range says otherwise.
constexpr std::string_view table[] = {
    // pointwise, one operand
    "neg(f64[2, 3])",
    "neg(f64[])",
    "neg(i64[3]{-3..3})",
    "abs(f64[2, 3])",
    "abs(i64[3]{-3..3})",
    "exp(f64[2, 3])",
    "exp(i64[3])",
    "expm1(f64[2, 3])",
    "log(f64[2, 3]{0.2..3})",
    "log1p(f64[2, 3]{-0.5..3})",
    "log2(f64[2, 3]{0.2..3})",
    "sqrt(f64[2, 3]{0.2..3})",
    "rsqrt(f64[2, 3]{0.2..3})",
    "reciprocal(f64[2, 3]{0.2..3})",
    "sin(f64[2, 3])",
    "cos(f64[])",
    "tanh(f64[2, 3])",
    "sigmoid(f64[2, 3])",
    "relu(f64[2, 3])",
    "relu(i64[3]{-3..3})",
    "erf(f64[2, 3])",
    "sign(f64[2, 3])",
    "sign(i64[3]{-3..3})",
    "floor(f64[2, 3])",
    "ceil(f64[2, 3])",
    "round(f64[2, 3])",
    "trunc(f64[2, 3])",
    "square(f64[2, 3])",
    "square(i64[3]{-3..3})",
    "gelu(f64[2, 3])",
    "gelu(f64[2, 3], approximate=tanh)",
    "silu(f64[2, 3])",
    "softplus(f64[2, 3])",
    "softplus(f64[2, 3], beta=3.0, threshold=1.0)",
    "leaky_relu(f64[2, 3])",
    "leaky_relu(f64[2, 3], negative_slope=0.3)",
    "isnan(f64[2, 3])",
    "isnan(i64[3])",
    "logical_not(f64[2, 3])",
    "logical_not(bool[3])",
    "to(f64[2, 3], dtype=f64)",
    "to(i64[3], dtype=f64)",
    "to(f64[3], dtype=i64)",
    "to(f64[3], dtype=f32)",
    "clone(f64[2, 3])",
    "clone(bool[0, 3])",
    // pointwise, several
    "add(f64[2, 3], f64[2, 3])",
    "add(f64[2, 3], f64[3], alpha=2.0)",
    "add(f64[2, 1, 3], f64[4, 1])",
    "add(f64[], f64[2])",
    "add(f64[2], 1.5)",
    "add(i64[3], i64[3], alpha=2)",
    "add(f64[0, 3], f64[3])",
    "sub(f64[2, 3], f64[1, 3])",
    "sub(f64[2, 3], f64[2, 3], alpha=0.5)",
    "sub(2.0, f64[3])",
    "sub(i64[3], i64[3])",
    "mul(f64[2, 3], f64[2, 1])",
    "mul(f64[2, 3], 3)",
    "mul(i64[3], i64[1])",
    "div(f64[2, 3], f64[3]{0.5..2})",
    "div(1.0, f64[3]{0.5..2})",
    "div(i64[3], i64[3]{1..3})",
    "pow(f64[2, 3]{0.2..2}, f64[3])",
    "pow(f64[2, 3], 3)",
    "pow(f64[2, 3], 2)",
    "pow(f64[3]{0.2..2}, -0.5)",
    "pow(f64[3], 0)",
    "pow(2.0, f64[3])",
    "pow(i64[3], i64[3])",
    "maximum(f64[2, 3], f64[3])",
    "maximum(i64[3], i64[3])",
    "minimum(f64[2, 3], f64[2, 1])",
    "minimum(i64[3], i64[3])",
    "remainder(f64[2, 3], f64[3]{0.5..2})",
    "remainder(f64[3], -1.5)",
    "remainder(i64[4]{-5..5}, i64[4]{1..3})",
    "floor_divide(f64[2, 3], f64[3]{0.5..2})",
    "floor_divide(i64[4]{-5..5}, i64[4]{1..3})",
    "eq(f64[2, 3], f64[3])",
    "eq(i64[3], 2)",
    "ne(i64[3], i64[3])",
    "lt(f64[2, 3], f64[3])",
    "le(f64[2, 3], 0.5)",
    "gt(f64[2, 3], f64[2, 1])",
    "ge(i64[3], i64[3])",
    "logical_and(bool[3], bool[3])",
    "logical_and(f64[2, 3], i64[3])",
    "logical_or(bool[2, 3], bool[3])",
    "where(bool[2, 3], f64[2, 3], f64[3])",
    "where(bool[3], f64[2, 1], 0.5)",
    "where(bool[2, 3], 1.5, f64[])",
    "where(bool[3], i64[3], i64[3])",
    "masked_fill(f64[2, 3], bool[3], value=0.5)",
    "masked_fill(f64[3], bool[2, 3], value=-1.0)",
    "clamp(f64[2, 3], min=-0.5, max=0.7)",
    "clamp(f64[2, 3], max=0.7)",
    "clamp(f64[2, 3], min=0.3)",
    "lerp(f64[2, 3], f64[3], 0.3)",
    "lerp(f64[2, 3], f64[2, 3], f64[3]{0..1})",
    // reductions and scans
    "sum(f64[2, 3])",
    "sum(f64[2, 3, 4], dim=[0, 2])",
    "sum(f64[2, 3, 4], dim=[-2], keepdim=true)",
    "sum(f64[])",
    "sum(f64[0, 3], dim=[0])",
    "sum(i64[3])",
    "sum(bool[3])",
    "sum(i64[3], dtype=f64)",
    "mean(f64[2, 3])",
    "mean(f64[2, 3, 4], dim=[1], keepdim=true)",
    "mean(i64[4], dtype=f64)",
    "amax(f64[2, 3, 4], dim=[0, 2])",
    "amax(f64[2, 3], keepdim=true)",
    "amax(i64[3])",
    "amin(f64[2, 3, 4], dim=[1])",
    "amin(f64[])",
    "prod(f64[2, 3], dim=[1])",
    "prod(f64[2, 3])",
    "prod(i64[3])",
    "any(bool[2, 3], dim=[1])",
    "any(f64[2, 3], keepdim=true)",
    "all(bool[2, 3])",
    "all(i64[2, 3], dim=[0])",
    "argmax(f64[2, 3])",
    "argmax(f64[2, 3], dim=1)",
    "argmax(f64[2, 3], dim=0, keepdim=true)",
    "argmin(f64[2, 3], dim=-1)",
    "argmin(f64[])",
    "cumsum(f64[2, 3], dim=1)",
    "cumsum(f64[2, 3, 2], dim=-2)",
    "cumsum(f64[], dim=0)",
    "cumsum(i64[4], dim=0)",
    // contractions and windows
    "matmul(f64[2, 3], f64[3, 4])",
    "matmul(f64[3], f64[3])",
    "matmul(f64[2, 3], f64[3])",
    "matmul(f64[3], f64[3, 4])",
    "matmul(f64[2, 4, 3], f64[3, 2])",
    "matmul(f64[2, 1, 4, 3], f64[5, 3, 2])",
    "matmul(f64[2, 4, 3], f64[3])",
    "matmul(f64[3], f64[2, 3, 4])",
    "matmul(f64[1, 2, 3], f64[4, 3, 1])",
    "matmul(i64[2, 3], i64[3, 2])",
    "matmul(f64[2, 0], f64[0, 3])",
    "conv2d(f64[2, 3, 5, 4], f64[4, 3, 3, 2], none)",
    "conv2d(f64[1, 4, 6, 6], f64[6, 2, 3, 3], f64[6], stride=[2, 1], padding=[1], groups=2)",
    "conv2d(f64[3, 5, 4], f64[2, 3, 2, 2], f64[2])",
    "conv2d_input_grad(f64[2, 4, 3], f64[2, 3, 2, 2], sizes=[3, 5, 4])",
    "conv2d_weight_grad(f64[2, 4, 3], f64[3, 5, 4], sizes=[2, 3, 2, 2])",
    "conv2d(f64[2, 2, 7, 6], f64[2, 2, 2, 3], f64[2], dilation=[2, 1], padding=[1, 2])",
    "conv2d_input_grad(f64[2, 4, 3, 3], f64[4, 3, 3, 2], sizes=[2, 3, 5, 4])",
    "conv2d_weight_grad(f64[2, 4, 3, 3], f64[2, 3, 5, 4], sizes=[4, 3, 3, 2])",
    "conv2d_input_grad(f64[1, 6, 3, 6], f64[6, 2, 3, 3], sizes=[1, 4, 6, 6], stride=[2, 1], padding=[1], groups=2)",
    "max_pool2d(f64[2, 3, 5, 4], kernel_size=[2])",
    "max_pool2d(f64[3, 5, 6], kernel_size=[3, 2], stride=[2, 1], padding=[1, 0])",
    "max_pool2d_grad(f64[2, 2, 2], f64[2, 4, 5], kernel_size=[2])",
    "max_pool2d(f64[1, 6, 7], kernel_size=[2], stride=[2], dilation=[2], ceil_mode=true)",
    "avg_pool2d(f64[2, 3, 5, 4], kernel_size=[2])",
    "avg_pool2d(f64[1, 6, 5], kernel_size=[3, 2], stride=[2], padding=[1], ceil_mode=true, count_include_pad=false)",
    "avg_pool2d(f64[1, 4, 4], kernel_size=[2], divisor_override=3)",
    "avg_pool2d(f64[3, 5, 6], kernel_size=[3], stride=[2], padding=[1])",
    "avg_pool2d_grad(f64[2, 2, 2], sizes=[2, 4, 5], kernel_size=[2])",
    // views
    "reshape(f64[2, 3, 4], shape=[6, 4])",
    "reshape(f64[2, 6], shape=[2, 2, -1])",
    "reshape(f64[4, 3], shape=[2, 6])",
    "reshape(f64[1], shape=[])",
    "reshape(f64[2, 1, 3], shape=[3, 2, 1])",
    "reshape(f64[0, 3], shape=[3, 0])",
    "permute(f64[2, 3, 4], dims=[2, 0, -2])",
    "permute(f64[], dims=[])",
    "transpose(f64[2, 3, 4], dim0=0, dim1=-1)",
    "transpose(f64[], dim0=0, dim1=-1)",
    "expand(f64[2, 1, 3], size=[2, 4, -1])",
    "expand(f64[3], size=[2, 3])",
    "expand(f64[], size=[2])",
    "expand(f64[1, 3], size=[0, 3])",
    "unsqueeze(f64[2, 3], dim=1)",
    "unsqueeze(f64[], dim=-1)",
    "squeeze(f64[2, 1, 3])",
    "squeeze(f64[1, 2, 1], dim=[0])",
    "squeeze(f64[2, 3], dim=[0])",
    "slice(f64[5, 3])",
    "slice(f64[5, 3], dim=0, start=1, end=4, step=2)",
    "slice(f64[2, 5], dim=-1, start=-3)",
    "slice(f64[2, 5], dim=1, start=4, end=2)",
    "select(f64[4, 3], dim=0, index=2)",
    "select(f64[2, 4, 3], dim=-2, index=-1)",
    "slice_grad(f64[2, 3], sizes=[5, 3], dim=0, start=1, end=4, step=2)",
    "flatten(f64[2, 3, 4], start_dim=1)",
    "flatten(f64[])",
    "flatten(f64[2, 3, 4], end_dim=1)",
    // gathers
    "embedding(f64[5, 3], i64[2, 2])",
    "embedding(f64[5, 3], i64[])",
    "embedding_grad(f64[2, 2, 3], i64[2, 2], rows=5)",
    "gather(f64[4, 3], i64[2, 3]{0..3}, dim=0)",
    "gather(f64[3, 5], i64[2, 6], dim=1)",
    "gather(f64[], i64[]{0..0}, dim=0)",
    "scatter_add(f64[5, 3], i64[2, 3], f64[2, 3], dim=0)",
    "scatter_add(f64[3, 5], i64[2, 2], f64[3, 4], dim=-1)",
    "index_select(f64[5, 3], i64[4], dim=0)",
    "index_select(f64[2, 5], i64[], dim=1)",
    "index_add(f64[5, 3], i64[4], f64[4, 3], dim=0)",
    "index_add(f64[2, 5], i64[3], f64[2, 3], dim=-1, alpha=0.5)",
    "cat(f64[2, 3], f64[1, 3], dim=0)",
    "cat(f64[2, 3], f64[2, 1], f64[2, 0], dim=-1)",
    "cat(f64[2], f64[0], f64[1])",
    "cat(i64[2], f64[3])",
    "stack(f64[2, 3], f64[2, 3], dim=1)",
    "stack(f64[3])",
    "stack(f64[], f64[], dim=-1)",
    "tril(f64[3, 4])",
    "tril(f64[2, 3, 3], diagonal=-1)",
    "triu(f64[3, 4], diagonal=1)",
    "triu(i64[3, 3])",
    // creation and random
    "full(size=[2, 3], fill_value=1.5)",
    "full(size=[], fill_value=2, dtype=i64)",
    "arange(start=2, end=11, step=3)",
    "arange(start=0.5, end=2.0, step=0.25)",
    "arange(start=5, end=0, step=-2)",
    "rand(size=[2, 3], seed=1)",
    "randn(size=[2, 3], seed=1, dtype=f64)",
    "randint(low=-2, high=5, size=[4], seed=1)",
    "randperm(n=5, seed=1)",
    "dropout(f64[4, 3], p=0.3, seed=3)",
    "dropout(f64[4, 3], training=false)",
    "dropout(f64[4], p=1.0)",
    // composites
    "linear(f64[2, 3], f64[4, 3], f64[4])",
    "linear(f64[3], f64[4, 3], none)",
    "linear(f64[2, 2, 3], f64[4, 3], f64[4])",
    "mm(f64[2, 3], f64[3, 4])",
    "bmm(f64[2, 2, 3], f64[2, 3, 4])",
    "addmm(f64[4], f64[2, 3], f64[3, 4])",
    "addmm(f64[2, 1], f64[2, 3], f64[3, 4], beta=0.5, alpha=2.0)",
    "addmm(f64[], f64[2, 3], f64[3, 4])",
    "softmax(f64[2, 3], dim=1)",
    "softmax(f64[2, 3, 2], dim=-2)",
    "softmax(f64[], dim=0)",
    "log_softmax(f64[2, 3], dim=0)",
    "log_softmax(f64[2, 3], dim=-1)",
    "logsumexp(f64[2, 3], dim=[1])",
    "logsumexp(f64[2, 3, 2], dim=[0, -1], keepdim=true)",
    "var(f64[2, 3])",
    "var(f64[2, 3, 4], dim=[1], correction=0.0, keepdim=true)",
    "std(f64[2, 3], dim=[1])",
    "std(f64[2, 3, 4], dim=[0, 2], correction=2.0)",
    "layer_norm(f64[2, 3, 4], f64[4], f64[4], normalized_shape=[4])",
    "layer_norm(f64[2, 3], none, none, normalized_shape=[2, 3])",
    "layer_norm(f64[2, 3], f64[3], none, normalized_shape=[3], eps=0.1)",
    "rms_norm(f64[2, 3], f64[3], normalized_shape=[3])",
    "rms_norm(f64[2, 3], none, normalized_shape=[2, 3], eps=0.1)",
    "batch_norm.train(f64[3, 2, 4], f64[2], f64[2])",
    "batch_norm.train(f64[4, 2], none, none, eps=0.1)",
    "cross_entropy(f64[3, 5], i64[3], none)",
    "cross_entropy(f64[3, 5], i64[3], f64[5]{0.5..2}, reduction=sum)",
    "cross_entropy(f64[2, 4, 3], i64[2, 3]{0..3}, f64[4]{0.5..2}, label_smoothing=0.2)",
    "cross_entropy(f64[4, 5], i64[4], none, ignore_index=1, reduction=none, label_smoothing=0.1)",
    "cross_entropy(f64[5], i64[], none)",
    "nll_loss(f64[3, 5], i64[3], none)",
    "nll_loss(f64[2, 4, 3], i64[2, 3]{0..3}, f64[4]{0.5..2}, ignore_index=1)",
    "nll_loss(f64[5], i64[], none, reduction=sum)",
    "mse_loss(f64[2, 3], f64[2, 3])",
    "mse_loss(f64[2, 3], f64[2, 3], reduction=none)",
    "scaled_dot_product_attention(f64[2, 3, 4], f64[2, 5, 4], f64[2, 5, 2], none)",
    "scaled_dot_product_attention(f64[1, 2, 3, 4], f64[1, 2, 3, 4], f64[1, 2, 3, 4], none, is_causal=true)",
    "scaled_dot_product_attention(f64[2, 2, 3, 4], f64[2, 2, 5, 4], f64[2, 2, 5, 2], f64[3, 5], scale=0.7)",
    "scaled_dot_product_attention(f64[2, 3, 4], f64[2, 5, 4], f64[2, 5, 2], bool[2, 1, 5])",
    "scaled_dot_product_attention(f64[1, 4, 3, 2], f64[1, 2, 3, 2], f64[1, 2, 3, 2], none, enable_gqa=true)",
};

struct Spec {
  DType dtype;
  base::Shape sizes;
  double low, high;
};

/// Reads "f64[2, 3]{0.5..2}" at the front of `text` and drops it; nothing if no type stands there.
std::optional<Spec> spec(std::string_view& text) {
  auto const open = text.find('[');
  auto const name = text.substr(0, open);
  if (open == std::string_view::npos || name.empty() || name.size() > 6 ||
      !std::ranges::all_of(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)); }))
    return std::nullopt;
  Spec result{base::dtype_of(name), {}, -2, 2};
  auto const close = text.find(']');
  for (auto const word : std::views::split(text.substr(open + 1, close - open - 1), ',')) {
    std::string const digits(word.begin(), word.end());
    if (!digits.empty()) result.sizes.push_back(std::stoll(digits));
  }
  text.remove_prefix(close + 1);
  if (!base::is_real(result.dtype)) result.low = 0, result.high = result.dtype == DType::boolean ? 1 : 4;
  if (text.starts_with('{')) {
    auto const end = text.find('}');
    std::string const range(text.substr(1, end - 1));
    auto const dots = range.find("..");
    result.low = std::stod(range.substr(0, dots)), result.high = std::stod(range.substr(dots + 2));
    text.remove_prefix(end + 1);
  }
  return result;
}

Array drawn(Spec const& spec, std::mt19937& random) {
  std::vector<double> values(static_cast<std::size_t>(base::numel(spec.sizes)));
  for (auto& v : values)
    v = base::is_real(spec.dtype) ? std::uniform_real_distribution(spec.low, spec.high)(random)
                                  : static_cast<double>(std::uniform_int_distribution(static_cast<int>(spec.low), static_cast<int>(spec.high))(random));
  return array(spec.dtype, spec.sizes, values);
}
}  // namespace

Call sample(std::string_view line, std::mt19937& random) {
  Call call;
  call.text = line;
  auto const open = line.find('(');
  std::string inputs, body(line.substr(0, open + 1));
  std::map<int, Array> tensors;
  int count = 0;
  for (auto rest = line.substr(open + 1); !rest.empty();) {
    if (auto const found = spec(rest)) {
      inputs += std::format("{}%{}: {}[{}]", count ? ", " : "", count, base::info(found->dtype).name,
                            base::to_string(found->sizes).substr(1, base::to_string(found->sizes).size() - 2));
      body += std::format("%{}", count);
      tensors[count++] = drawn(*found, random);
    }
    do body += rest.front(), rest.remove_prefix(1);  // to the next argument
    while (!rest.empty() && !(body.ends_with(' ') && body[body.size() - 2] == ','));
  }
  auto const graph = ir::parse_graph(std::format("graph sample({}) {{\n%{} = {}: f64[]\nreturn %{}\n}}", inputs, count, body, count));
  auto const& node = graph.nodes[0];
  call.op = node.op;
  call.attrs = node.attrs;
  for (auto const& input : node.inputs) call.operands.push_back(input.value >= 0 ? Operand{tensors.at(input.value), {}} : Operand{std::nullopt, input.scalar});
  return call;
}

std::vector<Call> samples(ir::OpDef const& op, std::mt19937& random) {
  std::vector<Call> calls;
  for (auto const lines : {std::span<std::string_view const>(table), view_lines()})
    for (auto const line : lines)
      if (line.substr(0, line.find('(')) == op.name) calls.push_back(sample(line, random));
  return calls;
}

}  // namespace support
