// Gradients of many micro-batches in mixed precision: they are added in float32, reduced or not, so that their sum is
// that of one batch. In bfloat16 the sum would stop to change.
#include <gtest/gtest.h>

#include "levin/precision/precision.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

const auto kBlocks = policy::by_class<ShardBlock>();
const ShardNetOptions kNet{.width = 48, .hidden = 64, .blocks = 2};
constexpr int kMany = 64;

ZeroOptions zero(int stage, bool offload = false, bool offload_param = false) {
  ZeroOptions options{.stage = stage, .stage3_param_persistence_threshold = 12, .auto_wrap_policy = kBlocks};
  if (offload) options.offload_optimizer.device = "cpu";
  if (offload_param) options.offload_param.device = "cpu";
  return options;
}

struct Way {
  std::string name;
  StrategyChoice choice;
  /// Ranks that share a copy of the model; 0: all.
  int shard_size = 0;
  /// The reduced gradient of a backward is kept in bfloat16: rounded once.
  bool rounds = false;
};

std::vector<Way> ways() {
  return {{"fsdp", FsdpOptions{.auto_wrap_policy = kBlocks}},
          {"grad_op", FsdpOptions{.auto_wrap_policy = kBlocks, .sharding_strategy = "grad_op"}},
          {"none", FsdpOptions{.auto_wrap_policy = kBlocks, .sharding_strategy = "none"}, 1},
          {"fsdp_offload", FsdpOptions{.auto_wrap_policy = kBlocks, .cpu_offload = true}, 0, true},
          {"stage_1", zero(1), 0, true},
          {"stage_2", zero(2), 0, true},
          {"stage_3", zero(3)},
          {"stage_1_offload", zero(1, true), 0, true},
          {"stage_2_offload", zero(2, true), 0, true},
          {"stage_3_offload", zero(3, true, true), 0, true},
          {"stage_3_offload_optimizer", zero(3, true), 0, true},
          {"gemini", GeminiOptions{.placement_policy = "cuda", .auto_wrap_policy = kBlocks}},
          {"gemini_offload", GeminiOptions{.placement_policy = "cpu", .auto_wrap_policy = kBlocks}, 0, true}};
}

enum class Sum : uint8_t {
  /// By the strategy, reduced in each micro-batch or in the last.
  kReduced,
  kUnreduced,
  /// By the test in float32, of the gradients of each micro-batch.
  kApart,
  /// By the stages of a pipeline.
  kPipeline
};

/// The full gradients after a step over 256 rows in that many micro-batches, one after the other. In a pipeline: of
/// this rank.
Tensor gradients(Collective& group, const Way& way, int micro_batches, Sum how) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  ShardNet net(kNet);
  const auto params = unique_parameters(*net);
  Trainee trainee(group, way.choice, *net, at::kCPU, "bf16-mixed");
  const auto autocast_dtype = resolve_precision("bf16-mixed", at::kCPU).autocast;
  const auto [x, y] = boring_data(256, kNet.width, 7);
  const auto target = torch::cat(std::vector<Tensor>(static_cast<size_t>(kNet.width) / 2, y), 1);
  const auto loss_of = [&](const Tensor& batch) {
    const Autocast autocast(at::kCPU, *autocast_dtype);
    const auto [in, wanted] = std::pair(batch.narrow(1, 0, kNet.width), batch.narrow(1, kNet.width, kNet.width));
    return mse(net(in).to(at::kFloat), wanted);
  };
  const auto all = torch::cat({x, target}, 1);
  std::vector<Tensor> sums(params.size());
  if (how == Sum::kPipeline) {
    // Two pipelines: each has half of the rows.
    (void)trainee.step(all.chunk(2)[static_cast<size_t>(group.rank() % 2)], loss_of);
  } else {
    const auto mine = shard_of(all, group.rank(), group.size()).chunk(micro_batches);
    for (size_t i = 0; i < mine.size(); ++i) {
      trainee.set_sync(how != Sum::kUnreduced || i + 1 == mine.size());
      trainee.backward(trainee.forward([&] { return loss_of(mine[i]); }) / micro_batches);
      if (how != Sum::kApart) continue;
      for (size_t p = 0; p < params.size(); ++p) {
        const auto grad = params[p].grad().to(at::kFloat);
        sums[p] = sums[p].defined() ? sums[p] + grad : grad.clone();
      }
      clear_grads(params);
    }
  }
  std::vector<Tensor> full;
  for (size_t p = 0; p < params.size(); ++p) {
    const auto& param = params[p];
    const auto own = how == Sum::kApart ? sums[p] : param.grad();
    if (!own.defined()) continue;  // of another stage
    const bool gathers = way.shard_size != 1 && how != Sum::kPipeline;
    const auto value = gathers ? whole_of(group, trainee.strategy().shards(), param, own) : own;
    full.push_back(value.to(at::kFloat).reshape({-1}));
  }
  return torch::cat(full);
}

