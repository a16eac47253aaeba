#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace levin::detail {

/// The parts of a batch norm layer, whichever of the classes it is of.
struct BatchNormParts {
  /// Weight of a new batch in the running statistics; none: they are plain averages over all batches.
  std::optional<double>* momentum = nullptr;
  at::Tensor running_mean, running_var, num_batches_tracked;
};

/// Nothing when the module is no batch norm.
std::optional<BatchNormParts> as_batch_norm(torch::nn::Module& module);

}  // namespace levin::detail
