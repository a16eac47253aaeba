// Optimizers whose hooks step by the gradients of one rank.
#include "levin/optim/in_backward.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/levin.h"
#include "levin/testing/error_of.h"
#include "levin/testing/process.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const StrategyChoice& strategy, int ranks) {
  return testing::error_of([&] {
    Fabric fabric({.accelerator = "cpu", .strategy = strategy, .devices = ranks});
    fabric.launch();
    torch::nn::Linear model(4, 4);
    auto [net, opt] = fabric.setup(model, optim::OptimizerInBackward(optim::AdamW(model->parameters(), {.lr = 1e-2})));
    fabric.backward(net(torch::ones({2, 4})).sum());
    opt.step();
  });
}

TEST(FabricInBackward, IsRefusedWhereGradientsAreAveragedOrSharded) {
  const auto refused =
      AllOf(HasSubstr("steps by the gradients of one rank"), HasSubstr("optimizer_in_backward"), HasSubstr("AdamW"));
  EXPECT_EQ(refusal("single_device", 1), "no error");
  EXPECT_EQ(refusal("ddp", 1), "no error");
  EXPECT_THAT(refusal(FsdpOptions{.cpu_offload = true}, 1), refused);
  for (const char* strategy : {"ddp", "fsdp", "deepspeed_stage_2"})
    testing::run_ranks(2, [&, port = std::to_string(testing::free_port())](Collective& group) {
      const auto rank = std::to_string(group.rank());
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", port.c_str(), 1);
      ::setenv("WORLD_SIZE", "2", 1);
      ::setenv("RANK", rank.c_str(), 1);
      ::setenv("LOCAL_RANK", rank.c_str(), 1);
      EXPECT_THAT(refusal(strategy, 2), refused) << strategy;
    });
}

}  // namespace
}  // namespace levin
