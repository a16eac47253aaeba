#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace levin::kernels {

/// The device whose kernels tensors on meta stand for: CUDA, unless a memory estimate has said another.
c10::DeviceType played_device();
void set_played_device(c10::DeviceType device);

/// True for tensors on CUDA, and for tensors on meta that stand for them.
bool plays_cuda(const at::Tensor& tensor);

}  // namespace levin::kernels
