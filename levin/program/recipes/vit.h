#pragma once

#include "levin/models/vit.h"
#include "levin/program/recipes/images.h"
#include "levin/trainer/callbacks/memory_report.h"

namespace levin::cli {

/// What recipes of vision transformers can be told; each has defaults of its own.
struct VitSizes {
  int64_t patch_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t hidden_dim = 0;
  int64_t mlp_dim = 0;
  double dropout = 0;
  double label_smoothing = 0;

  void fields(auto f) {
    f("patch_size", patch_size, "pixels of a patch's side; must divide the image's");
    f("num_layers", num_layers, "blocks of the encoder");
    f("num_heads", num_heads, "heads of the attention; must divide hidden_dim");
    f("hidden_dim", hidden_dim, "width of the tokens");
    f("mlp_dim", mlp_dim, "width inside the blocks");
    f("dropout", dropout, "share of values dropped in training");
    f("label_smoothing", label_smoothing, "share of the label given to all classes");
  }
};

/// A vision transformer that learns labels of images, and foresees what its step takes.
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
