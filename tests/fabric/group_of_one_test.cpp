// A rank that communicates with itself, as the tests of compiled steps on one GPU do.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/levin.h"
#include "levin/testing/scoped_variable.h"

namespace levin {
namespace {

TEST(GroupOfOne, Communicates) {
  const testing::ScopedVariable with_itself("LEVIN_TEST_GROUP_OF_ONE", "1");
  const auto group = join_group({}, at::kCPU, {});
  ASSERT_TRUE(group->failures());
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->exchange("test", 7), std::vector<int64_t>{7});
  EXPECT_FALSE(group->is_stream_work());
  auto x = torch::full({3}, 2.0);
  group->all_reduce(x);
  EXPECT_EQ(x[0].item<float>(), 2);
  EXPECT_EQ(group->all_gather(x).size(0), 1);
  EXPECT_EQ(group->reduce_scatter(x).sum().item<float>(), 6);
}

TEST(GroupOfOne, TrainsAsOneProcess) {
  const auto train = [](const StrategyChoice& strategy, bool with_itself) {
    const testing::ScopedVariable variable("LEVIN_TEST_GROUP_OF_ONE",
                                           with_itself ? std::optional<std::string>("1") : std::nullopt);
    torch::manual_seed(2);
    Fabric fabric({.accelerator = "cpu", .strategy = strategy, .devices = 1, .compile = true});
    fabric.launch();
    EXPECT_EQ(fabric.strategy().group().failures() != nullptr, with_itself);
    torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
    auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-2}));
    std::vector<float> losses;
    for (int i = 0; i < 12; ++i) {
      const auto waits = fabric.no_backward_sync(net, i % 2 == 0);
      const auto loss = net(torch::ones({4, 4}).cumsum(0) * (1 + i)).pow(2).mean();
      fabric.backward(loss);
      losses.push_back(loss.item<float>());
      if (i % 2 == 0) continue;
      fabric.clip_gradients(opt, {.max_norm = 0.5});
      opt.step();
      opt.zero_grad();
    }
    return losses;
  };
  const auto wanted = train("single_device", false);
  for (const char* strategy : {"ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"}) {
    EXPECT_EQ(train(strategy, false), wanted) << strategy;
    const auto losses = train(strategy, true);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(losses[i], wanted[i], 1e-5) << strategy << i;
  }
}

}  // namespace
}  // namespace levin
