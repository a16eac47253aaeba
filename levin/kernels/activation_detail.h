#pragma once

#include "levin/kernels/activation.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// As the public ones, through the operators of levin whatever the device.
Tensor fused_activation(const Tensor& x, Activation kind);
Tensor fused_gated_silu(const Tensor& gate, const Tensor& up);

/// In activation_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_activation_cuda(torch::Library& library);

/// The operators alone, without a graph: the activation of x, and the gradient of x for that of the activation.
Tensor run_activation(const Tensor& x, Activation kind);
Tensor run_activation_backward(const Tensor& grad, const Tensor& x, Activation kind);

}  // namespace levin::kernels::detail
