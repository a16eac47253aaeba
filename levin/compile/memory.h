#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include "levin/compile/graph.h"

namespace levin::compile {

/// A tensor over memory, without autograd.
Tensor tensor_over(const c10::Storage& memory, const View& view);
/// New memory.
c10::Storage new_memory(c10::Device device, int64_t bytes);

}  // namespace levin::compile
