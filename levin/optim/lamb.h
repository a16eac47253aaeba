#pragma once

#include <array>
#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct LambOptions {
  /// Learning rate, before the trust ratio.
  double lr = 1e-3;
  /// Decay of exp_avg and exp_avg_sq, the moments of the gradient.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-6;
  /// Added to the update as weight_decay * param, before its norm is taken.
  double weight_decay = 1e-2;
  /// Divides the moments by 1 - beta^t.
  bool bias_correction = true;
  /// Scales updates by the trust ratio also where weight_decay is 0 (biases, norms).
  bool always_adapt = false;
  /// Upper bound of the trust ratio. By default there is none.
  std::optional<double> max_trust_ratio = {};
  /// Ascends the gradient instead of descending.
  bool maximize = false;
};

/// Parameters with their own values of some options; `.betas = {{0.9, 0.95}}` has two pairs of braces here.
struct LambGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> bias_correction = {};
  std::optional<bool> always_adapt = {};
  std::optional<double> max_trust_ratio = {};
  std::optional<bool> maximize = {};
};

/// LAMB (You et al., "Large Batch Optimization for Deep Learning", 2020): Adam's update with weight decay, scaled for
/// each tensor by its trust ratio, |param| / |update|. Two state tensors per parameter, in float32 for 16-bit
/// parameters.
///
/// Shards are stepped as the full parameter would be: the norms are summed over the ranks, by one all-reduce a step.
/// Gradients are not clipped here (`gradient_clip_val`). Not fused with the loss scaler: step_scaled says false.
class Lamb : public Optimizer {
 public:
  explicit Lamb(std::vector<Tensor> params, LambOptions options = {});
  explicit Lamb(std::vector<LambGroup> groups, LambOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
