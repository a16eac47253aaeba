#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

struct ShardCase {
  std::string name;
  StrategyChoice choice = FsdpOptions{.auto_wrap_policy = policy::by_class<ShardBlock>()};
  int world = 2;
  int accumulate = 1;
  bool no_sync = true;
  double clip = 0;
  ShardNetOptions net = {};
  std::string precision = "32-true";
  bool adamw = true;
  int delay_us = 0;
  double tolerance = 1e-5;
  bool zero_in_place = false;

  friend void PrintTo(const ShardCase& c, std::ostream* out) { *out << c.name; }
};

/// Ten steps on this rank's rows; losses, then parameters.
std::vector<Tensor> train_sharded(Collective& real, const ShardCase& c, const StrategyChoice& choice) {
  WatchedCollective watched(real, c.delay_us);
  torch::manual_seed(real.rank() == 0 ? 3 : 100 + real.rank());
  ShardNet net(c.net);
  const auto parameters = unique_parameters(*net);
  std::vector<Tensor> trained;
  for (const auto& parameter : parameters)
    if (parameter.requires_grad()) trained.push_back(parameter);
  Optimizer optimizer = c.adamw ? Optimizer(optim::AdamW(trained, {.lr = 1e-2}))
                                : Optimizer(optim::SGD(trained, {.lr = 0.05, .momentum = 0.9}));
  Trainee trainee(watched, choice, *net, at::kCPU, c.precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  const auto plan = resolve_precision(c.precision, at::kCPU);
  std::vector<Tensor> results, losses;
  for (int step = 0; step < 10; ++step) {
    Tensor total = at::zeros({});
    for (int micro = 0; micro < c.accumulate; ++micro) {
      const auto [x, y] = boring_data(8, c.net.width, static_cast<uint64_t>(1000 + step * 10 + micro));
      const auto target = torch::cat(std::vector<Tensor>(static_cast<size_t>(c.net.width) / 2, y), 1);
      trainee.set_sync(!c.no_sync || micro + 1 == c.accumulate);
      const auto mine = share_of(x, real.rank(), real.size());
      auto output = trainee.forward([&] {
        std::optional<Autocast> autocast;
        if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
        return net(plan.params ? mine.to(*plan.params) : mine);
      });
      const auto loss = mse(output.to(at::kFloat), share_of(target, real.rank(), real.size()));
      trainee.backward(loss / c.accumulate);
      total = total + loss.detach() / c.accumulate;
    }
    real.all_reduce(total, ReduceOp::kMean);
    losses.push_back(total);
    if (c.clip > 0) {
      const auto norm = trainee.strategy().grad_norm(trained, 2);
      losses.push_back(norm);
      optim::clip_grads_with_norm(trained, c.clip, norm);
    }
    optimizer.step();
    optimizer.zero_grad(!(c.zero_in_place && step % 2));
  }
  results.push_back(at::stack(losses));
  for (const auto& parameter : parameters)
    results.push_back(whole_of(real, trainee.strategy().shards(), parameter, parameter).to(at::kFloat));
  return results;
}

class Sharding : public ::testing::TestWithParam<ShardCase> {};

TEST_P(Sharding, EqualsOneProcessOnTheWholeBatch) {
  const auto& c = GetParam();
  const auto one = run_ranks(1, [&](Collective& group) { return train_sharded(group, c, "single_device"); });
  const auto many = run_ranks(c.world, [&](Collective& group) { return train_sharded(group, c, c.choice); });
  for (const auto& rank : many) {
    ASSERT_EQ(rank.tensors.size(), one[0].tensors.size());
    EXPECT_LT(max_difference(rank.tensors, one[0].tensors), c.tolerance);
    EXPECT_EQ(max_difference(rank.tensors, many[0].tensors), 0);
  }
}

const auto kBlocks = policy::by_class<ShardBlock>();

std::vector<ShardCase> cases() {
  std::vector<ShardCase> all;
  const FsdpOptions fsdp{.auto_wrap_policy = kBlocks};
  const auto with = [](FsdpOptions options, auto&& change) {
    change(options);
    return options;
  };
  for (const int world : {2, 4}) {
    const auto n = std::to_string(world);
    const auto add = [&](ShardCase c) {
      c.name += n;
      c.world = world;
      all.push_back(std::move(c));
    };
    add({"fsdp"});
    add({"root_only", FsdpOptions{}});
    add({"grad_op", with(fsdp, [](auto& o) { o.sharding_strategy = "grad_op"; })});
    add({"no_shard", with(fsdp, [](auto& o) { o.sharding_strategy = "none"; })});
    add({"keep_after_forward", with(fsdp, [](auto& o) { o.reshard_after_forward = false; })});
    add({"no_prefetch", with(fsdp, [](auto& o) { o.forward_prefetch = o.backward_prefetch = 0; })});
    add({"prefetch_two", with(fsdp, [](auto& o) { o.forward_prefetch = o.backward_prefetch = 2; })});
    add({"offload", with(fsdp, [](auto& o) { o.cpu_offload = true; })});
    add({.name = "accumulation", .accumulate = 3});
    add({.name = "accumulation_reduced", .accumulate = 3, .no_sync = false});
    add({.name = "clip", .clip = 0.05});
    add({.name = "sgd", .adamw = false, .zero_in_place = true});
    for (const char* frozen : {"first", "last", "blocks"}) {
      ShardCase c{.name = std::string("frozen_") + frozen, .accumulate = 2};
      c.net.frozen = frozen;
      add(c);
    }
    for (const char* tied : {"inside", "across", "head"}) {
      ShardCase c{.name = std::string("tied_") + tied};
      c.net.tied = tied;
      add(c);
    }
    ShardCase twice{.name = "twice", .clip = 0.1};
    twice.net.twice = true;
    add(twice);
    ShardCase delays{.name = "delays", .accumulate = 2, .delay_us = 3000};
    add(delays);
    for (const int stage : {1, 2, 3})
      for (const bool accumulate : {false, true})
        add({.name = "stage" + std::to_string(stage) + (accumulate ? "_accumulation_" : "_"),
             .choice =
                 ZeroOptions{.stage = stage, .stage3_param_persistence_threshold = 12, .auto_wrap_policy = kBlocks},
             .accumulate = accumulate ? 2 : 1,
             .clip = accumulate ? 0.05 : 0});
    add({.name = "bf16_mixed", .clip = 0.5, .precision = "bf16-mixed", .tolerance = 5e-2});
    add({.name = "bf16_true", .precision = "bf16-true", .adamw = false, .tolerance = 5e-2});
    add({.name = "stage2_bf16_mixed",
         .choice = ZeroOptions{.stage = 2, .auto_wrap_policy = kBlocks},
         .precision = "bf16-mixed",
         .tolerance = 5e-2});
  }
  ShardCase hybrid{.name = "hybrid", .clip = 0.05};
  hybrid.choice = with(fsdp, [](auto& o) {
    o.sharding_strategy = "hybrid";
    o.hybrid_size = 2;
  });
  hybrid.world = 4;
  all.push_back(hybrid);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, Sharding, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace levin::testing
