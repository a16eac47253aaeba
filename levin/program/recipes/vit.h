#pragma once

#include "levin/models/vit.h"
#include "levin/program/recipes/images.h"
#include "levin/trainer/callbacks/memory_report.h"

namespace levin::cli {

/// Options of the ViT recipes; each has its own defaults.
struct VitSizes {
  int64_t patch_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t hidden_dim = 0;
  int64_t mlp_dim = 0;
  double dropout = 0;
  double label_smoothing = 0;

  void fields(auto f) {
    f("patch_size", patch_size, "patch size in pixels; must divide the image size");
    f("num_layers", num_layers, "encoder blocks");
    f("num_heads", num_heads, "attention heads; must divide hidden_dim");
    f("hidden_dim", hidden_dim, "embedding dimension");
    f("mlp_dim", mlp_dim, "hidden dimension of the MLP blocks");
    f("dropout", dropout, "dropout probability");
    f("label_smoothing", label_smoothing, "label smoothing");
  }
};

/// A vision transformer for image classification that predicts the memory of its step.
class VitImages : public ImageClassifier, public PredictsMemory {
 public:
  VitImages(ImageInput input, const VitSizes& sizes, int64_t image_size, int64_t channels);
  Tensor logits(const Tensor& images) override { return net(images); }
  TrainingStep make_step() const override;

 private:
  models::ViTOptions options_;
  double label_smoothing_;

 public:
  models::VisionTransformer net;
};

}  // namespace levin::cli
