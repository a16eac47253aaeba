#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

struct AttentionOptions {
  /// A position attends to itself and those before it.
  bool causal = false;
  /// Fraction of the attention weights that is dropped; 0 outside of training.
  double dropout = 0;
  /// Cosines and sines [2, T, D / 2] of rotary positions (levin/kernels/attention/rotary.h); undefined: none.
  Tensor rotary = {};
};

/// Self attention of packed projections: qkv [B, T, 3, H, D] to [B, T, H * D].
///
/// On the CPU it is at::scaled_dot_product_attention. On CUDA in 16 bits it is a kernel of Levin's own for the short
/// sequences of vision transformers (129 to 208 tokens, heads of 64 numbers, neither causal nor with dropout, on
/// compute capability 9.0), else cuDNN's or flash attention: both are timed, forward and backward, when a shape comes
/// for the first time, and the faster one is taken from then on. The variable LEVIN_ATTENTION ("short", "cudnn",
/// "flash" or "auto") chooses. cuDNN is not used where torch asks for deterministic algorithms, nor for a dropout that
/// is no multiple of 1/16. The gradient of qkv is one packed tensor, written by one kernel. With create_graph the
/// gradient is computed by plain operators, without dropout only.
Tensor attention(const Tensor& qkv, const AttentionOptions& options = {});

}  // namespace levin::kernels
