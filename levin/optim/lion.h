#pragma once

#include <array>
#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct LionOptions {
  /// Learning rate; every element moves by exactly this much, so it is 3 to 10 times smaller than AdamW's.
  double lr = 1e-4;
  /// betas[0] mixes momentum and gradient for the update, betas[1] for the momentum that is kept.
  std::array<double, 2> betas = {0.9, 0.99};
  /// Shrinks the parameter itself by lr * weight_decay each step; 3 to 10 times larger than AdamW's.
  double weight_decay = 0;
};

/// Parameters with their own values of some options; `.betas = {{0.95, 0.98}}` has two pairs of braces here.
struct LionGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> weight_decay = {};
};

/// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023): the sign of a mix of momentum and
/// gradient. One state tensor per parameter. Not fused with the loss scaler: step_scaled says false.
class Lion : public Optimizer {
 public:
  explicit Lion(std::vector<Tensor> params, LionOptions options = {});
  explicit Lion(std::vector<LionGroup> groups, LionOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
