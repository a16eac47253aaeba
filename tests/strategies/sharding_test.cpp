#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/memory_counter.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/interceptor.h"
#include "levin/strategies/sharding/module.h"
#include "levin/testing/error_of.h"
#include "levin/testing/eventually.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

class Sharding : public ::testing::TestWithParam<ShardCase> {};

TEST_P(Sharding, EqualsOneProcessOnTheGlobalBatch) {
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
  for (const int world : {1, 2, 4}) {
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
    const auto in_backward = with(fsdp, [](auto& o) { o.optimizer_in_backward = true; });
    add({"in_backward", in_backward});
    add({"in_backward_offload", with(in_backward, [](auto& o) { o.cpu_offload = true; })});
    add({.name = "in_backward_accumulation",
         .choice = with(in_backward, [](auto& o) { o.cpu_offload = true; }),
         .accumulate = 3});
    add({.name = "offload_bf16_mixed",
         .choice = with(fsdp, [](auto& o) { o.cpu_offload = true; }),
         .accumulate = 2,
         .clip = 0.5,
         .precision = "bf16-mixed",
         .tolerance = 5e-2});
    for (const int stage : {1, 2, 3})
      add({.name = "small_buckets_stage" + std::to_string(stage) + "_",
           .choice = ZeroOptions{.stage = stage, .reduce_bucket_size = 160, .auto_wrap_policy = kBlocks},
           .clip = 0.05});
    add({.name = "in_backward_bf16_mixed",
         .choice = with(in_backward, [](auto& o) { o.cpu_offload = true; }),
         .precision = "bf16-mixed",
         .tolerance = 5e-2});
    const auto checkpointed = with(fsdp, [](auto& o) { o.activation_checkpointing_policy = kBlocks; });
    add({.name = "checkpointing", .choice = checkpointed, .accumulate = 2, .clip = 0.05});
    ShardCase again{.name = "checkpointing_twice", .choice = checkpointed};
    again.net.twice = true;
    add(again);
    ShardCase part_frozen{.name = "checkpointing_frozen", .choice = checkpointed};
    part_frozen.net.frozen = "first";
    add(part_frozen);
    add({.name = "checkpointing_on_host",
         .choice = with(checkpointed, [](auto& o) { o.activation_cpu_offload = o.cpu_offload = true; })});
    add({.name = "checkpointing_stage2_",
         .choice = ZeroOptions{.stage = 2, .auto_wrap_policy = kBlocks, .activation_checkpointing_policy = kBlocks}});
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
    const auto disk = ::testing::TempDir() + "levin_offload";
    add({.name = "stage3_nvme",
         .choice = ZeroOptions{.stage = 3,
                               .offload_optimizer = {.device = "nvme", .nvme_path = disk},
                               .offload_param = {.device = "nvme", .nvme_path = disk},
                               .stage3_param_persistence_threshold = 0,
                               .auto_wrap_policy = kBlocks}});
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
  hybrid.shard_size = 2;
  all.push_back(hybrid);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, Sharding, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

/// A net, its sharded trainee, and a step: what most tests need.
struct ShardRun {
  explicit ShardRun(Collective& group, const StrategyChoice& choice, const ShardNetOptions& options = {})
      : watched(group), net(options), trainee(watched, choice, *net) {}
  Tensor loss(uint64_t seed = 1) {
    const auto [x, y] = boring_data(4, net->options.width, seed + static_cast<uint64_t>(watched.rank()));
    return trainee.forward([&, x = x] { return net(x); }).square().mean();
  }
  void step(uint64_t seed = 1) { trainee.backward(loss(seed)); }

  WatchedCollective watched;
  ShardNet net;
  Trainee trainee;
};

void load_into(torch::nn::Module& target, torch::nn::Module& source) {
  const at::NoGradGuard no_grad;
  auto from = source.parameters(), to = target.parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

std::vector<Tensor> values_of_grads(torch::nn::Module& module) {
  std::vector<Tensor> grads;
  for (const auto& parameter : module.parameters())
    grads.push_back(at::cat({parameter.grad().reshape({-1}), at::zeros({1})}));  // a part may be empty
  return grads;
}

/// Bytes that stay. Gloo's threads let go of their buffers a moment after an operation has ended.
int64_t settled(const MemoryCounter& counter, int64_t enough) {
  (void)eventually([&] { return counter.allocated() <= enough; });
  return counter.allocated();
}

FsdpOptions fsdp_blocks() {
  return {.auto_wrap_policy = kBlocks};
}

TEST(Fsdp, OneGatheringAndOneReductionPerUnitAndPass) {
  run_ranks(2, [](Collective& group) {
    ShardRun run(group, fsdp_blocks());
    run.step();
    for (int i = 0; i < 3; ++i) {
      run.watched.runs.clear();
      run.step();
      // Three blocks and the root; every operation starts and ends. The last block's parameters are gathered twice,
      // the root's once.
      EXPECT_EQ(run.watched.runs["fsdp.all_gather"], 2 * (3 * 2 + 1));
      EXPECT_EQ(run.watched.runs["fsdp.reduce_scatter"], 2 * 4);
      EXPECT_EQ(run.watched.runs.size(), 2u);
    }
    run.watched.runs.clear();
    {
      const at::NoGradGuard no_grad;
      run.loss();
    }
    EXPECT_EQ(run.watched.runs["fsdp.all_gather"], 2 * 4);
    EXPECT_EQ(run.watched.runs.size(), 1u);
  });
}

/// On one GPU a profiler can then see what would happen on many.
TEST(Fsdp, AGroupOfOneThatIsReallyThereCommunicates) {
  run_ranks(1, [](Collective& nobody) {
    const ShardCase c{.name = "lone", .clip = 0.05};
    const auto expected = train_sharded(nobody, c, "single_device");
    const auto group = lone_group();
    EXPECT_LT(max_difference(train_sharded(*group, c, fsdp_blocks()), expected), 1e-5);
    ShardRun run(*group, fsdp_blocks());
    run.step();
    run.watched.runs.clear();
    run.step();
    EXPECT_EQ(run.watched.runs["fsdp.all_gather"], 2 * (3 * 2 + 1));
    EXPECT_EQ(run.watched.runs["fsdp.reduce_scatter"], 2 * 4);
  });
}

/// Which blocks are whole or on their way while the first one computes, in the third step.
std::vector<bool> blocks_on_the_way(Collective& group, ZeroOptions options) {
  options.stage = 3;
  options.stage3_param_persistence_threshold = 0;
  options.auto_wrap_policy = kBlocks;
  ShardRun run(group, options, {.blocks = 4});
  struct Look : Interceptor {
    void around(Call& call) override {
      seen.clear();
      for (const auto& each : module->groups())
        seen.push_back(each->state() != levin::detail::ShardGroup::State::kSharded);
      call.proceed();
    }
    levin::detail::ShardedModule* module = nullptr;
    std::vector<bool> seen;
  };
  const auto look = std::make_shared<Look>();
  look->module = dynamic_cast<levin::detail::ShardedModule*>(run.trainee.sync());
  const auto attachment = run.net->blocks[0]->attach(look, Order::kInnermost);
  for (int i = 0; i < 3; ++i) {
    const at::NoGradGuard no_grad;
    run.loss();
  }
  look->seen.resize(4);  // without the root
  return look->seen;
}

TEST(Zero, GathersAheadAsManyElementsAsThePrefetchBucketHolds) {
  run_ranks(2, [](Collective& group) {
    using Blocks = std::vector<bool>;
    EXPECT_EQ(blocks_on_the_way(group, {.stage3_prefetch_bucket_size = 0}), (Blocks{true, false, false, false}));
    // Computation would stand still for a unit that is larger than the bucket.
    EXPECT_EQ(blocks_on_the_way(group, {.stage3_prefetch_bucket_size = 1}), (Blocks{true, true, false, false}));
    // A block has 346 elements, up to 730 with the room between them.
    EXPECT_EQ(blocks_on_the_way(group, {.stage3_prefetch_bucket_size = 1500}), (Blocks{true, true, true, false}));
    EXPECT_EQ(blocks_on_the_way(group, {}), (Blocks{true, true, true, true}));
    EXPECT_EQ(blocks_on_the_way(group, {.stage3_max_live_parameters = 1}), (Blocks{true, false, false, false}));
    EXPECT_EQ(blocks_on_the_way(group, {.overlap_comm = false}), (Blocks{true, false, false, false}));
  });
}

/// While the last block is differentiated, the one before it comes.
TEST(Fsdp, GathersAheadInBackward) {
  run_ranks(2, [](Collective& group) {
    for (const int prefetch : {0, 1, 2}) {
      auto options = fsdp_blocks();
      options.backward_prefetch = prefetch;
      ShardRun run(group, options, {.blocks = 4});
      auto& module = dynamic_cast<levin::detail::ShardedModule&>(*run.trainee.sync());
      std::vector<std::vector<bool>> seen;
      for (const int block : {3, 2})
        run.net->blocks[static_cast<size_t>(block)]->up->weight.register_hook([&](const Tensor&) {
          seen.emplace_back();
          for (const auto& each : module.groups())
            seen.back().push_back(each->state() != levin::detail::ShardGroup::State::kSharded);
          seen.back().resize(4);  // without the root
        });
      run.step();
      using Blocks = std::vector<bool>;
      ASSERT_EQ(seen.size(), 2u);
      EXPECT_EQ(seen[0], (Blocks{false, prefetch > 1, prefetch > 0, true})) << prefetch;
      EXPECT_EQ(seen[1], (Blocks{prefetch > 1, prefetch > 0, true, false})) << prefetch;
    }
  });
}

TEST(Zero, SendsNoMoreThanABucketAtOnce) {
  run_ranks(2, [](Collective& group) {
    for (const int stage : {1, 2, 3}) {
      // The weights of a block are 150 elements each.
      ShardRun run(group, ZeroOptions{.stage = stage,
                                      .reduce_bucket_size = 160,
                                      .stage3_param_persistence_threshold = 0,
                                      .auto_wrap_policy = kBlocks});
      run.step();
      run.watched.runs.clear();
      run.step();
      auto& module = dynamic_cast<levin::detail::ShardedModule&>(*run.trainee.sync());
      EXPECT_GT(module.groups().size(), 3 * 2u);
      for (const auto& each : module.groups()) {
        int64_t elements = 0;
        for (const auto& param : each->params()) elements += c10::multiply_integers(param.sizes);
        EXPECT_TRUE(elements <= 160 || each->params().size() == 1) << elements;
      }
      EXPECT_EQ(run.watched.runs["fsdp.reduce_scatter"], 2 * static_cast<int>(module.groups().size()));
    }
  });
}

TEST(Fsdp, AccumulationWithoutSyncDoesNotReduce) {
  run_ranks(2, [](Collective& group) {
    ShardRun run(group, ZeroOptions{.stage = 2, .auto_wrap_policy = kBlocks});
    run.step();
    run.watched.runs.clear();
    run.trainee.set_sync(false);
    run.step();
    // The step before may have changed the parameters; the batches after that have not.
    EXPECT_EQ(run.watched.runs["fsdp.all_gather"], 2 * 4);
    run.step();
    EXPECT_EQ(run.watched.runs["fsdp.all_gather"], 2 * 4);
    EXPECT_EQ(run.watched.runs["fsdp.reduce_scatter"], 0);
    run.trainee.set_sync(true);
    run.step();
    EXPECT_EQ(run.watched.runs["fsdp.all_gather"], 2 * 4);
    EXPECT_EQ(run.watched.runs["fsdp.reduce_scatter"], 2 * 4);
  });
}

TEST(Fsdp, MemoryStaysWithinShardsAndThreeBlocks) {
  for (const int world : {2, 4}) {
    run_ranks(world, [](Collective& group) {
      MemoryCounter counter;
      ShardNetOptions options{.width = 256, .hidden = 1024, .blocks = 6};
      ShardRun run(group, fsdp_blocks(), options);
      const int64_t block = (2 * 256 * 1024 + 1024 + 3 * 256 + 1) * 4, rest = 2 * (256 * 256 + 256) * 4;
      // What is gathered ahead passes through a buffer of Gloo's own; over NCCL there is none.
      const int64_t shards = (6 * block + rest) / group.size(), slack = (1 << 20) + block;
      EXPECT_LT(counter.allocated(), shards + slack);
      run.step();
      for (auto& parameter : run.net->parameters()) parameter.mutable_grad().reset();
      for (int i = 0; i < 3; ++i) {
        counter.reset_peak();
        const auto loss = run.loss();
        EXPECT_LT(counter.peak(), shards + 3 * block + rest + slack) << "forward of " << group.size();
        counter.reset_peak();
        run.trainee.backward(loss);
        EXPECT_LT(counter.peak(), 2 * shards + 3 * block + rest + slack) << "backward of " << group.size();
        EXPECT_LT(settled(counter, 2 * shards + slack), 2 * shards + slack);
        for (auto& parameter : run.net->parameters()) parameter.mutable_grad().reset();
      }
    });
  }
}

/// Bytes per parameter of Adam in mixed precision: 16; 4 + 12 / N; 2 + 14 / N; 16 / N.
TEST(Zero, BytesPerParameterAreThoseOfTheTheory) {
  for (const int world : {2, 4})
    for (const int stage : {1, 2, 3}) {
      run_ranks(world, [&](Collective& group) {
        const ShardNetOptions options{.width = 128, .hidden = 512, .blocks = 4};
        MemoryCounter counter;
        ShardNet net(options);
        const auto numel = static_cast<double>(4 * (2 * 128 * 512 + 512 + 3 * 128 + 1) + 2 * (128 * 128 + 128));
        Optimizer optimizer(optim::AdamW(net->parameters(), {.lr = 1e-3}));
        Trainee trainee(
            group, ZeroOptions{.stage = stage, .stage3_param_persistence_threshold = 0, .auto_wrap_policy = kBlocks},
            *net, at::kCPU, "bf16-mixed");
        optimizer = trainee.strategy().setup_optimizer(optimizer);
        const auto x = torch::randn({2, 128});
        const auto step = [&] {
          const Autocast autocast(at::kCPU, at::kBFloat16);
          const auto loss = trainee.forward([&] { return net(x); }).to(at::kFloat).square().mean();
          trainee.backward(loss);
        };
        step();
        optimizer.step();
        optimizer.zero_grad();
        step();
        const double n = group.size();
        // Gradients are there, and whatever else stays. Stage 1 gives its full gradients up when they are reduced.
        const double expected = stage == 1 ? 2 + 14 / n : stage == 2 ? 2 + 14 / n : 16 / n;
        const auto stays = settled(counter, static_cast<int64_t>(expected * 1.05 * numel));
        EXPECT_NEAR(static_cast<double>(stays) / numel, expected, expected * 0.05) << stage << " " << n;
        if (stage == 1) {
          counter.reset_peak();
          step();
          // The gradients of the step before are there too, and one unit's are being packed.
          EXPECT_LT(static_cast<double>(counter.peak()) / numel, 4 + 14 / n + 1);
          EXPECT_GT(static_cast<double>(counter.peak()) / numel, 4 + 12 / n);
        }
      });
    }
}

TEST(Fsdp, MixedPrecisionKeepsNoCopyOfGatheredWeights) {
  run_ranks(2, [](Collective& group) {
    MemoryCounter counter;
    const ShardNetOptions options{.width = 256, .hidden = 1024, .blocks = 6};
    ShardNet net(options);
    Trainee trainee(group, fsdp_blocks(), *net, at::kCPU, "bf16-mixed");
    const int64_t block = (2 * 256 * 1024 + 1024 + 3 * 256 + 1) * 2, rest = 2 * (256 * 256 + 256) * 2;
    const int64_t shards = (6 * block + rest) * 2 / group.size(), slack = 1 << 19;
    const auto x = torch::randn({2, 256});
    for (int i = 0; i < 2; ++i) {
      Tensor loss;
      {
        const Autocast autocast(at::kCPU, at::kBFloat16);
        loss = trainee.forward([&] { return net(x); }).to(at::kFloat).square().mean();
      }
      // What is saved for backward holds no weights: of those only the root's are there, in bfloat16.
      EXPECT_LT(settled(counter, shards + rest + slack), shards + rest + slack);
      trainee.backward(loss);
      for (auto& parameter : net->parameters()) parameter.mutable_grad().reset();
    }
  });
}

/// A float32 buffer upcasts what goes into a layer norm, and a batch norm has float32 statistics.
struct UpcastNetImpl : torch::nn::Module {
  UpcastNetImpl() {
    in = register_module("in", nn::Linear(8, 8));
    positions = register_buffer("positions", torch::linspace(0, 1, 8));
    layers = register_module("layers", nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    groups = register_module("groups", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 8)));
    batches = register_module("batches", torch::nn::BatchNorm1d(8));
    out = register_module("out", nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x) {
    const auto wide = groups(layers(in(x) + positions));
    return out(batches(wide) + batches(wide.to(at::kBFloat16)));
  }
  nn::Linear in{nullptr}, out{nullptr};
  nn::LayerNorm layers{nullptr};
  torch::nn::GroupNorm groups{nullptr};
  torch::nn::BatchNorm1d batches{nullptr};
  Tensor positions;
};
LEVIN_MODULE(UpcastNet);

TEST(Fsdp, MixedPrecisionMeetsNumbersOfFullPrecision) {
  const auto train = [](Collective& group, const StrategyChoice& choice) {
    torch::manual_seed(2);
    UpcastNet net;
    Optimizer optimizer(optim::SGD(net->parameters(), {.lr = 0.05}));
    Trainee trainee(group, choice, *net, at::kCPU, "bf16-mixed");
    optimizer = trainee.strategy().setup_optimizer(optimizer);
    const auto x = torch::randn({16, 8});
    std::vector<Tensor> losses;
    for (int step = 0; step < 4; ++step) {
      Tensor loss;
      {
        const Autocast autocast(at::kCPU, at::kBFloat16);
        loss = (trainee.forward([&] { return net(x); }).to(at::kFloat) - x.sum(1, true)).square().mean();
      }
      trainee.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.detach());
    }
    return at::stack(losses);
  };
  // All ranks have the same rows, so that a batch norm sees what it would see alone.
  const auto one = run_ranks(1, [&](Collective& group) { return train(group, "single_device"); })[0].tensor();
  for (const auto& rank : run_ranks(2, [&](Collective& group) { return train(group, FsdpOptions{}); }))
    EXPECT_TRUE(at::allclose(rank.tensor(), one, 2e-2, 2e-2)) << rank.tensor() << one;
  EXPECT_LT(one[3].item<double>(), one[0].item<double>());
}

TEST(Fsdp, ParametersMayBeReadAndChangedBetweenSteps) {
  run_ranks(2, [](Collective& group) {
    for (const StrategyChoice& choice :
         {StrategyChoice(fsdp_blocks()), StrategyChoice(ZeroOptions{.stage = 2, .auto_wrap_policy = kBlocks})}) {
      torch::manual_seed(0);
      ShardRun run(group, choice);
      auto& weight = run.net->blocks[1]->up->weight;
      run.step();
      EXPECT_EQ(weight.sizes(), (std::vector<int64_t>{group.rank() == 0 ? 8 : 7, 10}));
      std::ostringstream text;
      text << weight << run.net->stem->weight.norm();
      {
        const at::NoGradGuard no_grad;
        weight.mul_(0);
        run.net->blocks[1]->up->bias.data().fill_(0);
        run.net->blocks[1]->down->bias.set_data(torch::zeros_like(run.net->blocks[1]->down->bias));
      }
      const auto x = torch::randn({3, 10});
      Tensor through;
      {
        const at::NoGradGuard no_grad;
        through = run.trainee.forward([&] { return run.net->blocks[1](x); });
      }
      EXPECT_TRUE(at::equal(through, x));  // nothing is left of the block but its residual
      const auto loss = run.loss();
      EXPECT_EQ(weight.size(0), group.rank() == 0 ? 8 : 7);  // also between forward and backward
      text << weight;
      run.trainee.backward(loss);
    }
  });
}

TEST(Fsdp, TrainsOnAfterAnException) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(5);
    ShardRun run(group, fsdp_blocks()), calm(group, fsdp_blocks());
    load_into(*calm.net, *run.net);
    run.step(7);
    const auto wanted = values_of_grads(*run.net);
    for (auto& parameter : run.net->parameters()) parameter.mutable_grad().reset();
    // In backward, in the middle.
    auto loss = run.trainee.forward([&] {
      auto h = run.net->stem(torch::randn({2, 10}));
      h = run.net->blocks[0](h);
      h.register_hook([](const Tensor& gradient) -> Tensor {
        throw std::runtime_error("in the middle");
        return gradient;
      });
      return run.net->blocks[1](h);
    });
    EXPECT_THROW(run.trainee.backward(loss.sum()), std::runtime_error);
    for (auto& parameter : run.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
    // In forward.
    EXPECT_THROW(run.trainee.forward([&]() -> Tensor {
      run.net->blocks[0](torch::randn({2, 10}));
      throw std::runtime_error("in forward");
    }),
                 std::runtime_error);
    EXPECT_EQ(run.net->blocks[0]->up->weight.size(0), group.rank() == 0 ? 8 : 7);
    run.step(7);
    EXPECT_EQ(max_difference(values_of_grads(*run.net), wanted), 0);
  });
}

