#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::optim::detail {

using at::Tensor;

/// Tensors of one device and dtype: what a foreach call takes in one launch.
struct AlikeTensors {
  c10::Device device;
  c10::ScalarType dtype;
  std::vector<Tensor> tensors;
};

/// Splits by device and dtype; the order within a part, and of the parts by their first tensor, is kept.
std::vector<AlikeTensors> by_device_and_dtype(std::span<const Tensor> tensors);

}  // namespace levin::optim::detail
