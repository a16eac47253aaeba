#pragma once

#include <tuple>

#include "levin/kernels/activation.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// As the public ones, through the operators of levin whatever the device.
Tensor fused_activation(const Tensor& x, Activation kind);
Tensor fused_gated_silu(const Tensor& gate, const Tensor& up);

/// The operators themselves, without autograd: the activation of x, and the gradient of x for that of the activation.
Tensor run_activation(const Tensor& x, Activation kind);
Tensor run_activation_backward(const Tensor& grad, const Tensor& x, Activation kind);
/// The gradient of x, of its sizes, and its sum over all dimensions but the last [C] in `dtype`.
std::tuple<Tensor, Tensor> activation_backward_and_sums(const Tensor& grad, const Tensor& x, Activation kind,
                                                        at::ScalarType dtype);
/// In operators of torch, which can be differentiated.
Tensor plain_activation(const Tensor& x, Activation kind);

/// In activation_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_activation_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
