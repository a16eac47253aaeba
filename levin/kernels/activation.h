#pragma once

#include <ATen/core/Tensor.h>

#include "levin/kernels/activation_kinds.h"

namespace levin::kernels {

using at::Tensor;

/// As at::gelu, at::relu and at::silu. On CUDA forward and backward are one pass over memory each
/// (levin::activation, levin::activation_backward); the input is kept for backward.
Tensor activation(const Tensor& x, Activation kind);

/// silu(gate) * up, of two tensors of one dtype and the same sizes; only the two are kept for backward on CUDA.
Tensor gated_silu(const Tensor& gate, const Tensor& up);

}  // namespace levin::kernels
