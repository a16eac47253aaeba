#include "levin/program/recipes/vit_fashion_mnist.h"

#include "levin/program/recipes.h"

namespace levin::cli {
namespace {

ImageInput with_augmentation(const VitClassifier::Options& options) {
  auto input = fashion_mnist_input();
  input.flip = options.flip;
  input.shift = options.shift;
  return input;
}

}  // namespace

VitClassifier::VitClassifier(const Options& options) : VitImages(with_augmentation(options), options, 28, 1) {}

Recipe vit_fashion_mnist() {
  return {"vit_fashion_mnist", "image classification on Fashion-MNIST with ViT",
          R"(trainer:
  max_epochs: 10
  gradient_clip_val: 1.0
optimizer:
  class: AdamW
  lr: 2e-3
  weight_decay: 0.05
lr_scheduler:
  class: OneCycleLR
  pct_start: 0.15
)",
          []() -> std::unique_ptr<TrainProgram> {
            return std::make_unique<TrainProgramOf<VitClassifier, FashionMnist>>();
          }};
}

}  // namespace levin::cli
