#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::optim {

using at::Tensor;

/// Sets the gradients of the parameters to none, or fills them with zeros in place: gradients may be views into a flat
/// bucket, so they are never detached nor replaced.
void zero_grad(const std::vector<Tensor>& params, bool set_to_none = true);

}  // namespace levin::optim
