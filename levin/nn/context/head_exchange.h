#pragma once

#include <ATen/core/Tensor.h>

#include "levin/nn/context/share.h"

namespace levin::nn {

/// This rank's tokens of all heads [B, t, H, D] to the whole sequence of its heads [B, T, H / n, D]; rank i has the
/// i-th part of the heads. Every rank must call; backward exchanges the gradients.
Tensor heads_of_sequence(const Tensor& own, int64_t length, const SharedContext& share);
/// The way back: [B, T, H / n, D] to [B, t, H, D].
Tensor tokens_of_heads(const Tensor& whole, const SharedContext& share);

}  // namespace levin::nn
