#pragma once

#include <optional>
#include <tuple>

#include "levin/kernels/activation.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// As the public ones, through the operators of levin whatever the device. `bias`: the dtype of the bias of the layer
/// whose result x is; the sums of columns of its gradient are remembered for it then (known_sums.h).
Tensor fused_activation(const Tensor& x, Activation kind, std::optional<at::ScalarType> bias = std::nullopt);
Tensor fused_gated_silu(const Tensor& gate, const Tensor& up);

/// The operators themselves, without autograd: the activation of x, and the gradient of x for that of the activation.
Tensor run_activation(const Tensor& x, Activation kind);
Tensor run_activation_backward(const Tensor& grad, const Tensor& x, Activation kind);
/// The gradient of x, of its sizes, and its sum over all dimensions but the last [C] in `dtype`.
std::tuple<Tensor, Tensor> activation_backward_and_sums(const Tensor& grad, const Tensor& x, Activation kind,
                                                        at::ScalarType dtype);
/// In activation_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_activation_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
