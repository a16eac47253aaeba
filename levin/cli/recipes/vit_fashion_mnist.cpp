#include "levin/cli/recipes.h"
#include "levin/cli/recipes/fashion_mnist.h"
#include "levin/models/vit.h"

namespace levin::cli {
namespace {

class VitClassifier : public ImageClassifier {
 public:
  struct Options {
    int64_t patch_size = 7;
    int64_t num_layers = 4;
    int64_t num_heads = 4;
    int64_t hidden_dim = 64;
    int64_t mlp_dim = 128;
    double dropout = 0;

    void fields(auto f) {
      f("patch_size", patch_size, "pixels of a patch's side; must divide 28");
      f("num_layers", num_layers, "blocks of the encoder");
      f("num_heads", num_heads, "heads of the attention; must divide hidden_dim");
      f("hidden_dim", hidden_dim, "width of the tokens");
      f("mlp_dim", mlp_dim, "width inside the blocks");
      f("dropout", dropout, "share of values dropped in training");
    }
  };

  explicit VitClassifier(const Options& options)
      : net_(register_module("net", models::vit({.image_size = 28,
                                                 .patch_size = options.patch_size,
                                                 .num_layers = options.num_layers,
                                                 .num_heads = options.num_heads,
                                                 .hidden_dim = options.hidden_dim,
                                                 .mlp_dim = options.mlp_dim,
                                                 .dropout = options.dropout,
                                                 .num_classes = 10,
                                                 .in_channels = 1}))) {}
  Tensor logits(const Tensor& images) override { return net_(images); }

 private:
  models::VisionTransformer net_;
};

}  // namespace

Recipe vit_fashion_mnist() {
  return {"vit_fashion_mnist", "a small vision transformer: kinds of clothes",
          R"(trainer:
  max_epochs: 4
  gradient_clip_val: 1.0
optimizer:
  class: AdamW
  lr: 1.5e-3
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