double apart(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST(Accumulation, ManyMicroBatchesEqualTheirSumInFloat32) {
  for (const int world : {1, 2})
    run_ranks(world, [](Collective& group) {
      for (const auto& way : ways()) {
        const auto sum = gradients(group, way, kMany, Sum::kApart), one = gradients(group, way, 1, Sum::kReduced);
        for (const auto how : {Sum::kReduced, Sum::kUnreduced}) {
          const auto many = gradients(group, way, kMany, how);
          EXPECT_LT(apart(many, sum), way.rounds ? 2.5e-3 : 1e-4)
              << way.name << (how == Sum::kReduced ? ", reduced in each" : "");
          EXPECT_LT(apart(many, one), 4e-3) << way.name;  // one rounding of the products of a whole batch
        }
      }
    });
}

TEST(Accumulation, IsInTheDtypeThatIsAskedFor) {
  run_ranks(2, [](Collective& group) {
    FsdpOptions narrow{.auto_wrap_policy = kBlocks};
    narrow.mixed_precision.accumulate_dtype = at::kBFloat16;
    auto stage = zero(2);
    stage.grad_accum_dtype = at::kBFloat16;
    GeminiOptions gemini{.placement_policy = "cuda", .accumulate_dtype = at::kBFloat16, .auto_wrap_policy = kBlocks};
    for (const Way& way : {Way{"fsdp", narrow}, Way{"stage_2", stage}, Way{"gemini", gemini}}) {
      const auto far = apart(gradients(group, way, kMany, Sum::kUnreduced), gradients(group, way, kMany, Sum::kApart));
      EXPECT_GT(far, 5e-3) << way.name;
    }
  });
}

// Between the ranks of a pipeline's stage gradients are reduced behind the last micro-batch.
TEST(Accumulation, OfThePipelinesMicroBatchesIsInFloat32) {
  run_ranks(4, [](Collective& group) {
    const auto way = [](int micro_batches, std::optional<c10::ScalarType> dtype) {
      ModelParallelOptions options{.mesh = {.pp = 2, .dp_shard = 2},
                                   .fsdp = {.auto_wrap_policy = kBlocks},
                                   .pipeline = {.microbatches = micro_batches, .units = kBlocks}};
      options.fsdp.mixed_precision.accumulate_dtype = dtype;
      return Way{"pp x dp_shard", options};
    };
    const auto one = gradients(group, way(1, {}), 0, Sum::kPipeline);
    const auto wide = apart(gradients(group, way(kMany, {}), 0, Sum::kPipeline), one);
    const auto narrow = apart(gradients(group, way(kMany, at::kBFloat16), 0, Sum::kPipeline), one);
    EXPECT_LT(wide, 4e-3);
    EXPECT_GT(narrow, 3 * wide);
  });
}

/// Of two ranks one has gradients that vanish beside the other's in bfloat16.
TEST(Accumulation, RanksAreSummedInFloat32UnlessAskedForLess) {
  run_ranks(2, [](Collective& group) {
    const auto sum_of = [&](const StrategyChoice& choice) {
      torch::manual_seed(3);
      ShardNet net(kNet);
      const auto params = unique_parameters(*net);
      Trainee trainee(group, choice, *net, at::kCPU, "bf16-mixed");
      const auto output = trainee.forward([&] { return net(at::ones({1, kNet.width}, at::kBFloat16)); });
      trainee.backward(output.to(at::kFloat).sum() * (group.rank() == 0 ? 1.0 : 1.0 / 512));
      return whole_of(group, trainee.strategy().shards(), net->head->bias, net->head->bias.grad())[0].item<double>();
    };
    FsdpOptions wide{.auto_wrap_policy = kBlocks};
    auto narrow = wide;
    narrow.mixed_precision.reduce_dtype = at::kBFloat16;
    EXPECT_EQ(sum_of(wide), (1 + 1.0 / 512) / 2);
    EXPECT_EQ(sum_of(narrow), 0.5);
    auto stage = zero(3);
    EXPECT_EQ(sum_of(stage), (1 + 1.0 / 512) / 2);
    stage.communication_data_type = at::kBFloat16;
    EXPECT_EQ(sum_of(stage), 0.5);
    GeminiOptions gemini{.placement_policy = "cuda", .auto_wrap_policy = kBlocks};
    EXPECT_EQ(sum_of(gemini), (1 + 1.0 / 512) / 2);
    gemini.reduce_dtype = at::kBFloat16;
    EXPECT_EQ(sum_of(gemini), 0.5);
  });
}

}  // namespace
}  // namespace levin::testing
