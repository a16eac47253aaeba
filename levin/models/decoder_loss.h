#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace levin::models {

using at::Tensor;

/// Targets that count for nothing in a loss.
inline constexpr int64_t kIgnoredToken = -100;

/// What comes after each token of [B, T]: the tokens one to the left, and kIgnoredToken in the last place.
Tensor next_tokens(const Tensor& tokens);

/// The mean cross entropy of logits x W^T with targets, x [..., D], W [V, D], targets [...] (kIgnoredToken counts for
/// nothing), in float32 or wider. At most `rows` rows of logits are in memory at once: their gradients are taken in the
/// same go, so that nothing is computed twice, and cannot be differentiated again. rows 0: all of them, by plain
/// operators, which can. rows -1: 1024 on the CPU; on CUDA as many as fit into 570 MB, at least 1024.
///
/// On CUDA the vocabulary is padded to a multiple of 64 inside (products with an odd one are several times slower), the
/// losses and gradients of a chunk are one kernel, and the gradient of W is summed over the chunks in float32. In
/// bfloat16 on compute capability 9.0 the product with W computes them, and without gradients there are no logits in
/// memory. On the CPU the gradient of W is summed in its dtype.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, int64_t rows = -1);

}  // namespace levin::models
