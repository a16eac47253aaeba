#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// The tokens of a vision transformer: the class token in front of the patches of every image, and positions on top.
/// patches [B, N, D], token [1, 1, D], positions [1, N + 1, D] or undefined:
///
///     at::cat({token.expand({B, -1, -1}), patches}, 1) + positions  // [B, N + 1, D]
///
/// On CUDA forward is one kernel (levin::prepend_token) and backward two, which add up in one order: results repeat bit
/// by bit. The sums of columns of the patches' gradient are left for the bias of the layer before (known_sums.h).
/// Elsewhere, without positions, and for dtypes other than those of mixed precision, it is what the line above gives.
Tensor prepend_token(const Tensor& patches, const Tensor& token, const Tensor& positions);

}  // namespace levin::kernels
