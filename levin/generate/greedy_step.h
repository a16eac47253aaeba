#pragma once

#include "levin/kernels/decode/greedy.h"

namespace levin::detail {

/// A decode step, with the likeliest token of each row behind it.
struct GreedyStep {
  /// [rows, V].
  at::Tensor logits;
  kernels::GreedyTokens tokens;
};

}  // namespace levin::detail
