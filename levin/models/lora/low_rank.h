#pragma once

#include <string>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/nn/unit.h"

namespace levin::models {

using at::Tensor;

/// A change of low rank of some rows of a linear layer: [..., in] to scale * B(A(x)), [..., rows].
struct LowRankImpl : torch::nn::Module {
  LowRankImpl(int64_t in, int64_t rows, int64_t rank, at::TensorOptions like);
  Tensor forward(const Tensor& x);

  /// The first row of the layer that it changes.
  int64_t first_row = 0;
  double alpha = 1, scale = 1, dropout = 0;
  /// The module that it belongs to as transformers calls it: "model.layers.0.self_attn.q_proj".
  std::string module_name;
  /// Rows of B are by head in files (see WeightLayout::kByHead).
  bool by_head = false;
  Tensor a, b;
};
LEVIN_MODULE(LowRank);

}  // namespace levin::models
