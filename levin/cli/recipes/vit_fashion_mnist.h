#pragma once

#include "levin/cli/recipes/fashion_mnist.h"
#include "levin/models/vit.h"

namespace levin::cli {

/// A small vision transformer for 28 x 28 pixels.
class VitClassifier : public ImageClassifier {
 public:
  struct Options {
    int64_t patch_size = 7;
    int64_t num_layers = 4;
    int64_t num_heads = 4;
    int64_t hidden_dim = 64;
    int64_t mlp_dim = 128;
    double dropout = 0;
    double flip = 0;
    int64_t shift = 0;
    double label_smoothing = 0;

    void fields(auto f) {
      f("patch_size", patch_size, "pixels of a patch's side; must divide 28");
      f("num_layers", num_layers, "blocks of the encoder");
      f("num_heads", num_heads, "heads of the attention; must divide hidden_dim");
      f("hidden_dim", hidden_dim, "width of the tokens");
      f("mlp_dim", mlp_dim, "width inside the blocks");
      f("dropout", dropout, "share of values dropped in training");
      f("flip", flip, "share of the training images that are mirrored");
      f("shift", shift, "pixels that training images are moved by, at most");
      f("label_smoothing", label_smoothing, "share of the label given to all classes");
    }
  };

  explicit VitClassifier(const Options& options);
  Tensor logits(const Tensor& images) override { return net(images); }

  models::VisionTransformer net = nullptr;
};

}  // namespace levin::cli