TEST(Fsdp, BackwardMayRunInTheMiddleOfAForward) {
  // As a training step does that optimizes by hand: forward, backward, step, and the same again.
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(5);
    ShardRun run(group, fsdp_blocks()), apart(group, fsdp_blocks());
    load_into(*apart.net, *run.net);
    const auto x = torch::randn({3, 10});
    Optimizer together(optim::SGD(run.net->parameters(), {.lr = 0.1}));
    Optimizer separate(optim::SGD(apart.net->parameters(), {.lr = 0.1}));
    run.trainee.forward([&]() -> Tensor {
      for (int i = 0; i < 3; ++i) {
        auto loss = run.net(x).square().mean();
        run.trainee.sync()->after_forward({&loss, 1});
        run.trainee.backward(loss);
        together.step();
        together.zero_grad();
      }
      return torch::zeros({});
    });
    for (int i = 0; i < 3; ++i) {
      apart.trainee.backward(apart.trainee.forward([&] { return apart.net(x); }).square().mean());
      separate.step();
      separate.zero_grad();
    }
    const auto ours = run.net->parameters(), theirs = apart.net->parameters();
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::equal(ours[i], theirs[i])) << i;
  });
}

TEST(Fsdp, SaysWhatIsWrong) {
  const auto message = [](const StrategyChoice& choice) -> std::string {
    return error_of([&] { make_strategy(choice, 2); });
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(FsdpOptions{.sharding_strategy = "none", .cpu_offload = true}),
              HasSubstr("cpu_offload needs parameters that are sharded"));
  EXPECT_THAT(message(FsdpOptions{.sharding_strategy = "ful"}), HasSubstr("\"full\""));
  EXPECT_THAT(
      message(ZeroOptions{.stage = 2, .offload_optimizer = {.device = "cpu"}, .offload_param = {.device = "cpu"}}),
      HasSubstr("offload_param needs stage 3"));
  EXPECT_THAT(message(ZeroOptions{.stage = 4}), HasSubstr("1, 2 or 3"));
  EXPECT_THAT(message(ZeroOptions{.stage = 3, .offload_optimizer = {.device = "nvme"}}), HasSubstr("nvme_path"));
  run_ranks(2, [](Collective& group) {
    ShardNet net;
    EXPECT_THAT(error_of([&] {
                  Trainee trainee(group, FsdpOptions{.auto_wrap_policy = policy::by_class<torch::nn::Conv2d>()}, *net);
                }),
                HasSubstr("ShardBlock"));
    ShardRun run(group, fsdp_blocks());
    EXPECT_THAT(error_of([&] {
                  run.net->blocks[0](torch::randn({2, 10}));
                }),
                HasSubstr("\"block0\" was called outside of the module that setup returned"));
  });
}

