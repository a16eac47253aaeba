#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace levin {

using at::Tensor;

/// Bytes that a training step will hold on one rank, by kind.
struct MemoryEstimate {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  /// Gathered units, buffers of collectives, workspaces.
  int64_t temporary = 0;
  /// Of the above, what lives in host memory.
  int64_t host = 0;

  /// The highest sum of what is on the device at one time in a step.
  int64_t device_peak = 0;
};

/// What a strategy does to the state of a model, in numbers: all that an estimate needs to know of it. Fractions are of
/// one rank's share of the whole.
struct StateLayout {
  /// Bytes of a parameter as it stays between steps, by rank.
  double parameter_share = 1;
  double gradient_share = 1;
  double optimizer_share = 1;
  bool parameters_on_host = false;
  bool gradients_on_host = false;
  bool optimizer_on_host = false;
  /// Units that are whole at once, besides what stays (0: nothing is gathered).
  int gathered_units = 0;
};

}  // namespace levin
