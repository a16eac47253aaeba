#pragma once

#include <cstdint>

#include "levin/kernels/activation.h"

namespace levin::nn {

/// A mixture of experts in the place of an MLP: each token goes through `per_token` of `count` gated MLPs.
struct ExpertsOptions {
  /// 0: there are none.
  int64_t count = 0;
  /// The experts of a token: those with the largest probabilities.
  int64_t per_token = 2;
  /// Of the tokens, and inside an expert.
  int64_t dim = 0, width = 0;
  kernels::Activation activation = kernels::Activation::kSilu;
  /// The probabilities of a token's experts are divided by their sum (Mixtral).
  bool normalized = true;
  /// An expert takes at most ceil(capacity_factor * tokens * per_token / count) tokens, the first ones; what is more is
  /// dropped: it gets nothing from that expert. 0: nothing is dropped.
  double capacity_factor = 0;
  /// Standard deviations of new weights.
  double std = 0.02, down_std = 0.02;
};

}  // namespace levin::nn
