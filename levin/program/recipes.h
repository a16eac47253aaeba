#pragma once

#include <memory>
#include <vector>

#include "levin/cli/train_program.h"

namespace levin::cli {

/// A ready model with its data and the settings it trains well with.
struct Recipe {
  const char* name;
  /// Task, dataset and model in a line of `levin recipes`: at most 50 characters.
  const char* summary;
  /// Default values of its fields, as a config file says them; config files and flags override them.
  const char* defaults;
  std::unique_ptr<TrainProgram> (*make)();
};

/// All recipes, in the order of `levin recipes`: each is a file in recipes/ and a row in recipes.cpp.
const std::vector<Recipe>& recipes();

}  // namespace levin::cli