TEST(Fsdp, NamesTheStrategyWhereModelsDiffer) {
  run_ranks(2, [](Collective& group) {
    const auto blocks = policy::by_class<ShardBlock>();
    for (const auto& [name, choice] :
         {std::pair<std::string, StrategyChoice>{"fsdp", FsdpOptions{.auto_wrap_policy = blocks}},
          {"deepspeed_stage_2", ZeroOptions{.stage = 2, .auto_wrap_policy = blocks}},
          {"colossalai", GeminiOptions{.placement_policy = "cuda", .auto_wrap_policy = blocks}},
          {"pipeline", PipelineOptions{.units = blocks}}}) {
      ShardNet net(ShardNetOptions{.hidden = 15 + group.rank()});
      EXPECT_THAT(error_of([&] { Trainee trainee(group, choice, *net); }),
                  ::testing::StartsWith("[" + name + "] the ranks have different models: "));
    }
  });
}

TEST(Fsdp, RefusesMoreThanTheHostHas) {
  run_ranks(1, [](Collective& group) {
    // A million million parameters, none of which is ever allocated.
    auto net = init_module([] { return nn::Linear(torch::nn::LinearOptions(1'000'000, 1'000'000).bias(false)); },
                           {.deferred = true});
    EXPECT_THAT(error_of([&] { Trainee trainee(group, FsdpOptions{.cpu_offload = true}, *net); }),
                ::testing::HasSubstr("[fsdp] offloading needs 8000.0 GB of host memory"));
  });
}

