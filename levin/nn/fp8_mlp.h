#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "levin/kernels/fp8/fp8_layers.h"

namespace levin::nn {

/// down(activation(up(x))) as one operation, with the same numbers, where precision "fp8-mixed" can do that and nothing
/// is attached to the two layers; else nothing. A layer is a unit with a weight and a bias.
template <class Layer>
std::optional<at::Tensor> fp8_mlp(const at::Tensor& x, const Layer& up, kernels::Activation kind, const Layer& down) {
  if (up->num_interceptors() > 0 || down->num_interceptors() > 0) return std::nullopt;
  const auto both = kernels::fp8_pair(x, up->weight, up->bias, down->weight, down->bias);
  return both ? std::optional(kernels::fp8_mlp(x, both->first, kind, both->second)) : std::nullopt;
}

}  // namespace levin::nn
