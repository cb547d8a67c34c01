export module tenon.ir:table;
import std;
import :op;
import :rule;

export namespace tenon::ir {

/// Every op of the table, in the order of the files.
std::span<OpDef const* const> all_ops();
/// The op of that name; null if there is none.
OpDef const* find_op(std::string_view name);

}  // namespace tenon::ir

export namespace tenon::ir::ops {

// Rows that C++ sources call by name; find_op finds the others as well.
// clang-format off
// ops_pointwise.cpp
extern const OpDef neg, abs, exp, expm1, log, log1p, log2, sqrt, rsqrt, reciprocal, sin, cos, tanh, sigmoid, relu, erf, sign, floor, ceil, round, trunc, square, gelu, silu,
    softplus, leaky_relu, isnan, logical_not, to, clone;
// ops_binary.cpp
extern const OpDef add, sub, mul, div, pow, maximum, minimum, remainder, floor_divide, eq, ne, lt, le, gt, ge, logical_and, logical_or, where, masked_fill, clamp, lerp;
// ops_reduction.cpp
extern const OpDef sum, mean, amax, amin, prod, any, all, argmax, argmin, cumsum;
// ops_contraction.cpp
extern const OpDef matmul;
// ops_view.cpp
extern const OpDef reshape, permute, transpose, expand, unsqueeze, squeeze, slice, select, slice_grad, flatten;
// ops_gather.cpp
extern const OpDef embedding, embedding_grad, gather, scatter_add, scatter, index_select, index_add, cat, tril, triu;
// ops_creation.cpp
extern const OpDef full, constant, arange, rand, randn, randint, randperm;
// ops_composite.cpp
extern const OpDef linear, mm, bmm, addmm, dropout, stack, scaled_dot_product_attention, scaled_dot_product_attention_grad;
// ops_norm.cpp
extern const OpDef softmax, log_softmax, logsumexp, var, stddev, layer_norm, rms_norm, batch_norm;
// ops_loss.cpp
extern const OpDef cross_entropy, nll_loss, mse_loss;
// ops_special.cpp
extern const OpDef to_device, copy_;
extern const OpDef atan2, hypot, copysign, cosh, xlogy;
// ops_activation.cpp
extern const OpDef hardtanh, logsigmoid;
// ops_distance.cpp
extern const OpDef vector_norm, pairwise_distance;
// ops_split.cpp
extern const OpDef split, chunk, tensor_split, unbind, narrow;
// ops_layout.cpp
extern const OpDef flip, roll, repeat, unfold, pad;
// ops_diagonal.cpp
extern const OpDef diagonal, diagonal_grad, diag_embed;
// ops_index.cpp
extern const OpDef index_at, index_put, index_copy, take_along_dim, masked_scatter, one_hot;
// ops_sort.cpp
extern const OpDef sort, cummax, cummin, argsort, topk, max_dim, min_dim;
// ops_scan.cpp
extern const OpDef cumprod, logcumsumexp;
// ops_convolution.cpp
extern const OpDef convolution, conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d;
// ops_pool.cpp
extern const OpDef max_pool, max_pool1d, max_pool2d, max_pool3d, avg_pool1d, avg_pool2d, avg_pool3d, adaptive_avg_pool1d, adaptive_avg_pool2d,
    adaptive_avg_pool3d;
// ops_resize.cpp
extern const OpDef interpolate, grid_sample;
// ops_collective.cpp
extern const OpDef all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, collective_permute;
// ops_selection.cpp
extern const OpDef nonzero, masked_select, unique;
// clang-format on

}  // namespace tenon::ir::ops

namespace tenon::ir::ops {
/// The rows of ops_KIND.cpp, listed at its end.
std::span<OpDef const* const> pointwise_rows(), binary_rows(), reduction_rows(), contraction_rows(), view_rows(), gather_rows(), creation_rows(),
    composite_rows(), norm_rows(), loss_rows(), special_rows(), activation_rows(), distance_rows(), pair_loss_rows(), matrix_rows(), split_rows(),
    layout_rows(), diagonal_rows(), index_rows(), sort_rows(), scan_rows(), statistics_rows(), product_rows(), convolution_rows(), pool_rows(), resize_rows(),
    bag_rows(), einsum_rows(), selection_rows(), spelling_rows(), collective_rows();
}  // namespace tenon::ir::ops

namespace tenon::ir {  // words of bodies
/// Result k of the call whose first result is `first`.
Var nth(Var first, int k);
/// cat, reshape, and slice from start to end (MAX: to the last).
Var concat(std::span<Var const> parts, Dim dim);
Var shaped(Var x, std::span<Dim const> sizes);
Var cut(Var x, Dim dim, Dim start, Dim end);
/// The i64 numbers 0 to n - 1, on the device of `like`.
Var counting(Var like, Dim n);
/// `dim` of `x`, wrapped; 0 for a 0-d tensor.
int dim_of(Var x, Dim dim);
/// A list with an entry a dim, or one (or none: `usual`) for all dims; the other one takes no entry below 1.
Dims spread(std::span<Dim const> list, std::size_t dims, std::string_view what, Dim usual);
Dims at_least_one(std::span<Dim const> list, std::size_t dims, std::string_view what);
}  // namespace tenon::ir
