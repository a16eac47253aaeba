#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/error.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/fashion_mnist.h"

namespace levin::cli {
namespace {

class MlpClassifier : public ImageClassifier {
 public:
  struct Options {
    std::vector<int64_t> hidden = {256, 128};
    double dropout = 0.1;

    void fields(auto f) {
      f("hidden", hidden, "widths of the hidden layers");
      f("dropout", dropout, "dropout probability");
    }
  };

  explicit MlpClassifier(const Options& options) : ImageClassifier(fashion_mnist_input()) {
    int64_t width = 28 * 28;
    for (const auto next : options.hidden) {
      LEVIN_CHECK(next > 0, "[recipe] model.hidden: a width of ", next, " is not possible");
      net_->push_back(torch::nn::Linear(width, next));
      net_->push_back(torch::nn::ReLU());
      net_->push_back(torch::nn::Dropout(options.dropout));
      width = next;
    }
    net_->push_back(torch::nn::Linear(width, 10));
    register_module("net", net_);
  }
  Tensor logits(const Tensor& images) override { return net_->forward(images.flatten(1)); }

 private:
  torch::nn::Sequential net_;
};

}  // namespace

Recipe mlp_fashion_mnist() {
  return {"mlp_fashion_mnist", "image classification on Fashion-MNIST with an MLP",
          R"(trainer:
  max_epochs: 5
optimizer:
  class: AdamW
  lr: 1e-3
)",
          []() -> std::unique_ptr<TrainProgram> {
            return std::make_unique<TrainProgramOf<MlpClassifier, FashionMnist>>();
          }};
}

}  // namespace levin::cli
