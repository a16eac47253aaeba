// Schedulers of an epoch that a hook cut short, and optimizers of manual optimization in other hands.
#include "levin/trainer/callbacks/finetuning.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

struct Skips : Net {
  bool on_train_batch_start(const Batch&, int64_t batch_idx) override { return batch_idx < until; }
  Optimizers configure_optimizers() override {
    optim::SGD sgd(parameters(), {.lr = 1.0});
    rates = sgd;
    if (plateau)
      return {sgd, {.scheduler = optim::ReduceLROnPlateau(sgd, {.factor = 0.1, .patience = 0}), .monitor = "m"}};
    return {sgd, {.scheduler = optim::StepLR(sgd, {.step_size = 1, .gamma = 0.1}), .frequency = frequency}};
  }
  void on_train_epoch_end() override { log("m", 1.0); }
  int64_t until = 1, frequency = 1;
  bool plateau = false;
  Optimizer rates;
};

TEST(SkippedEpoch, StepsTheSchedulersOfEpochs) {
  for (const int64_t until : {0, 1, 3}) {
    Skips net;
    net.until = until;
    Trainer(quiet({}, 3)).fit(net, loader(16, 4));
    EXPECT_NEAR(net.rates.lr(), 1e-3, 1e-12) << until;
  }
  Skips net;
  net.frequency = 2;
  Trainer(quiet({}, 3)).fit(net, loader(16, 4));
  EXPECT_NEAR(net.rates.lr(), 0.1, 1e-12);
}

TEST(SkippedEpoch, StepsThePlateauToo) {
  Skips net;
  net.plateau = true;
  Trainer(quiet({}, 3)).fit(net, loader(16, 4));
  EXPECT_NEAR(net.rates.lr(), 0.01, 1e-12);  // the first value is the best one, two more are not better
}

TEST(SkippedEpoch, AnEpochThatEndsRegularlyStepsOnce) {
  Skips net;
  net.until = 100;
  Trainer(quiet({}, 3)).fit(net, loader(16, 4));
  EXPECT_NEAR(net.rates.lr(), 1e-3, 1e-12);
}

struct ManualTransfer : TrainModule {
  ManualTransfer() {
    automatic_optimization = false;
    backbone = register_module("backbone", torch::nn::Linear(32, 6));
    head = register_module("head", torch::nn::Linear(6, 2));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto y = head(backbone(batch["x"]));
    const auto loss = at::mse_loss(y, at::ones_like(y));
    auto& opt = optimizer();
    opt.zero_grad();
    manual_backward(loss);
    clip_gradients(opt, 0.5);
    opt.step();
    return loss;
  }
  Optimizers configure_optimizers() override { return optim::SGD(head->parameters(), {.lr = 0.1}); }
  torch::nn::Linear backbone{nullptr}, head{nullptr};
};

TEST(ManualOptimization, FinetuningAddsItsGroups) {
  ManualTransfer net;
  const auto before = net.backbone->weight.detach().clone();
  Trainer trainer(quiet({BackboneFinetuning({.unfreeze_backbone_at_epoch = 1})}, 3));
  trainer.fit(net, loader(16, 4));
  EXPECT_FALSE(at::equal(before, net.backbone->weight));
  EXPECT_EQ(trainer.global_step(), 12);
}

}  // namespace
}  // namespace levin::tuning_test
