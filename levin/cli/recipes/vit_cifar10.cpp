#include "levin/cli/recipes.h"
#include "levin/cli/recipes/cifar10.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/trainer/callbacks/memory_report.h"

namespace levin::cli {
namespace {

class VitCifar : public ImageClassifier, public PredictsMemory {
 public:
  struct Options {
    int64_t patch_size = 4;
    int64_t num_layers = 6;
    int64_t num_heads = 6;
    int64_t hidden_dim = 192;
    int64_t mlp_dim = 768;
    double dropout = 0.1;
    double label_smoothing = 0.1;

    void fields(auto f) {
      f("patch_size", patch_size, "pixels of a patch's side; must divide 32");
      f("num_layers", num_layers, "blocks of the encoder");
      f("num_heads", num_heads, "heads of the attention; must divide hidden_dim");
      f("hidden_dim", hidden_dim, "width of the tokens");
      f("mlp_dim", mlp_dim, "width inside the blocks");
      f("dropout", dropout, "share of values dropped in training");
      f("label_smoothing", label_smoothing, "share of the label given to all classes");
    }
  };

  explicit VitCifar(const Options& options)
      : ImageClassifier(input_of(options)), options_(options), net_(register_module("net", make(options))) {}
  Tensor logits(const Tensor& images) override { return net_(images); }
  TrainingStep make_step() const override {
    auto net = make(options_);
    const CrossEntropyOptions loss{.label_smoothing = options_.label_smoothing};
    return {
        net.ptr(),
        [net](const Batch& batch) mutable { return net(batch["image"].to(net->parameters().front().scalar_type())); },
        [loss](const Tensor& scores, const Batch& batch) { return cross_entropy(scores, batch["label"], loss); }};
  }

 private:
  static models::VisionTransformer make(const Options& options) {
    return models::vit({.image_size = 32,
                        .patch_size = options.patch_size,
                        .num_layers = options.num_layers,
                        .num_heads = options.num_heads,
                        .hidden_dim = options.hidden_dim,
                        .mlp_dim = options.mlp_dim,
                        .dropout = options.dropout,
                        .num_classes = 10});
  }
  static ImageInput input_of(const Options& options) {
    auto input = cifar10_input();
    input.label_smoothing = options.label_smoothing;
    return input;
  }

  Options options_;
  models::VisionTransformer net_;
};

}  // namespace

Recipe vit_cifar10() {
  return {"vit_cifar10", "a vision transformer: kinds of things",
          R"(trainer:
  max_epochs: 50
  precision: bf16-mixed
  gradient_clip_val: 1.0
optimizer:
  class: AdamW
  lr: 1e-3
  weight_decay: 0.05
lr_scheduler:
  class: OneCycleLR
  pct_start: 0.2
)",
          []() -> std::unique_ptr<TrainProgram> { return std::make_unique<TrainProgramOf<VitCifar, Cifar10>>(); }};
}

}  // namespace levin::cli
