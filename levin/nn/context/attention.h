#pragma once

#include <ATen/core/Tensor.h>

#include "levin/nn/context/share.h"

namespace levin::nn {

/// What queries see, of a sequence of which a rank has some tokens.
struct ContextAttentionOptions {
  /// A position attends to itself and those before it.
  bool causal = false;
  /// Multiplies the scores.
  double scale = 1;
  /// Keys that a query sees, itself included; 0: all before it. Of causal attention.
  int64_t window = 0;
  /// cap * tanh(score / cap); 0: none.
  double softcap = 0;
  /// ALiBi: the slope of each head, float32 [H]; undefined: none.
  Tensor slopes = {};
  /// [B, T] of the whole sequence: 0 for padding, else the number of a text, as Decoder::forward takes it; undefined:
  /// one text.
  Tensor texts = {};
  /// ALiBi: [B, T] the place of each token in its text; undefined: that in the sequence.
  Tensor places = {};
};

/// Attention of this rank's queries [B, t, H, D] over the keys and values [B, t, Hkv, D] of all ranks, which have T =
/// `length` tokens together, to [B, t, H * D]. Keys and values go around the ring (or are gathered), and results of
/// ranks are put together by their log-sum-exp in float32; in backward keys, values and their gradients go around.
/// What is kept for backward is of this rank's tokens only. Every rank must call.
///
/// In 16 bits on CUDA blocks of the ring are flash attention. Other dtypes, a window within a block, a soft cap, ALiBi
/// and texts compute scores of some queries at a time in float32.
Tensor context_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                         const ContextAttentionOptions& options, const SharedContext& share);

}  // namespace levin::nn
