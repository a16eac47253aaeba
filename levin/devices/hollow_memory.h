#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace levin::detail {

using at::Tensor;

/// A tensor whose storage has no memory yet.
Tensor hollow(int64_t numel, c10::Device device, c10::ScalarType dtype);
/// Gives the storage of a tensor its memory, or takes it away from all that show it.
void set_memory(const Tensor& tensor, bool present);
/// The storage of a hollow tensor shows the beginning of `memory`, which must stay, until set_memory(tensor, false).
void show_memory(const Tensor& tensor, const Tensor& memory);

}  // namespace levin::detail
