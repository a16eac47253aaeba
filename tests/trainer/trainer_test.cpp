// The loop itself gives the very weights of loops written by hand, with Fabric and with LibTorch alone; on two ranks
// too.
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/probe.h"
#include "tests/trainer/boring.h"

namespace levin {
namespace {

using trainer_test::Boring;
using trainer_test::boring_loader;

constexpr int kEpochs = 3;
constexpr double kRate = 0.1, kDecay = 0.5;

using Weights = std::vector<Tensor>;

Weights weights_of(const torch::nn::Module& module) {
  Weights weights;
  for (const auto& parameter : module.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

void set_weights(const torch::nn::Module& module, const Weights& weights) {
  at::NoGradGuard no_grad;
  const auto parameters = module.parameters();
  for (size_t i = 0; i < weights.size(); ++i) parameters[i].copy_(weights[i]);
}

void expect_equal(const Weights& a, const Weights& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << what << ", parameter " << i;
}

/// torch's own optimizer, so that every loop makes the same update.
struct WithTorchSgd : Boring {
  Optimizers configure_optimizers() override {
    auto sgd = optim::adapt(std::make_shared<torch::optim::SGD>(parameters(), torch::optim::SGDOptions(kRate)));
    return {sgd, optim::StepLR(sgd, {.step_size = 1, .gamma = kDecay})};
  }
};

void decay(torch::optim::SGD& sgd) {
  for (auto& group : sgd.param_groups()) group.options().set_lr(group.options().get_lr() * kDecay);
}

TrainerOptions options(int devices) {
  return {.accelerator = "cpu",
          .devices = devices,
          .logger = false,
          .max_epochs = kEpochs,
          .enable_checkpointing = false,
          .enable_progress_bar = false,
          .enable_model_summary = false};
}

Weights by_trainer(const Weights& start, Trainer& trainer) {
  WithTorchSgd module;
  set_weights(module, start);
  trainer.fit(module, boring_loader(64, 4, /*shuffle=*/true));
  EXPECT_EQ(trainer.global_step(), kEpochs * 16 / trainer.fabric().world_size());
  EXPECT_EQ(trainer.current_epoch(), kEpochs);
  return weights_of(module);
}

Weights by_fabric(const Weights& start, Fabric& fabric) {
  auto module = std::make_shared<WithTorchSgd>();
  set_weights(*module, start);
  torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(kRate));
  auto [net, optimizer] = fabric.setup(module, sgd);
  auto loader = fabric.setup_dataloaders(boring_loader(64, 4, true));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& batch : loader) {
      const auto loss = net.call(&Boring::loss_of, batch);
      optimizer.zero_grad();
      fabric.backward(loss);
      optimizer.step();
    }
    decay(sgd);
  }
  return weights_of(*module);
}

/// LibTorch alone; with several ranks each takes its samples and gradients are averaged by hand.
Weights by_hand(const Weights& start, Fabric* ranks) {
  Boring module;
  set_weights(module, start);
  torch::optim::SGD sgd(module.parameters(), torch::optim::SGDOptions(kRate));
  auto loader = boring_loader(64, 4, true);
  if (ranks) loader = loader.distributed(ranks->global_rank(), ranks->world_size());
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (auto& batch : loader) {
      sgd.zero_grad();
      module.loss_of(batch).backward();
      if (ranks)
        for (auto& parameter : module.parameters()) ranks->all_reduce(parameter.mutable_grad(), "mean");
      sgd.step();
    }
    decay(sgd);
  }
  return weights_of(module);
}

TEST(Trainer, EqualsFabricAndPlainLoops) {
  torch::manual_seed(1);
  const auto start = weights_of(Boring());
  const auto expected = by_hand(start, nullptr);
  Trainer trainer(options(1));
  expect_equal(by_fabric(start, trainer.fabric()), expected, "Fabric");
  expect_equal(by_trainer(start, trainer), expected, "Trainer");
}

LEVIN_PROBE(trainer_fabric_and_plain_loops) {
  torch::manual_seed(1);
  const auto start = weights_of(Boring());
  Trainer trainer(options(2));
  trainer.launch();
  const auto expected = by_hand(start, &trainer.fabric());
  expect_equal(by_fabric(start, trainer.fabric()), expected, "Fabric");
  expect_equal(by_trainer(start, trainer), expected, "Trainer");
}

TEST(Trainer, EqualsFabricAndPlainLoopsOnTwoRanks) {
  EXPECT_EQ(testing::launch_probe("trainer_fabric_and_plain_loops", 2), 0);
}

}  // namespace
}  // namespace levin
