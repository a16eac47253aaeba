// Two optimizers that have parameters of the same units, and step them in backward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

/// Full parameters after some steps: one optimizer has matrices, another biases, norms and scales.
std::vector<Tensor> train_by_two(Collective& group, const StrategyChoice& choice, bool momentum) {
  at::set_num_threads(1);
  torch::manual_seed(5);
  ShardNet net;
  std::vector<Tensor> matrices, others;
  const auto all = unique_parameters(*net);
  for (const auto& param : all) (param.dim() == 2 ? matrices : others).push_back(param);
  std::array<Optimizer, 2> optimizers{optim::AdamW(matrices, {.lr = 1e-2}),
                                      optim::SGD(others, {.lr = 0.1, .momentum = momentum ? 0.9 : 0})};
  Trainee trainee(group, choice, *net);
  for (auto& optimizer : optimizers) optimizer = trainee.strategy().setup_optimizer(optimizer);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(20 + step);
    const auto x = torch::randn({8, net->options.width});
    const auto mine = shard_of(x, group.rank(), group.size());
    trainee.backward(trainee.forward([&] { return net(mine); }).pow(2).mean());
    for (auto& optimizer : optimizers) optimizer.step();
    for (auto& optimizer : optimizers) optimizer.zero_grad();
  }
  std::vector<Tensor> results;
  for (const auto& param : all) results.push_back(whole_of(group, trainee.strategy().shards(), param, param));
  return results;
}

void expect_equal(const std::vector<Tensor>& ours, const std::vector<Tensor>& expected, const char* what) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_LT((ours[i] - expected[i]).abs().max().item<double>(), 1e-5) << what << " " << i;
}

TEST(TwoInBackward, BothStepTheUnitsThatTheyShare) {
  SingleCollective alone;
  std::array<std::vector<Tensor>, 2> expected;
  for (const bool momentum : {false, true}) expected[momentum] = train_by_two(alone, "single_device", momentum);
  const auto blocks = policy::by_class<ShardBlock>();
  const std::vector<std::pair<const char*, StrategyChoice>> choices{
      {"fsdp", FsdpOptions{.auto_wrap_policy = blocks, .optimizer_in_backward = true}},
      {"fsdp in host memory",
       FsdpOptions{.auto_wrap_policy = blocks, .cpu_offload = true, .optimizer_in_backward = true}},
      {"zero", ZeroOptions{.stage = 2, .optimizer_in_backward = true}},
      {"gemini",
       GeminiOptions{
           .chunk_size = 512, .memory_budget = 1 << 20, .auto_wrap_policy = blocks, .optimizer_in_backward = true}},
  };
  const auto train = [&](Collective& group) {
    for (const auto& [name, choice] : choices)
      for (const bool momentum : {false, true})
        expect_equal(train_by_two(group, choice, momentum), expected[momentum], name);
  };
  run_ranks(2, train);
  train(alone);
}

// Hooks on full parameters would step by the gradients of one rank.
TEST(TwoInBackward, AnOptimizerBeforeItsModuleIsRefused) {
  const auto setup_error = [](Collective& group, const StrategyChoice& choice) {
    ShardNet net;
    auto strategy = make_strategy(choice, group.size());
    strategy->connect({&group, [](auto*) {}}, at::kCPU);
    const auto optimizer = strategy->setup_optimizer(optim::AdamW(net->parameters(), {.lr = 1e-2}));
    return error_of([&] { strategy->setup_module(*net); });
  };
  const std::vector<StrategyChoice> choices{FsdpOptions{.optimizer_in_backward = true},
                                            ZeroOptions{.stage = 2, .optimizer_in_backward = true}};
  run_ranks(2, [&](Collective& group) {
    for (const auto& choice : choices)
      EXPECT_THAT(setup_error(group, choice), ::testing::HasSubstr("is stepped in backward by AdamW already"));
  });
  SingleCollective alone;
  EXPECT_THAT(setup_error(alone, FsdpOptions{.cpu_offload = true, .optimizer_in_backward = true}),
              ::testing::HasSubstr("set up the module before its optimizer"));
  // Nothing is sharded.
  EXPECT_EQ(setup_error(alone, choices[0]), "no error");
}

}  // namespace
}  // namespace levin::testing
