#pragma once

#include <utility>

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace levin::testing {

/// The smallest module worth training: one linear layer.
struct BoringModuleImpl : torch::nn::Module {
  explicit BoringModuleImpl(int64_t in = 32, int64_t out = 2);
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(BoringModule);

/// Inputs [n, features] and targets [n, 2] that are the same in every process and do not touch the default generator.
std::pair<at::Tensor, at::Tensor> boring_data(int64_t n, int64_t features = 32, uint64_t seed = 1);

/// The rows of one rank when a tensor is sharded evenly along its first dimension.
at::Tensor shard_of(const at::Tensor& full, int rank, int world);

}  // namespace levin::testing
