import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"

namespace support {
namespace {

constexpr std::string_view table[] = {
    // einsum
    "einsum(f64[2, 3], f64[3, 4], equation=\"ab,bc->ac\")",
    "einsum(f64[2, 3], f64[3, 4], equation=\"ab,bc\")",
    "einsum(f64[2, 3, 4], f64[2, 4, 3], equation=\"bij,bjk->bik\")",
    "einsum(f64[2, 3], f64[3, 4], f64[4, 2], equation=\"ab,bc,cd->ad\")",
    "einsum(f64[3, 3], equation=\"ii->i\")",
    "einsum(f64[3, 3], equation=\"ii\")",
    "einsum(f64[2, 3], equation=\"ij->ji\")",
    "einsum(f64[2, 3], equation=\"ij->j\")",
    "einsum(f64[3], f64[4], equation=\"i,j->ij\")",
    "einsum(f64[2, 3, 4], f64[4, 2], equation=\"...j,jk->...k\")",
    "einsum(f64[2, 3, 4], f64[4, 1], equation=\"...ij,ji->...i\")",
    "einsum(f64[2, 3, 4], equation=\"...ij->...ji\")",
    "einsum(f64[2, 3], f64[2, 3], equation=\"ij,ij->\")",
    "einsum(f64[2, 1], f64[2, 3], equation=\"ij,ij->ij\")",
    "einsum(f64[], f64[3], equation=\",i->i\")",
    "einsum(f64[0, 3], f64[3, 2], equation=\"ij,jk->ik\")",
    "einsum(f64[3, 3, 2], f64[3, 2], equation=\"iij,ij->j\")",
    "einsum(f64[3, 2], f64[4, 2, 2], f64[3, 2], equation=\"bn,anm,bm->ba\")",
    // norms and distances
    "linalg.norm(f64[2, 3], ord=1.0)",
    "linalg.norm(f64[2, 3], ord=-inf, keepdim=true)",
    "linalg.norm(f64[2, 3, 4], ord=inf, dim=[-1, 0])",
    "linalg.norm.ord_str(f64[2, 3], ord=\"fro\")",
    "linalg.norm.ord_str(f64[2, 3, 4], ord=\"fro\", dim=[0, 2], keepdim=true)",
    "linalg.matrix_norm(f64[2, 3, 4], ord=1.0)",
    "linalg.matrix_norm(f64[3, 4], ord=-1.0, keepdim=true)",
    "linalg.matrix_norm.str_ord(f64[2, 3, 4])",
    "cdist(f64[2, 3], f64[4, 3])",
    "cdist(f64[2, 3, 2], f64[1, 4, 2], p=1.0)",
    "cdist(f64[3, 4], f64[2, 4], p=3.5)",
    "cdist(f64[3, 4], f64[2, 4], p=inf)",
    "cdist(f64[2, 0], f64[3, 0])",
    "vdot(f64[3], f64[3])",
    "linear(f64[2, 4, 3], f64[3], none)",
    "linear(f64[4, 3], f64[3], f64[])",
    "tensordot.lists(f64[2, 3, 4], f64[4, 5, 2], dims_self=[0, -1], dims_other=[2, 0])",
    "tensordot.lists(f64[2, 1, 4], f64[3, 4], dims_self=[1, 2], dims_other=[0, 1])",
    "scaled_dot_product_attention(f64[3, 2], f64[2, 4, 2], f64[1, 4, 5], none)",
    "tensordot.lists(f64[2], f64[3], dims_self=[], dims_other=[])",
    // losses
    "multi_margin_loss(f64[3, 5], i64[3]{0..4}, none)",
    "multi_margin_loss(f64[3, 5], i64[3]{0..4}, f64[5]{0.5..2}, p=2, margin=0.5, reduction=none)",
    "multi_margin_loss(f64[5], i64[]{0..4}, none, reduction=sum)",
    "multilabel_margin_loss(f64[3, 5], i64[3, 5]{-1..4})",
    "multilabel_margin_loss(f64[5], i64[5]{-1..4}, reduction=none)",
    "multilabel_margin_loss(f64[2, 3], i64[2, 3]{0..2}, reduction=sum)",
    // places named by several indices
    "index(f64[5, 4], i64[3]{-5..4}, i64[3]{-4..3})",
    "index(f64[5, 4, 3], i64[2, 1], i64[3]{0..3})",
    "index(f64[2, 5, 3], i64[4], dims=[1])",
    "index(f64[2, 5, 3], i64[2], i64[2]{0..2}, dims=[1, -1])",
    "index(f64[5, 2, 3], i64[2], i64[1]{0..2}, dims=[0, 2])",
    "index_put(f64[5, 6, 2], f64[2], i64[1], i64[1], dims=[0, 1])",
    "index_put(f64[5, 4], f64[3], i64[3], i64[3]{0..3}, accumulate=true)",
    "index_put(f64[2, 5], f64[2, 3], i64[3], dims=[1], accumulate=true)",
    "index_put(f64[2, 3], f64[], bool[2, 3])",
    "index_put(f64[2, 3], f64[1], bool[3], dims=[1], accumulate=true)",
    "index_put(f64[2, 3, 2], f64[2, 1, 1], bool[3], dims=[1])",
    // spelled otherwise
    "clamp.Tensor(f64[2, 3], f64[3]{-1..0}, f64[]{0.5..1})",
    "clamp.Tensor(f64[2, 3], none, f64[2, 1])",
    "clamp.Tensor(f64[2, 3], f64[1, 3], none)",
    "masked_fill.Tensor(f64[2, 3], bool[3], f64[])",
    "div.Tensor_mode(f64[2, 3], f64[3]{0.5..2})",
    "div.Tensor_mode(f64[2, 3], f64[3]{0.5..2}, rounding_mode=trunc)",
    "div.Tensor_mode(f64[2, 3], f64[3]{0.5..2}, rounding_mode=floor)",
    "div.Tensor_mode(i64[4]{-9..9}, i64[4]{1..3}, rounding_mode=trunc)",
    "round.decimals(f64[2, 3])",
    "round.decimals(f64[2, 3], decimals=2)",
    "round.decimals(f64[2, 3], decimals=-1)",
    "index_fill.int_Tensor(f64[5, 3], i64[2], f64[], dim=0)",
    "index_fill.int_Tensor(f64[], i64[]{0..0}, f64[], dim=0)",
    "scatter.value(f64[3, 5], i64[3, 1], dim=1, value=0.5)",
    "scatter.value(f64[], i64[]{0..0}, dim=0, value=2.0)",
    "swapaxes(f64[2, 3, 4], axis0=0, axis1=-1)",
    "swapdims(f64[2, 3], dim0=0, dim1=1)",
    "moveaxis(f64[2, 3, 4], source=[0], destination=[2])",
    "scaled_dot_product_attention_grad(f64[2, 3, 2], f64[2, 3, 4], f64[2, 5, 4], f64[2, 5, 2])",
    "scaled_dot_product_attention_grad(f64[1, 2, 3, 4], f64[1, 2, 3, 4], f64[1, 2, 3, 4], f64[1, 2, 3, 4], is_causal=true, scale=0.7)",
};

// Calls whose results' sizes depend on elements.
constexpr std::string_view measured_table[] = {
    "nonzero(f64[2, 3])",
    "nonzero(bool[2, 2, 2])",
    "nonzero(i64[])",
    "nonzero(i64[0, 3])",
    "masked_select(f64[2, 3], bool[2, 3])",
    "masked_select(f64[2, 1], bool[3])",
    "masked_select(f64[3], bool[2, 1])",
    "masked_select(f64[], bool[]{1..1})",
    "unique(i64[3, 4])",
    "unique(f64[3], sorted=false, return_inverse=true)",
    "unique(i64[4, 2], return_inverse=true, return_counts=true, dim=0)",
    "unique(i64[2, 4], return_counts=true, dim=-1)",
    "unique(i64[])",
    "unique(i64[0])",
    "repeat_interleave.Tensor(i64[3])",
    "repeat_interleave.self_Tensor(f64[2, 3], i64[3], dim=1)",
    "repeat_interleave.self_Tensor(f64[2, 3], i64[], dim=0)",
    "repeat_interleave.self_Tensor(f64[2, 3], i64[6])",
    "one_hot(i64[2, 3])",
    "index(f64[2, 3], bool[2, 3])",
    "index(f64[2, 3, 2], bool[2])",
    "index(f64[2, 3, 2], bool[3, 2], dims=[1])",
    "index(f64[4, 3], bool[4], i64[1]{0..2})",
    "index(f64[3, 2, 4], i64[1]{0..2}, bool[4], dims=[0, 2])",
};
}  // namespace

std::span<std::string_view const> form_lines() { return table; }
std::span<std::string_view const> measured_lines() { return measured_table; }

}  // namespace support
