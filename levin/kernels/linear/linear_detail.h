#pragma once

#include "levin/kernels/linear/linear.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// linear with its own backward, whatever the device. `computed` is the weight in the dtype of x; the bias may be
/// undefined.
Tensor fused_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed);

/// linear_activation, likewise.
Tensor fused_linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed,
                               Activation kind);

/// In linear_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_linear_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
