#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// relu(batch_norm(x) + residual), in two passes over x when training and in one in evaluation. `x` is [N, C] or
/// [N, C, ...]; `residual`, of the same shape, may be undefined, and so may `weight`, `bias` and the running
/// statistics, [C] each. When training, the running statistics are updated in place with the weight `momentum` for the
/// new batch (1 / n for an average over n batches), and `batches`, an int64 number that may be undefined, is counted
/// up. Differentiable, twice too.
///
///     auto y = batch_norm_act(x, identity, weight, bias, mean, var, true, 0.1, 1e-5, true);
///
/// Fused are channels-last x on CUDA ([N, C] is) of float, double and the 16-bit dtypes, with weights and statistics in
/// the dtype of x or in float32. Everything else is the composition of torch's own operators, bit by bit.
Tensor batch_norm_act(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, bool training, double momentum, double eps,
                      bool relu, const Tensor& batches = {});

}  // namespace levin::kernels
