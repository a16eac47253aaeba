#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// In what dtype a matrix product with the tensor is computed here: autocast's where it is enabled, else the tensor's.
at::ScalarType product_dtype(const Tensor& tensor);

}  // namespace levin::kernels
