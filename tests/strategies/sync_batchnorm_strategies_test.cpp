// sync_batchnorm under every strategy: batch norm as one process has it on the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/strategies/single_device.h"
#include "levin/testing/error_of.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

struct NormBlockImpl : torch::nn::Module {
  explicit NormBlockImpl(int64_t width) {
    in = register_module("in", nn::Linear(width, 12));
    norm = register_module("norm", torch::nn::BatchNorm1d(12));
    out = register_module("out", nn::Linear(12, width));
  }
  Tensor forward(const Tensor& x) {
    if (fails) throw std::runtime_error("this block fails");
    return x + out(torch::tanh(norm(in(x))));
  }
  bool fails = false;
  nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
LEVIN_MODULE(NormBlock);

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    for (int i = 0; i < 2; ++i) blocks.push_back(register_module("block" + std::to_string(i), NormBlock(10)));
    head = register_module("head", nn::Linear(10, 10));
    norm = register_module("norm", torch::nn::BatchNorm1d(10));
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(norm(x));
  }
  std::vector<NormBlock> blocks;
  nn::Linear head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
LEVIN_MODULE(NormNet);

const auto kBlocks = policy::by_class<NormBlock>();

struct NamedChoice {
  std::string name;
  StrategyChoice choice;
  bool checkpoints = false;
};

std::vector<NamedChoice> strategies() {
  return {
      {"ddp", "ddp"},
      {"ddp_options", DdpOptions{.sync_batchnorm = true}},
      {"ddp_find_unused", "ddp_find_unused_parameters_true"},
      {"ddp_checkpointing", "ddp", true},
      {"fsdp", FsdpOptions{.auto_wrap_policy = kBlocks}},
      {"fsdp_options", FsdpOptions{.auto_wrap_policy = kBlocks, .sync_batchnorm = true}},
      {"fsdp_offload", FsdpOptions{.auto_wrap_policy = kBlocks, .cpu_offload = true}},
      {"fsdp_checkpointing", FsdpOptions{.auto_wrap_policy = kBlocks, .activation_checkpointing_policy = kBlocks}},
      {"hybrid", FsdpOptions{.auto_wrap_policy = kBlocks, .sharding_strategy = "hybrid", .hybrid_size = 1}},
      {"stage_1", ZeroOptions{.stage = 1, .auto_wrap_policy = kBlocks}},
      {"stage_2", ZeroOptions{.stage = 2, .auto_wrap_policy = kBlocks}},
      {"stage_3", ZeroOptions{.stage = 3, .stage3_param_persistence_threshold = 20, .auto_wrap_policy = kBlocks}},
      {"gemini", GeminiOptions{.memory_budget = 1 << 26, .auto_wrap_policy = kBlocks}},
  };
}

/// Losses, then what the model gives when it evaluates, then running statistics.
std::vector<Tensor> train(Collective& group, const NamedChoice& with, const std::string& precision) {
  torch::manual_seed(3);
  NormNet net;
  const auto params = unique_parameters(*net);
  Optimizer optimizer = optim::SGD(params, {.lr = 0.1});
  std::vector<Attachment> attachments;
  if (with.checkpoints) attachments = attach_checkpointing(*net, kBlocks, {});
  Trainee trainee(group, with.choice.with_sync_batchnorm(), *net, at::kCPU, precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  const auto plan = resolve_precision(precision, at::kCPU);
  const auto call = [&](const Tensor& x) {
    return trainee
        .forward([&] {
          std::optional<Autocast> autocast;
          if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
          return net(x);
        })
        .to(at::kFloat);
  };
  std::vector<Tensor> losses, results;
  for (int step = 0; step < 4; ++step) {
    // The halves of a batch are nothing like each other.
    auto [x, y] = boring_data(8, 10, static_cast<uint64_t>(step + 1));
    x = x * torch::linspace(0.2, 3, 8).view({8, 1}) + torch::linspace(-1, 2, 8).view({8, 1});
    const auto target = torch::cat(std::vector<Tensor>(5, y), 1);
    const auto loss = mse(call(shard_of(x, group.rank(), group.size())), shard_of(target, group.rank(), group.size()));
    trainee.backward(loss);
    auto total = loss.detach().clone();
    group.all_reduce(total, ReduceOp::kMean);
    losses.push_back(total);
    optimizer.step();
    optimizer.zero_grad();
  }
  results.push_back(at::stack(losses));
  net->eval();
  const at::NoGradGuard no_grad;
  results.push_back(call(std::get<0>(boring_data(8, 10, 99))));
  for (const auto& buffer : net->buffers()) results.push_back(buffer.to(at::kFloat));
  return results;
}

TEST(SyncBatchNormOfStrategies, EqualsOneProcessOnTheGlobalBatch) {
  run_ranks(2, [](Collective& group) {
    at::set_num_threads(1);
    for (const char* precision : {"32-true", "bf16-mixed"}) {
      SingleCollective alone;
      const auto one = train(alone, {"single_device", "single_device"}, precision);
      for (const auto& with : strategies()) {
        const auto many = train(group, with, precision);
        EXPECT_LT(max_difference(many, one), std::string(precision) == "32-true" ? 2e-5 : 6e-2)
            << with.name << ", " << precision << ": " << many[0] << one[0];
      }
    }
  });
}

TEST(SyncBatchNormOfStrategies, EndsWithAForwardThatThrows) {
  run_ranks(2, [](Collective& group) {
    for (const auto& with : strategies()) {
      NormNet net;
      Trainee trainee(group, with.choice.with_sync_batchnorm(), *net);
      net->blocks[0]->fails = true;
      EXPECT_THROW(trainee.forward([&] { return net(at::ones({4, 10})); }), std::runtime_error) << with.name;
      // On one rank alone: it would wait for the other for good.
      torch::nn::BatchNorm1d norm(3);
      if (group.rank() == 0) {
        EXPECT_TRUE(norm(at::rand({4, 3})).defined());
      }
    }
  });
}

/// A strategy that knows nothing of batch norm.
class OwnStrategy final : public Strategy {
 public:
  OwnStrategy() : Strategy({.name = "own"}) {}
  std::unique_ptr<ModuleSync> setup_module(torch::nn::Module&) override { return nullptr; }
};

TEST(SyncBatchNormOfStrategies, IsRefusedByNameWhereItCannotBe) {
  OwnStrategy strategy;
  EXPECT_THAT(error_of([&] { strategy.sync_batchnorm(); }), HasSubstr("[own] sync_batchnorm is not possible"));
}

TEST(SyncBatchNormOfStrategies, LeavesTheChoiceAsItIs) {
  for (const char* name : {"ddp", "ddp_static_graph", "fsdp", "deepspeed_stage_2", "colossalai", "single_device"}) {
    const auto choice = StrategyChoice(name).with_sync_batchnorm();
    EXPECT_EQ(choice.name(), name);
    EXPECT_EQ(make_strategy(choice, 1)->name(), make_strategy(name, 1)->name());
  }
}

}  // namespace
}  // namespace levin::testing
