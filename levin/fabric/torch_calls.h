#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "levin/checkpoint/state.h"

// Functions of torch that programs keep calling after fabric.setup, and that know nothing of shards or of scaled
// gradients. These overloads are better matches for what such programs pass; without a Fabric they do what torch does.

namespace levin::detail {

struct FabricCore;

/// From here on parameters of modules that were set up with it are known to the functions below.
void watch_torch_calls(const std::shared_ptr<FabricCore>& core);

/// torch::nn::utils::clip_grad_norm_ by the norm of the full gradients. An Error where gradients are scaled.
double clip_grad_norm(const std::vector<at::Tensor>& params, double max_norm, double norm_type,
                      bool error_if_nonfinite);

/// Throws where one of them is this rank's shard, which torch::save would write as if it were everything.
void check_saves_full(const std::vector<at::Tensor>& params);

template <class T>
concept SavedByTorch = ModuleHolder<T> || SharedModule<T> || std::derived_from<T, torch::optim::Optimizer>;

template <class T>
const auto& module_or_optimizer(const T& value) {
  if constexpr (std::derived_from<T, torch::optim::Optimizer>)
    return value;
  else
    return *value.operator->();
}

inline std::vector<at::Tensor> parameters_of(const torch::nn::Module& module) {
  return module.parameters();
}
inline std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

}  // namespace levin::detail

namespace torch::nn::utils {

inline double clip_grad_norm_(std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return levin::detail::clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite);
}
inline double clip_grad_norm_(std::vector<at::Tensor>&& parameters, double max_norm, double norm_type = 2.0,
                              bool error_if_nonfinite = false) {
  return levin::detail::clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite);
}

}  // namespace torch::nn::utils

namespace torch {

template <typename Value, typename... SaveToArgs>
requires levin::detail::SavedByTorch<Value>
void save(const Value& value, SaveToArgs&&... args) {
  const auto& object = levin::detail::module_or_optimizer(value);
  levin::detail::check_saves_full(levin::detail::parameters_of(object));
  serialize::OutputArchive archive;
  object.save(archive);
  archive.save_to(std::forward<SaveToArgs>(args)...);
}

}  // namespace torch
