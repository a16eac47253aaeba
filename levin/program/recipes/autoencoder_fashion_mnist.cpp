#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "levin/nn/functional.h"
#include "levin/program/recipes.h"
#include "levin/program/recipes/fashion_mnist.h"

namespace levin::cli {
namespace {

/// Reconstructs images from a small latent code.
class Autoencoder : public TrainModule {
 public:
  struct Options {
    int64_t hidden = 128;
    int64_t latent = 16;

    void fields(auto f) {
      f("hidden", hidden, "width of the hidden layers");
      f("latent", latent, "size of the latent code");
    }
  };

  explicit Autoencoder(const Options& o)
      : encoder_(
            register_module("encoder", torch::nn::Sequential(torch::nn::Linear(28 * 28, o.hidden), torch::nn::ReLU(),
                                                             torch::nn::Linear(o.hidden, o.latent)))),
        decoder_(
            register_module("decoder", torch::nn::Sequential(torch::nn::Linear(o.latent, o.hidden), torch::nn::ReLU(),
                                                             torch::nn::Linear(o.hidden, 28 * 28)))) {}

  StepOutput training_step(const Batch& batch, const StepInfo&) override { return step(batch, "train_loss"); }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return step(batch, "val_loss"); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return step(batch, "test_loss"); }
  /// The reconstruction [B, 784] and the latent code [B, latent].
  StepOutput predict_step(const Batch& batch, const StepInfo&) override {
    const auto code = encoder_->forward(flat(batch));
    return {decoder_->forward(code), {{"latent", code}}};
  }

 private:
  static Tensor flat(const Batch& batch) { return normalized(batch["image"]).flatten(1); }

  StepOutput step(const Batch& batch, std::string_view name) {
    const auto image = flat(batch);
    auto loss = levin::mse_loss(decoder_->forward(encoder_->forward(image)), image);
    log(name, loss, {.prog_bar = true, .sync_dist = name != "train_loss"});
    return loss;
  }

  torch::nn::Sequential encoder_, decoder_;
};

}  // namespace

Recipe autoencoder_fashion_mnist() {
  return {
      "autoencoder_fashion_mnist", "autoencoder on Fashion-MNIST",
      R"(trainer:
  max_epochs: 5
optimizer:
  class: Adam
  lr: 1e-3
)",
      []() -> std::unique_ptr<TrainProgram> { return std::make_unique<TrainProgramOf<Autoencoder, FashionMnist>>(); }};
}

}  // namespace levin::cli
