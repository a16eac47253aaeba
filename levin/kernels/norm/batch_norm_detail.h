#pragma once

#include <array>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "levin/kernels/norm/batch_norm_launch.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// Sums of 16-bit numbers are float.
inline at::ScalarType batch_norm_sums(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// [N, C] or channels-last [N, C, H, W], as the kernels read it.
BatchNormShape batch_norm_shape(const Tensor& x, bool vectors, int multiprocessors);

/// What forward allocates. `statistics` [2, C] are mean and inverse standard deviation of the batch; in evaluation,
/// none and the shape is [0].
struct BatchNormForward {
  Tensor y, statistics, partial;
  /// What the ReLU after a residual let through, a bit for each number of x: uint8 [rows, C / channels of a vector].
  /// Without ReLU or residual, none and the shape is [0].
  Tensor passed;
};
BatchNormForward allocate_batch_norm(const Tensor& x, const BatchNormShape& shape, bool training, bool keeps_bits);

/// Those bits as a tensor of bool of the shape of x.
Tensor passed_of_bits(const Tensor& passed, at::IntArrayRef sizes);

/// What backward allocates.
struct BatchNormBackward {
  Tensor dx, masked, grad_weight, grad_bias, partial;
};
struct BatchNormWanted {
  bool dx = false, residual = false, weight = false, bias = false;
  /// Of the whole batch: for the gradients of weight and bias, and for dx when the statistics came from x.
  bool sums(bool training) const { return weight || bias || (dx && training); }
};
BatchNormBackward allocate_batch_norm_backward(const Tensor& x, const std::optional<Tensor>& weight,
                                               const BatchNormShape& shape, bool training,
                                               const BatchNormWanted& wanted);

/// Adds the CUDA kernels of `levin::batch_norm_act`; none in a build without CUDA.
void register_batch_norm_act_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
