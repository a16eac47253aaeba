#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace levin::detail {

/// The device that meta tensors stand for: the one asked about during an estimate of memory, otherwise the CPU.
c10::DeviceType played_device();
void set_played_device(c10::DeviceType device);

/// Whose kernels run on the tensor: those of its device, or of the one that a meta tensor stands for.
c10::DeviceType kernel_device(const at::Tensor& tensor);

}  // namespace levin::detail
