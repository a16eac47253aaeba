#include "levin/program/recipes.h"
#include "levin/program/recipes/cifar10.h"
#include "levin/program/recipes/vit.h"

namespace levin::cli {
namespace {

class VitCifar : public VitImages {
 public:
  struct Options : VitSizes {
    Options() : VitSizes{4, 6, 6, 192, 768, 0.1, 0.1} {}
  };
  explicit VitCifar(const Options& options) : VitImages(cifar10_input(), options, 32, 3) {}
};

}  // namespace

Recipe vit_cifar10() {
  return {"vit_cifar10", "image classification on CIFAR-10 with ViT",
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
