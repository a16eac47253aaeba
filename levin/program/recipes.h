#pragma once

#include <memory>
#include <vector>

#include "levin/cli/train_program.h"

namespace levin::cli {

/// A ready model with its data and the settings it trains well with.
struct Recipe {
  const char* name;
  const char* summary;
  /// Values under all config files and flags, as a config file says them.
  const char* defaults;
  std::unique_ptr<TrainProgram> (*make)();
};

/// All recipes; each is a file in recipes/.
const std::vector<Recipe>& recipes();

Recipe vit_fashion_mnist();
Recipe finetune_fashion_mnist();
Recipe vit_cifar10();
Recipe resnet50_cifar10();
Recipe finetune_cifar10();
Recipe mlp_fashion_mnist();
Recipe autoencoder_fashion_mnist();
Recipe boring();

}  // namespace levin::cli
