#pragma once

// The rule by which both sides make weights and images (make_vision_fixtures.py has the other half).
#include <cmath>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "levin/core/each_tensor.h"
#include "levin/nn/deferred_init.h"

namespace levin::testing {

constexpr int64_t kRulePeriod = 1000003;

/// kRulePeriod numbers in [-1, 1): the bits of a mixed counter, exact in float32.
inline const Tensor& rule_table() {
  static const Tensor table = [] {
    auto h = torch::arange(kRulePeriod, torch::kInt64);
    for (const auto& [shift, factor] : {std::pair{16, 0x85EBCA6Bll}, {13, 0xC2B2AE35ll}})
      h = (h ^ h.bitwise_right_shift(shift)).mul(factor).bitwise_and(0xFFFFFFFFll);
    h = h ^ h.bitwise_right_shift(16);
    return h.bitwise_right_shift(8).to(torch::kFloat) * std::pow(2.0, -23) - 1;
  }();
  return table;
}

/// A stretch of the table that begins at the FNV-1a hash of the name.
inline Tensor rule_numbers(const std::string& name, int64_t count) {
  uint32_t hash = 0x811C9DC5;
  for (const unsigned char byte : name) hash = (hash ^ byte) * 0x01000193;
  const int64_t begin = hash % kRulePeriod;
  return rule_table().repeat({(begin + count + kRulePeriod - 1) / kRulePeriod}).narrow(0, begin, count);
}

inline void rule_fill(const std::string& name, Tensor tensor) {
  torch::NoGradGuard no_grad;
  if (name.ends_with("num_batches_tracked")) {
    tensor.zero_();
    return;
  }
  const auto values = rule_numbers(name, tensor.numel()).view(tensor.sizes());
  if (name.ends_with("class_token") || name.ends_with("pos_embedding"))
    tensor.copy_(values * 0.5);
  else if (name.ends_with("running_var"))
    tensor.copy_(values * 0.3 + 1);
  else if (tensor.dim() > 1)
    tensor.copy_(values * std::sqrt(3.0 / static_cast<double>(tensor.numel() / tensor.size(0))));
  else if (name.ends_with("weight"))
    tensor.copy_(values * 0.1 + 1);
  else
    tensor.copy_(values * 0.1);
}

/// A model made by `make`, with its weights and buffers filled by the rule instead of at random.
template <class Make>
auto rule_model(Make make) {
  auto model = init_module(make, {.deferred = true});
  std::vector<Tensor> tensors = model->parameters();
  for (const auto& buffer : model->buffers()) tensors.push_back(buffer);
  materialize(tensors, /*initialize=*/false);
  for (auto& item : model->named_parameters()) rule_fill(item.key(), item.value());
  for (auto& item : model->named_buffers()) rule_fill(item.key(), item.value());
  return model;
}

/// The norm, and the products with two fixed vectors: enough to see any difference, in three numbers.
inline std::vector<double> rule_digest(const std::string& name, const Tensor& tensor) {
  const auto flat = tensor.detach().flatten().to(torch::kDouble);
  std::vector<double> digest{flat.norm().item<double>()};
  for (const auto* suffix : {"#1", "#2"})
    digest.push_back(flat.dot(rule_numbers(name + suffix, flat.numel()).to(torch::kDouble)).item<double>());
  return digest;
}

}  // namespace levin::testing
