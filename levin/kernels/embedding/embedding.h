#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// Rows `ids` of `weight` [V, D], as at::embedding: ids [...] to [..., D]. Row `padding_idx` gets no gradient; -1:
/// every row gets one. On CUDA the gradient of more than a few thousand ids is added up by kernels that sort them, in a
/// fixed order: results repeat bit by bit. Where a gradient of the same weight waits already, as that of a tied head,
/// they add to it.
Tensor embedding(const Tensor& weight, const Tensor& ids, int64_t padding_idx = -1);

/// embedding(weight, ids) + positions: ids [B, T] and positions [T, D] of the weight's dtype to [B, T, D], on CUDA in
/// one kernel. An id that is no row ends a kernel of CUDA with an error, as that of torch.
Tensor embedding_with_positions(const Tensor& weight, const Tensor& ids, const Tensor& positions);

}  // namespace levin::kernels
