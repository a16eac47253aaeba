#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/distributed/collective.h"

namespace levin::detail {

using at::Tensor;

/// A parameter or buffer under its name.
struct NamedState {
  std::string name;
  Tensor tensor;
};

/// Each tensor once, under the first of its names, however often it is registered.
std::vector<NamedState> unique_parameters(const torch::nn::Module& module);
std::vector<NamedState> unique_buffers(const torch::nn::Module& module);
/// Those that training may change, which ranks make equal again and again. Bytes are packed weights, and stay.
std::vector<NamedState> changing_buffers(const torch::nn::Module& module);

/// Throws, on every rank and with the same line, when the states of the ranks differ in number, name, shape or dtype.
/// `strategy` stands in the line; `kind` is "parameter" or "buffer".
void check_same_states(std::string_view strategy, Collective& group, std::string_view kind,
                       std::span<const NamedState> states);

/// Broadcasts rank `src`'s values.
void broadcast_states(Collective& group, std::span<const NamedState> states, int src = 0);

}  // namespace levin::detail
