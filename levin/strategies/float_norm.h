#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/promote_types.h>

namespace levin::detail {

/// The norm of one gradient, in float32 at least: in 16 bits it would be rounded, or infinite.
inline at::Tensor float_norm(const at::Tensor& grad, double norm_type) {
  const auto type = at::promote_types(grad.scalar_type(), at::kFloat);
  return at::linalg_vector_norm(grad, norm_type, std::nullopt, /*keepdim=*/false, type);
}

}  // namespace levin::detail
