// The loop itself: the same weights as loops written by hand, limits, intervals, logs.
#include "levin/trainer/trainer.h"

#include <gtest/gtest.h>

#include "levin/levin.h"
#include "tests/trainer/boring.h"

namespace levin {
namespace {

using trainer_test::Boring;
using trainer_test::boring_loader;

TEST(Trainer, EqualsFabricAndPlainLoops) {
  const auto loader = boring_loader(64, 4, /*shuffle=*/true);
  torch::manual_seed(1);
  Boring module;
  std::vector<Tensor> first;
  for (const auto& p : module.parameters()) first.push_back(p.detach().clone());
  Trainer trainer({.accelerator = "cpu",
                   .logger = false,
                   .max_epochs = 3,
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false});
  trainer.fit(module, loader);

  torch::nn::Linear net(32, 2);
  {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < 2; ++i) net->parameters()[i].copy_(first[i]);
  }
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto plain = boring_loader(64, 4, true);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : plain) {
      sgd.zero_grad();
      auto y = net(batch["x"]);
      torch::mse_loss(y, torch::ones_like(y)).backward();
      sgd.step();
    }
    for (auto& group : sgd.param_groups()) group.options().set_lr(group.options().get_lr() * 0.1);
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(net->parameters()[i].equal(module.parameters()[i])) << i;
  EXPECT_EQ(trainer.global_step(), 48);
  EXPECT_EQ(trainer.current_epoch(), 3);
}

}  // namespace
}  // namespace levin
