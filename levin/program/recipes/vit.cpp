#include "levin/program/recipes/vit.h"

#include "levin/nn/functional.h"

namespace levin::cli {
namespace {

ImageInput smoothed(ImageInput input, double label_smoothing) {
  input.label_smoothing = label_smoothing;
  return input;
}

}  // namespace

VitImages::VitImages(ImageInput input, const VitSizes& sizes, int64_t image_size, int64_t channels)
    : ImageClassifier(smoothed(std::move(input), sizes.label_smoothing)),
      options_{.image_size = image_size,
               .patch_size = sizes.patch_size,
               .num_layers = sizes.num_layers,
               .num_heads = sizes.num_heads,
               .hidden_dim = sizes.hidden_dim,
               .mlp_dim = sizes.mlp_dim,
               .dropout = sizes.dropout,
               .num_classes = 10,
               .in_channels = channels},
      label_smoothing_(sizes.label_smoothing),
      net(register_module("net", models::vit(options_))) {}

TrainingStep VitImages::make_step() const {
  auto made = models::vit(options_);
  const CrossEntropyOptions loss{.label_smoothing = label_smoothing_};
  return {
      made.ptr(),
      [made](const Batch& batch) mutable { return made(batch["image"].to(made->parameters().front().scalar_type())); },
      [loss](const Tensor& scores, const Batch& batch) { return cross_entropy(scores, batch["label"], loss); }};
}

}  // namespace levin::cli
