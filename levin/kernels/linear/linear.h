#pragma once

#include <ATen/core/Tensor.h>

#include "levin/kernels/activation.h"

namespace levin::kernels {

using at::Tensor;

/// x [..., in] times weight [out, in] plus bias [out] (may be undefined): at::linear, also under autocast. On CUDA
/// 16-bit products are those of matmul.h: the gradient of the bias comes with that of the weight, and under autocast
/// float weights get their gradients in float from the product itself; without gradients, up to 8 rows are multiplied
/// by a kernel that reads the weight once. In precision "fp8-mixed" it multiplies in float8
/// where that is possible.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

/// activation(linear(x, weight, bias), kind). On CUDA in 16 bits the gradient of the bias is added up while that of the
/// activation is computed.
Tensor linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation kind);

/// x [N, C] to its sum over rows [C], in the given dtype. On CUDA partial sums in float are added in a fixed order.
Tensor column_sum(const Tensor& x, at::ScalarType dtype);

}  // namespace levin::kernels
