#include <filesystem>

#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {
namespace fs = std::filesystem;

/// Loads when `from` is there, trains steps [first, last), saves when `to` is there; the full parameters.
std::vector<Tensor> train_part(Collective& group, const StrategyChoice& choice, int first, int last,
                               const fs::path& from, const fs::path& to) {
  torch::manual_seed(first == 0 ? 3 : 1000 + group.rank());
  ShardNet net(ShardNetOptions{.tied = "head"});
  const auto parameters = unique_parameters(*net);
  Optimizer optimizer = optim::AdamW(parameters, {.lr = 1e-2});
  Trainee trainee(group, choice, *net, at::kCPU, "32-true");
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  auto* shards = trainee.strategy().shards();
  const State state{{"model", net}, {"optimizer", optimizer}};
  if (!from.empty()) load_checkpoint(from, state, {.shards = shards});
  for (int step = first; step < last; ++step) {
    const auto [x, y] = boring_data(8, 10, static_cast<uint64_t>(1000 + step));
    const auto target = shard_of(torch::cat(std::vector<Tensor>(5, y), 1), group.rank(), group.size());
    const auto mine = shard_of(x, group.rank(), group.size());
    const auto output = trainee.forward([&] { return net(mine); });
    trainee.backward(mse(output, target));
    optimizer.step();
    optimizer.zero_grad();
  }
  if (!to.empty() && (shards || group.rank() == 0))
    save_checkpoint(to, state, {.world_size = group.size(), .shards = shards});
  std::vector<Tensor> whole;
  for (const auto& parameter : parameters) whole.push_back(whole_of(group, shards, parameter, parameter));
  return whole;
}

TEST(ShardingCheckpoint, ResumesUnderAnyStrategyOnAnyNumberOfRanks) {
  const TemporaryFolder root;
  const FsdpOptions fsdp{.auto_wrap_policy = policy::by_class<ShardBlock>()};
  const auto expected =
      run_ranks(1, [&](Collective& group) { return train_part(group, "single_device", 0, 6, {}, {}); })[0].tensors;
  run_ranks(4, [&](Collective& group) { return train_part(group, fsdp, 0, 2, {}, root / "fsdp4"); });
  run_ranks(1, [&](Collective& group) { return train_part(group, "single_device", 0, 2, {}, root / "one"); });
  EXPECT_TRUE(checkpoint_info(root / "fsdp4").sharded);

  struct Leg {
    const char* from;
    StrategyChoice choice;
    int world;
    const char* to;
  };
  for (const auto& leg :
       {Leg{"fsdp4", fsdp, 2, "fsdp2"}, Leg{"fsdp4", "single_device", 1, "one4"},
        Leg{"fsdp4", "deepspeed_stage_2", 4, "zero"}, Leg{"one", fsdp, 4, "from_one"}, Leg{"fsdp4", "ddp", 2, "ddp"}}) {
    run_ranks(leg.world,
              [&](Collective& group) { return train_part(group, leg.choice, 2, 4, root / leg.from, root / leg.to); });
    const auto ends = run_ranks(2, [&](Collective& group) { return train_part(group, fsdp, 4, 6, root / leg.to, {}); });
    EXPECT_LT(max_difference(ends[0].tensors, expected), 1e-5) << leg.to;
  }
}

}  // namespace
}  // namespace levin::testing
