#include "levin/models/registry.h"
#include "levin/nn/functional.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/image_folder.h"
#include "levin/program/recipes/images.h"
#include "levin/trainer/callbacks/memory_report.h"

namespace levin::cli {
namespace {

class ResNetImages : public ImageClassifier, public PredictsMemory {
 public:
  struct Options {
    std::string name = "resnet50";
    bool channels_last = true;
    bool zero_init_residual = true;
    double label_smoothing = 0.1;

    void fields(auto f) {
      f("name", name, "ResNet by name: resnet18, resnet50, wide_resnet50_2, ...");
      f("channels_last", channels_last, "use the channels_last memory format");
      f("zero_init_residual", zero_init_residual, "initialize the last norm of each block to zero");
      f("label_smoothing", label_smoothing, "label smoothing");
    }
  };

  // Mean and spread of ImageNet.
  explicit ResNetImages(const Options& options)
      : ImageClassifier({.mean = {0.485, 0.456, 0.406},
                         .std = {0.229, 0.224, 0.225},
                         .label_smoothing = options.label_smoothing,
                         .channels_last = options.channels_last}),
        options_(options) {}

  void use_data(const std::shared_ptr<ImageFolder>& data) {
    num_classes_ = data->num_classes();
    net_ = make();
    register_module("net", net_.ptr());
  }
  Tensor logits(const Tensor& images) override { return net_(images); }
  TrainingStep make_step() const override {
    auto net = make();
    const CrossEntropyOptions loss{.label_smoothing = options_.label_smoothing};
    const auto format = options_.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    return {net.ptr(),
            [net, format](const Batch& batch) {
              return net(batch["image"].to(net->parameters().front().scalar_type()).contiguous(format));
            },
            [loss](const Tensor& scores, const Batch& batch) { return cross_entropy(scores, batch["label"], loss); }};
  }

 private:
  models::ImageModel make() const {
    auto net = models::make(options_.name, {.num_classes = num_classes_,
                                            .zero_init_residual = options_.zero_init_residual,
                                            .channels_last = options_.channels_last});
    if (options_.channels_last) models::to_channels_last(*net);
    return net;
  }

  Options options_;
  int64_t num_classes_ = 0;
  models::ImageModel net_ = nullptr;
};

}  // namespace

Recipe resnet50_images() {
  return {
      "resnet50_images", "classification of a folder of images, ResNet-50",
      R"(trainer:
  max_epochs: 90
  precision: bf16-mixed
optimizer:
  class: SGD
  lr: 0.1
  momentum: 0.9
  nesterov: true
  weight_decay: 5e-5
lr_scheduler:
  class: OneCycleLR
  pct_start: 0.1
)",
      []() -> std::unique_ptr<TrainProgram> { return std::make_unique<TrainProgramOf<ResNetImages, ImageFolder>>(); }};
}

}  // namespace levin::cli
