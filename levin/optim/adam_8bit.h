#pragma once

#include <array>
#include <optional>
#include <vector>

#include "levin/optim/optimizer.h"

namespace levin::optim {

struct Adam8bitOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Decay of the running averages of the gradient and of its square.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// L2 penalty: added to the gradient as weight_decay * param.
  double weight_decay = 0;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

struct AdamW8bitOptions {
  /// Learning rate.
  double lr = 1e-3;
  /// Decay of the running averages of the gradient and of its square.
  std::array<double, 2> betas = {0.9, 0.999};
  /// Added to the denominator.
  double eps = 1e-8;
  /// Shrinks the parameter itself by lr * weight_decay each step, apart from the gradient.
  double weight_decay = 1e-2;
  /// Goes up the gradient instead of down.
  bool maximize = false;
};

/// Parameters with their own values of some options; `.betas = {{0.9, 0.95}}` has two pairs of braces here.
struct Adam8bitGroup {
  std::vector<Tensor> params = {};
  std::optional<double> lr = {};
  std::optional<std::array<double, 2>> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> maximize = {};
};
using AdamW8bitGroup = Adam8bitGroup;

/// Adam whose running averages take two bytes an element: 8-bit codes of a dynamic map, with one scale for each 256
/// elements of the parameter's memory (Dettmers et al., 2022). Parameters of less than 4096 elements, and double ones,
/// keep float averages. A parameter must keep its memory format once it has been stepped.
///
/// Shards have blocks of their own, which mean nothing on another number of ranks: state_dict() has the state of a
/// shard as floats of its shape, on the host, and no scales. Loaded where they were, they become the same codes again.
class Adam8bit : public Optimizer {
 public:
  explicit Adam8bit(std::vector<Tensor> params, Adam8bitOptions options = {});
  explicit Adam8bit(std::vector<Adam8bitGroup> groups, Adam8bitOptions options = {});
  static OptimizerClass describe();
};

/// The same with decoupled decay.
class AdamW8bit : public Optimizer {
 public:
  explicit AdamW8bit(std::vector<Tensor> params, AdamW8bitOptions options = {});
  explicit AdamW8bit(std::vector<AdamW8bitGroup> groups, AdamW8bitOptions options = {});
  static OptimizerClass describe();
};

}  // namespace levin::optim
