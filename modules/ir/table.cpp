module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
namespace {
using namespace ops;
// clang-format off
constexpr std::array rows{
    &neg, &abs, &exp, &expm1, &log, &log1p, &log2, &sqrt, &rsqrt, &reciprocal, &sin, &cos, &tanh, &sigmoid, &relu, &erf, &sign, &floor, &ceil, &round, &trunc, &square,
    &gelu, &silu, &softplus, &leaky_relu, &isnan, &logical_not, &to, &clone,
    &add, &sub, &mul, &div, &pow, &maximum, &minimum, &remainder, &floor_divide, &eq, &ne, &lt, &le, &gt, &ge, &logical_and, &logical_or, &where, &masked_fill, &clamp, &lerp,
    &sum, &mean, &amax, &amin, &prod, &any, &all, &argmax, &argmin, &cumsum,
    &matmul, &conv2d, &conv2d_input_grad, &conv2d_weight_grad, &max_pool2d, &max_pool2d_grad, &avg_pool2d, &avg_pool2d_grad,
    &reshape, &permute, &transpose, &expand, &unsqueeze, &squeeze, &slice, &select, &slice_grad,
    &embedding, &embedding_grad, &gather, &scatter_add, &index_select, &index_add, &cat, &tril, &triu,
    &full, &arange, &rand, &randn, &randint, &randperm,
    &linear, &mm, &bmm, &addmm, &softmax, &log_softmax, &logsumexp, &var, &stddev, &layer_norm, &rms_norm, &batch_norm, &cross_entropy, &nll_loss, &mse_loss, &dropout,
    &stack, &flatten, &scaled_dot_product_attention};
// clang-format on
}  // namespace

std::span<OpDef const* const> all_ops() { return rows; }

OpDef const* find_op(std::string_view name) {
  static std::map<std::string_view, OpDef const*> const by_name = [] {
    std::map<std::string_view, OpDef const*> map;
    for (auto const* op : rows) map.emplace(op->name, op);
    return map;
  }();
  auto const found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace tenon::ir
