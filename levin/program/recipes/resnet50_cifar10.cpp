#include "levin/models/registry.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/cifar10.h"

namespace levin::cli {
namespace {

class ResNetCifar : public ImageClassifier {
 public:
  struct Options {
    std::string name = "resnet50";
    bool small_images = true;
    bool channels_last = true;
    bool zero_init_residual = true;
    double label_smoothing = 0.1;

    void fields(auto f) {
      f("name", name, "ResNet by name: resnet18, resnet50, wide_resnet50_2, ...");
      f("small_images", small_images, "stem for 32 x 32 images: 3 x 3 convolution, no max pooling");
      f("channels_last", channels_last, "use the channels_last memory format");
      f("zero_init_residual", zero_init_residual, "initialize the last norm of each block to zero");
      f("label_smoothing", label_smoothing, "label smoothing");
    }
  };

  explicit ResNetCifar(const Options& options)
      : ImageClassifier(input_of(options)),
        net_(models::make(options.name, {.num_classes = 10,
                                         .zero_init_residual = options.zero_init_residual,
                                         .small_images = options.small_images,
                                         .channels_last = options.channels_last})) {
    if (options.channels_last) models::to_channels_last(*net_);
    register_module("net", net_.ptr());
  }
  Tensor logits(const Tensor& images) override { return net_(images); }

 private:
  static ImageInput input_of(const Options& options) {
    auto input = cifar10_input();
    input.label_smoothing = options.label_smoothing;
    input.channels_last = options.channels_last;
    return input;
  }

  models::ImageModel net_;
};

}  // namespace

Recipe resnet50_cifar10() {
  return {"resnet50_cifar10", "image classification on CIFAR-10 with ResNet-50",
          R"(trainer:
  max_epochs: 30
  precision: bf16-mixed
optimizer:
  class: SGD
  lr: 0.1
  momentum: 0.9
  nesterov: true
  weight_decay: 5e-4
lr_scheduler:
  class: OneCycleLR
  pct_start: 0.2
)",
          []() -> std::unique_ptr<TrainProgram> { return std::make_unique<TrainProgramOf<ResNetCifar, Cifar10>>(); }};
}

}  // namespace levin::cli
