#include "levin/program/recipes.h"

namespace levin::cli {

// Each is defined in a file of recipes/.
Recipe vit_fashion_mnist(), finetune_fashion_mnist(), mlp_fashion_mnist(), autoencoder_fashion_mnist(), vit_cifar10(),
    resnet50_cifar10(), resnet50_images(), finetune_cifar10(), gpt_text(), text_classification(), finetune_lm(),
    boring();

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{
      vit_fashion_mnist(), finetune_fashion_mnist(), mlp_fashion_mnist(), autoencoder_fashion_mnist(),
      vit_cifar10(),       resnet50_cifar10(),       resnet50_images(),   finetune_cifar10(),
      gpt_text(),          text_classification(),    finetune_lm(),       boring(),
  };
  return all;
}

}  // namespace levin::cli