TEST(Fsdp, DeferredModelsAreMadeUnitByUnit) {
  run_ranks(2, [](Collective& group) {
    const ShardNetOptions options{.width = 256, .hidden = 1024, .blocks = 6};
    torch::manual_seed(1);
    ShardNet plain(options);
    torch::manual_seed(1);
    auto net = init_module([&] { return ShardNet(options); }, {.deferred = true});
    MemoryCounter counter;
    Trainee trainee(group, fsdp_blocks(), *net);
    const int64_t block = (2 * 256 * 1024 + 1024 + 3 * 256 + 1) * 4, rest = 2 * (256 * 256 + 256) * 4;
    const int64_t shards = (6 * block + rest) / group.size();
    EXPECT_LT(counter.peak(), shards + 2 * block + rest);
    const auto wanted = plain->named_parameters();
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(
          at::equal(whole_of(group, trainee.strategy().shards(), item.value(), item.value()), wanted[item.key()]))
          << item.key();
  });
}

TEST(Fsdp, NormsAreThoseOfTheFullGradients) {
  run_ranks(4, [](Collective& group) {
    for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
      torch::manual_seed(2);
      ShardRun run(group, fsdp_blocks());
      run.step();
      std::vector<Tensor> wholes;
      for (const auto& parameter : run.net->parameters())
        wholes.push_back(whole_of(group, run.trainee.strategy().shards(), parameter, parameter.grad()).reshape({-1}));
      const auto wanted = at::linalg_vector_norm(at::cat(wholes), p);
      EXPECT_NEAR(run.trainee.strategy().grad_norm(run.net->parameters(), p).item<double>(), wanted.item<double>(),
                  1e-5 * wanted.item<double>());
    }
  });
}

}  // namespace
}  // namespace levin::testing
