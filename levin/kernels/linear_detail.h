#pragma once

#include "levin/kernels/linear.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// linear with its own backward, whatever the device. x and bias have a dtype; `computed` is the weight in it.
Tensor fused_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed);

/// In linear_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_linear_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
