#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/config/fields.h"
#include "levin/optim/optimizer.h"

namespace levin::optim {

/// An optimizer as a memory estimate is asked about it: by one word, without options.
struct EstimatedOptimizer {
  /// "adamw", "sgd_momentum"
  std::string word;
  /// The options that the word stands for.
  std::function<config::AnyOptions()> options;
};

/// What an optimizer says of itself in its own file (`AdamW::describe()`): configs, flags, help and memory estimates
/// know it by this. What it keeps for a parameter it says by OptimizerTraits.
struct OptimizerClass {
  /// In configs and flags: "AdamW".
  std::string name;
  /// One line.
  std::string help;
  /// By default.
  std::function<config::AnyOptions()> options;
  /// `options` must be those of this class.
  std::function<Optimizer(const config::AnyOptions& options, std::vector<Tensor> params)> make;
  std::vector<EstimatedOptimizer> estimates;
};

/// All optimizers. A new one is a file pair, its include in optim.h and its row in registry.cpp.
const std::vector<OptimizerClass>& optimizer_classes();

}  // namespace levin::optim
