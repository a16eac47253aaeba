#pragma once

#include <ATen/core/Tensor.h>

/// Attention of some queries over some keys, of which there are others elsewhere: results of blocks are put together by
/// their log-sum-exp. Without autograd: whoever puts them together knows the gradient (levin/nn/context/attention.h).
namespace levin::kernels {

using at::Tensor;

struct AttentionBlockOptions {
  /// Multiplies the scores.
  double scale = 1;
  /// Queries and keys are the same tokens: a position attends to itself and those before it.
  bool causal = false;
  /// cap * tanh(score / cap); 0: none.
  double softcap = 0;
  /// Which keys a query sees, boolean; undefined: all. Added to scores, float32; undefined: nothing. Both broadcast to
  /// [B, H, Tq, Tk].
  Tensor seen = {}, added = {};
};

/// Queries [B, H, Tq, D] over keys and values [B, Hkv, Tk, D]; Hkv divides H.
struct AttentionBlock {
  /// [B, H, Tq, D]; zeros for a query that sees nothing.
  Tensor out;
  /// The logarithm of the sum of exponentials of the scores, float32 [B, H, Tq]; minus infinity for such a query.
  Tensor sums;
  /// What flash attention wants back.
  Tensor seed, offset;
};

/// Whether flash attention computes it, in 16 bits on CUDA: scores are nowhere in memory. Else they are, in float32
/// (float64 of float64).
bool is_fused_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlockOptions& options);

AttentionBlock attention_block(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionBlockOptions& options);

/// Takes another block into what queries have got so far: `out` and `sums`, in place, in float32. They start from zeros
/// and from minus infinity.
void merge_attention(Tensor out, Tensor sums, const AttentionBlock& block);

struct AttentionBlockGradients {
  Tensor q, k, v;
};

/// The part of the gradients that comes from these keys. `all` is what the queries got from all of them, `grad` its
/// gradient. The shapes are those of q, k and v.
AttentionBlockGradients attention_block_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const AttentionBlock& all, const AttentionBlockOptions& options);

}  // namespace levin::kernels
