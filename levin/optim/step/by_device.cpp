#include "levin/optim/step/by_device.h"

#include <algorithm>

namespace levin::optim::detail {

std::vector<AlikeTensors> by_device_and_dtype(std::span<const Tensor> tensors) {
  std::vector<AlikeTensors> parts;
  for (const auto& tensor : tensors) {
    auto part = std::ranges::find_if(parts, [&](const AlikeTensors& candidate) {
      return candidate.device == tensor.device() && candidate.dtype == tensor.scalar_type();
    });
    if (part == parts.end()) part = parts.insert(parts.end(), {tensor.device(), tensor.scalar_type(), {}});
    part->tensors.push_back(tensor);
  }
  return parts;
}

}  // namespace levin::optim::detail
