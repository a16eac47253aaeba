// Several ranks on one GPU, over Gloo: streams, pinned memory and collectives on device memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/devices/accelerator.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

class ShardingCuda : public GpuTest, public ::testing::WithParamInterface<ShardCase> {};

std::vector<RankResult> run_on_gpu(int world, const ShardCase& c, const StrategyChoice& choice) {
  RanksOptions options;
  options.device = c10::Device(at::kCUDA, 0);
  return run_ranks(
      world, [&](Collective& group) { return train_sharded(group, c, choice, c10::Device(at::kCUDA, 0)); }, options);
}

TEST_P(ShardingCuda, EqualsOneProcessOnTheGlobalBatch) {
  const auto& c = GetParam();
  const auto one = run_on_gpu(1, c, "single_device");
  const auto many = run_on_gpu(c.world, c, c.choice);
  for (const auto& rank : many) {
    ASSERT_EQ(rank.tensors.size(), one[0].tensors.size());
    EXPECT_LT(max_difference(rank.tensors, one[0].tensors), c.tolerance);
    EXPECT_EQ(max_difference(rank.tensors, many[0].tensors), 0);
  }
}

std::vector<ShardCase> gpu_cases() {
  const auto blocks = policy::by_class<ShardBlock>();
  const FsdpOptions fsdp{.auto_wrap_policy = blocks};
  FsdpOptions offload = fsdp;
  offload.cpu_offload = true;
  const ShardNetOptions large{.width = 120, .hidden = 500, .blocks = 6};
  std::vector<ShardCase> cases;
  for (const int world : {1, 2}) {
    const auto add = [&](ShardCase c) {
      c.name += std::to_string(world);
      c.world = world;
      c.net = large;
      c.eps = 1e-3;
      cases.push_back(std::move(c));
    };
    add({.name = "fsdp", .choice = fsdp, .clip = 0.05});
    add({.name = "fsdp_accumulation", .choice = fsdp, .accumulate = 3});
    add({.name = "offload", .choice = offload, .clip = 0.05});
    add({.name = "offload_accumulation", .choice = offload, .accumulate = 3});
    add({.name = "offload_delays", .choice = offload, .delay_us = world > 1 ? 2000 : 0});
    for (const int stage : {1, 2, 3})
      add({.name = "stage" + std::to_string(stage) + "_",
           .choice = ZeroOptions{.stage = stage, .auto_wrap_policy = blocks},
           .clip = 0.05});
    add({.name = "stage3_offload",
         .choice = ZeroOptions{.stage = 3,
                               .offload_optimizer = {.device = "cpu"},
                               .offload_param = {.device = "cpu"},
                               .auto_wrap_policy = blocks}});
    add({.name = "bf16_mixed", .choice = fsdp, .precision = "bf16-mixed", .tolerance = 2e-2});
    add({.name = "bf16_mixed_offload", .choice = offload, .precision = "bf16-mixed", .tolerance = 2e-2});
    auto stepped = offload;
    stepped.optimizer_in_backward = true;
    add({.name = "in_backward_offload", .choice = stepped});
    add({.name = "in_backward_bf16_mixed_offload", .choice = stepped, .precision = "bf16-mixed", .tolerance = 2e-2});
    auto lean = offload;
    lean.activation_checkpointing_policy = blocks;
    lean.activation_cpu_offload = true;
    add({.name = "checkpointing_offload", .choice = lean});
    for (const char* policy : {"auto", "cuda", "cpu"}) {
      const GeminiOptions gemini{.placement_policy = policy,
                                 .chunk_size = 200'000,
                                 .auto_wrap_policy = blocks,
                                 .optimizer_in_backward = policy == std::string("auto")};
      add({.name = std::string("gemini_") + policy, .choice = gemini, .precision = "bf16-mixed", .tolerance = 2e-2});
    }
    add({.name = "bf16_true_offload", .choice = offload, .precision = "bf16-true", .adamw = false, .tolerance = 2e-2});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, ShardingCuda, ::testing::ValuesIn(gpu_cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace levin::testing
