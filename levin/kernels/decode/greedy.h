#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

struct GreedyTokens {
  /// int64 [rows].
  Tensor ids;
  /// float64 [rows, 3]: the id, its log probability under `logits`, and its score.
  Tensor found;
};

/// The token of the largest score in each row of scores [rows, V], as argmax finds it: the first one among equals, and
/// NaN is larger than any number. Logits [rows, V] have the same dtype, and may be the scores themselves. Rows may lie
/// further apart than V. On CUDA float32 and 16 bit are two short kernels, which add up in float32. No gradients.
GreedyTokens greedy_tokens(const Tensor& logits, const Tensor& scores);

}  // namespace levin::kernels
