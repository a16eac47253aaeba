#pragma once

#include <ATen/core/Tensor.h>

/// A weight that two layers share gets the sum of two gradients. The layer whose backward comes first says which
/// gradient it gives; the other one adds to that in place, and gives none of the same size.
namespace levin::kernels {

using at::Tensor;

/// Called in the backward of a node: it gives `grad` for its input of that number. Remembered on this thread until
/// another one is.
void remember_gradient(const Tensor& grad, uint32_t input);

/// Called in the backward of a node: the gradient that was remembered for what is its own input of that number. It
/// waits for this node, nobody else has it, and it was computed on the current stream; else undefined.
Tensor take_gradient(uint32_t input);

}  // namespace levin::kernels
