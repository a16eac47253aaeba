#pragma once

#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct SGDOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Share of the previous update that is kept; 0 keeps no buffer.
  double momentum = 0;
  /// Share of the gradient that does not enter the momentum buffer, from its second update on.
  double dampening = 0;
  /// L2 penalty: added to the gradient as weight_decay * param.
  double weight_decay = 0;
  /// Looks ahead along the momentum; needs momentum > 0 and dampening 0.
  bool nesterov = false;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

/// Parameters with their own values of some options.
struct SGDGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<double> momentum = {};
  std::optional<double> dampening = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> nesterov = {};
  std::optional<bool> maximize = {};
};

/// Stochastic gradient descent with momentum, torch.optim.SGD's numbers, by a fused kernel (torch's on the CPU).
///
///     optim::SGD opt(model->parameters(), {.lr = 0.1, .momentum = 0.9});
class SGD : public Optimizer {
 public:
  explicit SGD(std::vector<Tensor> params, SGDOptions options = {});
  explicit SGD(std::vector<SGDGroup> groups, SGDOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
