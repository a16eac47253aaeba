// A loss scaler where the loss is on one rank alone.
#include <cstdlib>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/batch.h"
#include "levin/fabric/fabric.h"
#include "levin/fabric/fabric_core.h"
#include "levin/models/decoder.h"
#include "levin/optim/adam.h"
#include "levin/strategies/options.h"
#include "levin/testing/process.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

// 16-mixed needs a GPU. A scaler over float32 does the same to the loss and the gradients.
template <std::shared_ptr<detail::FabricCore> Fabric::*core>
struct Opened {
  friend detail::FabricCore& core_of(Fabric& fabric) { return *(fabric.*core); }
};
template struct Opened<&Fabric::core_>;
detail::FabricCore& core_of(Fabric& fabric);

/// Losses of a few steps on the same data, and the scale.
std::vector<double> losses(const StrategyChoice& strategy, int devices, bool clips) {
  Fabric fabric({.accelerator = "cpu", .strategy = strategy, .devices = devices});
  core_of(fabric).scaler = std::make_unique<GradScaler>(GradScalerOptions{.init_scale = 256, .growth_interval = 2});
  fabric.launch();
  torch::manual_seed(3);
  models::Decoder model(
      models::DecoderOptions{.vocab_size = 40, .max_positions = 8, .num_layers = 2, .num_heads = 2, .hidden_dim = 16});
  auto [net, optimizer] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2, .eps = 1e-3}));
  std::vector<double> found;
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(50 + step);
    const auto tokens = torch::randint(0, 40, {4, 6}, torch::kLong);
    Batch batch{{"tokens", tokens}, {"targets", tokens.roll(-1, 1)}};
    const auto loss = fabric.forward_backward(
        net, batch, [&, &net = net](const Batch& part) { return net(part["tokens"], part["targets"]); });
    if (clips) fabric.clip_gradients(optimizer, {.max_norm = 0.5});
    optimizer.step();
    optimizer.zero_grad();
    found.push_back(loss.item<double>());
  }
  found.push_back(fabric.grad_scaler()->current_scale());
  return found;
}

TEST(PipelineScaler, EveryRankHasTheScale) {
  for (const bool clips : {false, true}) {
    const auto expected = losses("single_device", 1, clips);
    for (const auto& choice : {StrategyChoice(PipelineOptions{.microbatches = 2}),
                               StrategyChoice(ModelParallelOptions{.mesh = {.pp = 2}})}) {
      const auto port = std::to_string(testing::free_port());
      testing::run_ranks(2, [&](Collective& group) {
        const auto rank = std::to_string(group.rank());
        for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{{"MASTER_ADDR", "127.0.0.1"},
                                                                                          {"MASTER_PORT", port},
                                                                                          {"WORLD_SIZE", "2"},
                                                                                          {"RANK", rank},
                                                                                          {"LOCAL_RANK", rank}})
          ::setenv(name.c_str(), value.c_str(), 1);
        const auto ours = losses(choice, 2, clips);
        ASSERT_EQ(ours.size(), expected.size());
        for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], expected[i], 1e-4) << clips << " " << i;
      });
    }
  }
}

}  // namespace
}  // namespace levin
