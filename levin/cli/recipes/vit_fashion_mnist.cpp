#include "levin/cli/recipes/vit_fashion_mnist.h"

#include "levin/cli/recipes.h"

namespace levin::cli {
namespace {

ImageInput with_augmentation(const VitClassifier::Options& options) {
  auto input = fashion_mnist_input();
  input.flip = options.flip;
  input.shift = options.shift;
  input.label_smoothing = options.label_smoothing;
  return input;
}

}  // namespace

VitClassifier::VitClassifier(const Options& options)
    : ImageClassifier(with_augmentation(options)),
      net(register_module("net", models::vit({.image_size = 28,
                                              .patch_size = options.patch_size,
                                              .num_layers = options.num_layers,
                                              .num_heads = options.num_heads,
                                              .hidden_dim = options.hidden_dim,
                                              .mlp_dim = options.mlp_dim,
                                              .dropout = options.dropout,
                                              .num_classes = 10,
                                              .in_channels = 1}))) {}

Recipe vit_fashion_mnist() {
  return {"vit_fashion_mnist", "a small vision transformer: kinds of clothes",
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
