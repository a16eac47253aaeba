// Fabric::forward_backward: the same loop under every strategy.
#include <cstdlib>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/batch.h"
#include "levin/fabric/fabric.h"
#include "levin/models/decoder.h"
#include "levin/optim/adam.h"
#include "levin/strategies/options.h"
#include "levin/testing/process.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

/// Losses of a few steps on the same data.
std::vector<double> losses(const StrategyChoice& strategy, int devices, const std::string& precision, bool meta) {
  Fabric fabric({.accelerator = "cpu", .strategy = strategy, .devices = devices, .precision = precision});
  fabric.launch();
  torch::manual_seed(3);
  const auto make = [] {
    return models::Decoder(models::DecoderOptions{
        .vocab_size = 40, .max_positions = 8, .num_layers = 4, .num_heads = 2, .hidden_dim = 16});
  };
  auto model = fabric.init_module(make, {.meta = meta});
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
  std::vector<double> found;
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(50 + step);
    const auto tokens = torch::randint(0, 40, {8, 6}, torch::kLong);
    Batch batch{{"tokens", tokens}, {"targets", tokens.roll(-1, 1)}};
    const auto loss = fabric.forward_backward(
        net, batch, [&, &net = net](const Batch& part) { return net(part["tokens"], part["targets"]); });
    fabric.clip_gradients(optimizer, {.max_norm = 0.5});
    optimizer.step();
    optimizer.zero_grad();
    found.push_back(loss.item<double>());
    EXPECT_FALSE(loss.requires_grad());
  }
  // Without gradients it is an evaluation.
  const at::NoGradGuard no_grad;
  const auto tokens = torch::arange(24).view({4, 6});
  Batch batch{{"tokens", tokens}, {"targets", tokens}};
  found.push_back(
      fabric
          .forward_backward(net, batch,
                            [&, &net = net](const Batch& part) { return net(part["tokens"], part["targets"]); })
          .item<double>());
  return found;
}

TEST(PipelineRun, TheLoopIsTheSameUnderEveryStrategy) {
  for (const auto* precision : {"32-true", "bf16-mixed", "16-mixed"}) {
    const auto expected = losses("single_device", 1, precision, false);
    const auto port = std::to_string(testing::free_port());
    testing::run_ranks(2, [&](Collective& group) {
      const auto rank = std::to_string(group.rank());
      for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"MASTER_ADDR", "127.0.0.1"},
                                                                                        {"MASTER_PORT", port},
                                                                                        {"WORLD_SIZE", "2"},
                                                                                        {"RANK", rank},
                                                                                        {"LOCAL_RANK", rank}})
        ::setenv(name.c_str(), value.c_str(), 1);
      const auto ours = losses(PipelineOptions{.schedule = "1f1b", .microbatches = 4}, 2, precision,
                               std::string(precision) == "32-true");
      ASSERT_EQ(ours.size(), expected.size());
      const double tolerance = std::string(precision) == "32-true" ? 2e-5 : 2e-2;
      for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], expected[i], tolerance) << precision << " " << i;
    });
  }
}

}  // namespace
}  // namespace levin
