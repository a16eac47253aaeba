#pragma once

#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct AdagradOptions {
  /// Learning rate.
  double lr = 1e-2;
  /// The learning rate of step t is lr / (1 + (t - 1) * lr_decay).
  double lr_decay = 0;
  /// L2 penalty: added to the gradient as weight_decay * param.
  double weight_decay = 0;
  /// What the sum of squares starts with.
  double initial_accumulator_value = 0;
  /// Added to the denominator.
  double eps = 1e-10;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

/// Parameters with their own values of some options.
struct AdagradGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<double> lr_decay = {};
  std::optional<double> weight_decay = {};
  std::optional<double> initial_accumulator_value = {};
  std::optional<double> eps = {};
  std::optional<bool> maximize = {};
};

/// Adagrad, torch.optim.Adagrad's numbers, by torch's fused kernel.
class Adagrad : public Optimizer {
 public:
  explicit Adagrad(std::vector<Tensor> params, AdagradOptions options = {});
  explicit Adagrad(std::vector<AdagradGroup> groups, AdagradOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
