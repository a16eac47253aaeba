#pragma once

#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct AdafactorOptions {
  /// The most a relative step may be, and the rate of the weight decay.
  double lr = 1e-2;
  /// The average of squares decays with 1 - t^beta2_decay at step t.
  double beta2_decay = -0.8;
  /// Least value under the root; none: the machine epsilon of the parameter's dtype.
  std::optional<double> eps1 = {};
  /// Least scale of a parameter, for those that start at zero.
  double eps2 = 1e-3;
  /// Updates with a larger root mean square are scaled down to this.
  double d = 1.0;
  /// Shrinks the parameter itself by lr * weight_decay each step.
  double weight_decay = 0;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

/// Parameters with their own values of some options.
struct AdafactorGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<double> beta2_decay = {};
  std::optional<double> eps1 = {};
  std::optional<double> eps2 = {};
  std::optional<double> d = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> maximize = {};
};

/// Adafactor, torch.optim.Adafactor's numbers: for a matrix it keeps one row and one column of squares instead of a
/// matrix. The host never waits for the device. Not fused with the loss scaler: step_scaled says false.
class Adafactor : public Optimizer {
 public:
  explicit Adafactor(std::vector<Tensor> params, AdafactorOptions options = {});
  explicit Adafactor(std::vector<AdafactorGroup> groups, AdafactorOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
