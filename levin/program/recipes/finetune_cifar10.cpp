// Fine-tunes pretrained weights on CIFAR-10 and compares with training from scratch.
#include <ATen/ops/upsample_bilinear2d.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/models/load_weights.h"
#include "levin/models/registry.h"
#include "levin/models/resnet.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/cifar10.h"
#include "levin/program/recipes/study.h"

namespace levin::cli {
namespace {

/// A model by name; images are resized to the size it was pretrained with.
class NamedClassifier : public ImageClassifier {
 public:
  struct Options {
    std::string name = "vit_b_16";
    std::filesystem::path weights = {};
    int64_t image_size = 224;

    void fields(auto f) {
      f("name", name, "model by name: vit_b_16, resnet50, ...");
      f("weights", weights, "pretrained weights: torchvision's .pth, or a .safetensors file");
      f("image_size", image_size, "size that images are resized to");
    }
  };

  explicit NamedClassifier(const Options& options)
      : ImageClassifier(imagenet_input()),
        net(models::make(options.name, {.num_classes = 10, .image_size = options.image_size})),
        image_size_(options.image_size) {
    register_module("net", net.ptr());
  }

  Tensor logits(const Tensor& images) override {
    if (images.size(2) == image_size_) return net(images);
    return net(at::upsample_bilinear2d(images, {image_size_, image_size_}, /*align_corners=*/false));
  }

  void load(const std::filesystem::path& weights) {
    models::load_weights(
        *net, weights, {.ignore = {net->as<models::ResNetImpl>() ? "fc.*" : "heads.*"}, .interpolate_positions = true});
  }

  models::ImageModel net;

 private:
  // Such weights were made for images by these means and spreads.
  static ImageInput imagenet_input() {
    auto input = cifar10_input();
    input.mean = {0.485, 0.456, 0.406};
    input.std = {0.229, 0.224, 0.225};
    return input;
  }

  int64_t image_size_;
};

class FinetuneCifar10 final : public FinetuneStudy {
 public:
  void add_fields(std::vector<config::Field>& into) override {
    config::add_fields(into, model_options_, "model.");
    config::add_fields(into, data_options_, "data.");
  }

 protected:
  std::shared_ptr<ImageClassifier> make_model(const Configure& configure) override {
    auto model = std::make_shared<detail::Configured<NamedClassifier>>(model_options_);
    model->configure = configure;
    return model;
  }
  std::shared_ptr<MemoryImages> make_data() override { return std::make_shared<Cifar10>(data_options_); }
  const char* recipe_of_models() const override { return nullptr; }
  std::string subject() const override {
    return fmt::format("{} on {}{}; learned before: {}", model_options_.name,
                       data_options_.train_size > 0 ? fmt::format("{} images of ", data_options_.train_size) : "",
                       data_name_, model_options_.weights.filename().string());
  }
  void prepare(Trainer&) override {
    LEVIN_CHECK(!model_options_.weights.empty(),
                "[levin fit] model.weights must name the weights to fine-tune from: ", "torchvision's file for ",
                model_options_.name, " (.pth), or the same as .safetensors");
    images().setup("fit");
    data_name_ = images().name();
    // What does not fit should be known before anything is trained.
    NamedClassifier(model_options_).load(model_options_.weights);
  }
  void load_pretrained(ImageClassifier& model) override {
    dynamic_cast<NamedClassifier&>(model).load(model_options_.weights);
  }

 private:
  NamedClassifier::Options model_options_;
  Cifar10::Options data_options_;
  std::string data_name_;
};

}  // namespace

Recipe finetune_cifar10() {
  return {"finetune_cifar10", "fine-tuning of pretrained weights on CIFAR-10",
          R"(trainer:
  max_epochs: 3
  precision: bf16-mixed
  gradient_clip_val: 1.0
  enable_checkpointing: false
  enable_model_summary: false
optimizer:
  class: AdamW
  lr: 1e-4
  weight_decay: 0.05
lr_scheduler:
  class: OneCycleLR
  pct_start: 0.15
)",
          []() -> std::unique_ptr<TrainProgram> { return std::make_unique<FinetuneCifar10>(); }};
}

}  // namespace levin::cli
