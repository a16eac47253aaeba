#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/nn/policy.h"

namespace levin::detail {

using at::Tensor;

/// A parameter and the unit that owns it: the innermost one that holds all places where it is registered.
struct OwnedParam {
  std::string name;
  Tensor param;
  /// Index into the units; their number for the root.
  size_t unit = 0;
};
/// Every parameter once. `units` are as select_units gives them.
std::vector<OwnedParam> owned_params(torch::nn::Module& module, const std::vector<SelectedUnit>& units);

}  // namespace levin::detail
