#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

namespace levin::detail {

/// Parameters, then buffers, by name: each name once, in the order of registration, and what is not defined left out.
/// This is what weight files and checkpoints hold of a module.
inline std::vector<std::pair<std::string, at::Tensor>> named_tensors(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::unordered_set<std::string> names;
  const auto add = [&](const auto& items) {
    for (const auto& item : items)
      if (item.value().defined() && names.insert(item.key()).second) tensors.emplace_back(item.key(), item.value());
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return tensors;
}

}  // namespace levin::detail
