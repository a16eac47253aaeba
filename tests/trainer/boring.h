#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include "levin/data/loader.h"
#include "levin/optim/optim.h"
#include "levin/testing/boring.h"
#include "levin/trainer/train_module.h"

namespace levin::trainer_test {

/// Linear(32, 2), mse against ones, SGD 0.1, a tenth of the rate after each epoch.
struct Boring : TrainModule {
  Boring() : layer(register_module("layer", torch::nn::Linear(32, 2))) {}

  Tensor loss_of(const Batch& batch) {
    auto y = layer(batch["x"]);
    return at::mse_loss(y, at::ones_like(y));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override { return loss_of(batch); }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return loss_of(batch); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return loss_of(batch); }
  StepOutput predict_step(const Batch& batch, const StepInfo&) override { return StepOutput(layer(batch["x"])); }
  Optimizers configure_optimizers() override {
    optim::SGD sgd(parameters(), {.lr = 0.1});
    return {sgd, optim::StepLR(sgd, {.step_size = 1, .gamma = 0.1})};
  }

  torch::nn::Linear layer;
};

inline DataLoader<Batch> boring_loader(int64_t samples = 64, int64_t batch_size = 1, bool shuffle = false) {
  return make_loader(TensorDataset({{"x", levin::testing::boring_data(samples).first}}),
                     {.batch_size = batch_size, .shuffle = shuffle});
}

}  // namespace levin::trainer_test
