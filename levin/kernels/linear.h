#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// at::linear: x [..., K], weight [N, K], bias [N] or undefined, to [..., N]. In precision "fp8-mixed" it multiplies in
/// float8 where that is possible.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace levin::kernels
