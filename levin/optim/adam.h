#pragma once

#include <array>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct AdamOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Decay of the running averages of the gradient and of its square.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// L2 penalty: added to the gradient as weight_decay * param.
  double weight_decay = 0;
  /// Divides by the largest average of squares so far.
  bool amsgrad = false;
  /// Goes up the gradient instead of down.
  bool maximize = false;
  /// Of the running averages: at::kFloat or at::kBFloat16; by default the parameter's dtype. For all groups.
  std::optional<at::ScalarType> moments_dtype = {};
};

struct AdamWOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Decay of the running averages of the gradient and of its square.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// Shrinks the parameter itself by lr * weight_decay each step, apart from the gradient.
  double weight_decay = 1e-2;
  /// Divides by the largest average of squares so far.
  bool amsgrad = false;
  /// Goes up the gradient instead of down.
  bool maximize = false;
  /// Of the running averages: at::kFloat or at::kBFloat16; by default the parameter's dtype. For all groups.
  std::optional<at::ScalarType> moments_dtype = {};
};

/// Parameters with their own values of some options; `.betas = {{0.9, 0.95}}` has two pairs of braces here.
struct AdamGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> amsgrad = {};
  std::optional<bool> maximize = {};
};
using AdamWGroup = AdamGroup;

/// Adam with L2 decay, torch.optim.Adam's numbers, by a fused kernel (torch's on the CPU); where gradients or averages
/// are narrower than the parameter, by Levin's (fused_step/adam.h).
class Adam : public Optimizer {
 public:
  explicit Adam(std::vector<Tensor> params, AdamOptions options = {});
  explicit Adam(std::vector<AdamGroup> groups, AdamOptions options = {});
  static OptimizerClass describe();
};

/// Adam with decoupled decay, torch.optim.AdamW's numbers, by the same kernels.
///
///     optim::AdamW opt(model->parameters(), {.lr = 3e-4, .weight_decay = 0.01});
///     optim::AdamW opt({{.params = decay, .weight_decay = 0.1}, {.params = no_decay, .weight_decay = 0.0}}, {.lr =
///     3e-4});
class AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> params, AdamWOptions options = {});
  explicit AdamW(std::vector<AdamWGroup> groups, AdamWOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
