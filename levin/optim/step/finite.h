#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace levin::optim {

using at::Tensor;

/// Whether no element is inf or nan. Undefined, empty and meta tensors, and those that are not of float64, float32,
/// float16 or bfloat16, are finite. On the host without an operator; elsewhere the host waits for the device, once.
bool all_finite(std::span<const Tensor> tensors);

}  // namespace levin::optim
