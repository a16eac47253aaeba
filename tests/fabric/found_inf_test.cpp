// 16-mixed over ranks: a gradient that overflows on one of them.
#include <gtest/gtest.h>

#include "levin/fabric/fabric_core.h"
#include "levin/models/decoder.h"
#include "levin/optim/optim.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

struct Outcome {
  bool moved = false;
  double scale = 0;
};

/// Rank 1 finds an inf. In the order of Fabric: the scaler is told of the strategy before a module is set up.
Outcome overflow(Collective& group, const StrategyChoice& choice, models::DecoderOptions options) {
  torch::manual_seed(1);
  GradScaler scaler({.init_scale = 256});
  const auto strategy = make_strategy(choice, group.size());
  strategy->connect({&group, [](auto*) {}}, at::kCPU);
  detail::share_found_inf(scaler, *strategy);
  models::Decoder model(options);
  const auto sync = strategy->setup_module(*model);
  auto optimizer = strategy->setup_optimizer(optim::SGD(model->parameters(), {.lr = 0.1}));
  std::vector<Tensor> before;
  for (const auto& param : model->parameters()) {
    before.push_back(param.detach().clone());
    param.mutable_grad() = torch::ones_like(param);
  }
  (void)scaler.scale(torch::ones({}));
  if (group.rank() == 1) model->parameters().back().mutable_grad().fill_(INFINITY);
  scaler.step(optimizer);
  scaler.update();
  Outcome outcome{.scale = scaler.current_scale()};
  for (size_t i = 0; i < before.size(); ++i)
    outcome.moved = outcome.moved || !torch::equal(before[i], model->parameters()[i].detach());
  return outcome;
}

TEST(FoundInf, StopsTheStepOfAllRanksThatHaveAModelTogether) {
  const models::DecoderOptions dense{
      .vocab_size = 16, .max_positions = 8, .num_layers = 1, .num_heads = 2, .hidden_dim = 8};
  auto mixture = dense;
  mixture.experts.count = 4;
  mixture.activation = "silu_gated";
  mixture.mlp_bias = false;
  testing::run_ranks(2, [&](Collective& group) {
    for (const auto& [strategy, options] :
         {std::pair<const char*, models::DecoderOptions>("tensor_parallel", dense), {"expert_parallel", mixture}}) {
      const auto outcome = overflow(group, strategy, options);
      EXPECT_EQ(outcome.scale, 128) << strategy << " rank " << group.rank();
      EXPECT_FALSE(outcome.moved) << strategy << " rank " << group.rank();
    }
    // Gradients are the same on all ranks, and nothing is sent.
    EXPECT_EQ(overflow(group, "ddp", dense).moved, group.rank() == 0);
  });
}

}  // namespace
}  // namespace levin
