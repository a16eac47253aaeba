// Expert parallelism beside the other axes: what it costs, and that it is searched.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <set>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/memory/estimate.h"
#include "levin/models/decoder.h"
#include "levin/planner/explain.h"
#include "levin/strategies/model_parallel.h"

namespace levin::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MemoryModel memory_of(const ModelShape& model) {
  return {model, {}, "bf16-mixed"};
}

TEST(PlannedExperts, AreDividedByEpAndTheRestIsNot) {
  const auto model = model_shape("mixtral-8x22b");
  const auto memory = memory_of(model);
  const Candidate whole{.pp = 2, .dp_shard = 16, .tp = 2, .zero_stage = 3, .schedule = Schedule::k1F1B};
  for (const int64_t ep : {2, 4, 8}) {
    auto spread = whole;
    spread.ep = ep;
    const auto a = memory.stage_parameters(whole, 0), b = memory.stage_parameters(spread, 0);
    EXPECT_DOUBLE_EQ(a.experts, b.experts * static_cast<double>(ep));
    EXPECT_DOUBLE_EQ(a.total() - a.experts, b.total() - b.experts);
  }
  // 3 matrices of 8 experts in 28 layers, half as wide.
  EXPECT_DOUBLE_EQ(memory.stage_parameters(whole, 0).experts, 28.0 * 8 * 3 * 6144 * 16384 / 2);
}

TEST(PlannedExperts, RowsOfShardsAreExperts) {
  const auto memory = memory_of(model_shape("mixtral-8x7b"));
  const auto shards = [&](int64_t dp_shard, int64_t ep) {
    return memory.expert_shards({.dp_shard = dp_shard, .ep = ep, .zero_stage = 3});
  };
  // 8 experts over 4 ranks: two each. Over 16: eight ranks have one, eight have none, and all are gathered.
  EXPECT_EQ(shards(4, 1).divide, 4);
  EXPECT_EQ(shards(4, 1).padding(), 1);
  EXPECT_EQ(shards(16, 1).divide, 8);
  EXPECT_EQ(shards(16, 1).padding(), 2);
  EXPECT_EQ(shards(16, 4).divide, 2);
  EXPECT_EQ(shards(16, 4).shards, 4);
  EXPECT_EQ(shards(16, 8).divide, 1);
  EXPECT_EQ(shards(8, 8).padding(), 1);
}

TEST(PlannedExperts, FourAllToAllsALayer) {
  const PlanQuestion question{.model = model_shape("mixtral-8x7b"), .cluster = cluster_of("h100", 64)};
  Calibration calibration{.host_wait = 0};
  const CostModel cost(question, calibration);
  const double tokens = 2 * 4096, width = 4096, top = 2;
  for (const int64_t ep : {2, 4, 8}) {
    const auto times = cost.layer({.dp_shard = 64, .ep = ep, .zero_stage = 3, .micro_batch = 2});
    // In a node: (ep - 1) / ep of the rows of two bytes over NVLink, there and back, forward and backward.
    const double n = static_cast<double>(ep);
    const double seconds = 2 * tokens * width * top * (n - 1) / n / (450e9 * calibration.inside);
    const double latency = question.cluster.inside.latency * std::ceil(std::log2(n));
    EXPECT_NEAR(times.ep_forward, 2 * (seconds + latency), 1e-9) << ep;
    EXPECT_DOUBLE_EQ(times.ep_backward, times.ep_forward) << ep;
  }
  // Beside tp 4 a group of four lies in two nodes: half of the rows go over the network.
  const auto across = cost.layer({.dp_shard = 16, .tp = 4, .ep = 4, .zero_stage = 3, .micro_batch = 2});
  EXPECT_NEAR(across.ep_forward,
              2 * (2 * tokens * width * top / 2 / (50e9 * calibration.between) + 2 * question.cluster.between.latency),
              1e-9);
  EXPECT_EQ(cost.layer({.dp_shard = 64, .zero_stage = 3, .micro_batch = 2}).ep_forward, 0);
}

TEST(PlannedExperts, RecomputingSendsRowsAgain) {
  const PlanQuestion question{.model = model_shape("mixtral-8x7b"), .cluster = cluster_of("h100", 64)};
  const Candidate kept{.dp_shard = 64, .ep = 8, .zero_stage = 3, .micro_batch = 1};
  auto again = kept;
  again.checkpointing = Checkpointing::kFull;
  EXPECT_NEAR(evaluate(question, again).cost.ep / evaluate(question, kept).cost.ep, 1.5, 0.03);
}

TEST(PlannedExperts, GradientsAreReducedOverTheRanksThatShareThem) {
  const PlanQuestion question{.model = model_shape("mixtral-8x7b"), .cluster = cluster_of("h100", 64)};
  const auto dp = [&](int64_t ep, int64_t shard) {
    return evaluate(question, {.dp_replicate = 64 / shard, .dp_shard = shard, .ep = ep, .zero_stage = 2}).cost.dp;
  };
  // One expert on each rank of a node, a copy in every node: only copies are reduced. Without ep experts are also
  // gathered and scattered within the node.
  EXPECT_LT(dp(8, 8), 0.7 * dp(1, 8));
  // Rows of shards are experts: one over eight ranks is gathered with seven times as much padding.
  EXPECT_GT(dp(8, 64), 5 * dp(8, 8));
}

TEST(PlannedExperts, MemoryOfOneRankIsThatOfTheEstimate) {
  models::DecoderOptions options{.vocab_size = 32000,
                                 .max_positions = 2048,
                                 .num_layers = 4,
                                 .num_heads = 16,
                                 .hidden_dim = 2048,
                                 .mlp_dim = 5632,
                                 .bias = false};
  options.norm = "rms", options.activation = "silu_gated", options.positions = "rotary", options.tied_head = false;
  options.experts = {.count = 8, .per_token = 2, .width = 2816};
  const ModelShape shape{.name = "test",
                         .layers = 4,
                         .width = 2048,
                         .heads = 16,
                         .kv_heads = 16,
                         .head_width = 128,
                         .mlp_width = 2816,
                         .gated = true,
                         .bias = false,
                         .rms_norm = true,
                         .vocabulary = 32000,
                         .tied_head = false,
                         .positions = 0,
                         .sequence = 2048,
                         .experts = 8,
                         .experts_per_token = 2};
  const auto played = [&](int64_t samples) {
    const auto tokens = at::TensorOptions(at::kMeta).dtype(at::kLong);
    const Batch batch{{"tokens", at::empty({samples, 2048}, tokens)}, {"targets", at::empty({samples, 2048}, tokens)}};
    return estimate_memory([&] { return models::decoder(options); },
                           [](auto& model, const Batch& given) { return model(given["tokens"], given["targets"]); },
                           [](const Tensor& loss, const Batch&) { return loss; }, batch,
                           {.precision = "bf16-mixed", .optimizer = "adamw"});
  };
  const auto few = played(4), many = played(8);
  EXPECT_EQ(shape.parameters(), static_cast<double>(few.num_parameters));
  const auto memory = memory_of(shape);
  const auto planned = memory.of_stage({.micro_batch = 4}, 0), more = memory.of_stage({.micro_batch = 8}, 0);
  EXPECT_NEAR((more.activations - planned.activations) / static_cast<double>(many.activations - few.activations), 1,
              0.05);
  EXPECT_NEAR(planned.peak / static_cast<double>(few.device_peak), 1, 0.1);
  EXPECT_NEAR(more.peak / static_cast<double>(many.device_peak), 1, 0.1);
}

TEST(PlannedExperts, AreSearchedBesideTheOtherAxes) {
  const PlanQuestion question{.model = model_shape("qwen3-235b-a22b"), .cluster = cluster_of("h100", 256), .top = 1000};
  std::set<std::array<bool, 4>> seen;
  for (const auto& plan : search(question).best) {
    const auto& c = plan.candidate;
    EXPECT_EQ(why_not(question.model, c), "");
    EXPECT_EQ(c.gpus(), 256);
    EXPECT_EQ((c.dp_shard * c.cp) % c.ep, 0);
    EXPECT_EQ(128 % c.ep, 0);
    seen.insert({c.pp > 1, c.cp > 1, c.tp > 1, c.ep > 1});
  }
  EXPECT_TRUE(seen.contains({true, false, false, true}));
  EXPECT_TRUE(seen.contains({false, false, true, true}));
  EXPECT_TRUE(seen.contains({true, false, true, true}));
  EXPECT_TRUE(seen.contains({true, true, true, true}));
}

TEST(PlannedExperts, RefusalsNameTheSizes) {
  const auto dense = model_shape("llama-3-8b"), experts = model_shape("mixtral-8x7b");
  EXPECT_EQ(why_not(dense, {.dp_shard = 8, .ep = 2, .zero_stage = 3}), "0 experts over ep 2");
  EXPECT_EQ(why_not(experts, {.dp_shard = 16, .ep = 16, .zero_stage = 3}), "8 experts over ep 16");
  EXPECT_EQ(why_not(experts, {.dp_shard = 8, .ep = 16, .zero_stage = 3}), "ep 16 in dp_shard 8 x cp 1");
  EXPECT_EQ(why_not(experts, {.cp = 2, .ep = 2}), "ep 2 without shards");
  EXPECT_EQ(why_not(experts, {.pp = 2, .dp_shard = 4, .tp = 2, .ep = 4, .zero_stage = 3, .schedule = Schedule::k1F1B}),
            "");
}

TEST(PlannedExperts, ConfigurationIsThatOfThePlan) {
  const PlanQuestion question{.model = model_shape("mixtral-8x7b"), .cluster = cluster_of("h100", 64)};
  const Candidate c{.pp = 4,
                    .dp_shard = 8,
                    .tp = 2,
                    .ep = 4,
                    .zero_stage = 3,
                    .schedule = Schedule::k1F1B,
                    .microbatches = 8,
                    .sequence_parallel = true};
  EXPECT_EQ(strategy_name(c),
            "model_parallel:pp=4,dp_shard=8,tp=2,ep=4,sequence_parallel,schedule=1f1b,microbatches=8");
  const auto strategy = make_strategy(strategy_name(c), 64);
  const auto* mesh = dynamic_cast<const ModelParallelStrategy*>(strategy.get());
  ASSERT_TRUE(mesh);
  EXPECT_EQ(mesh->options().mesh.over(64).ep, 4);
  const auto text = configuration_text(question, {.candidate = c});
  EXPECT_THAT(text, HasSubstr(".mesh = {.pp = 4, .dp_shard = 8, .tp = 2, .ep = 4}"));
  EXPECT_THAT(text, HasSubstr("balance_loss and router_z_loss must be 0"));
  EXPECT_THAT(configuration_text(question, {.candidate = {.dp_shard = 64, .ep = 8, .zero_stage = 3}}),
              Not(HasSubstr("balance_loss")));
  const auto others = alternatives(question, evaluate(question, c));
  const auto has = [&](const char* start) {
    return std::ranges::any_of(others, [&](const auto& other) { return other.change.starts_with(start); });
  };
  EXPECT_TRUE(has("ep 2"));
  EXPECT_TRUE(has("ep 8"));
}

TEST(PlannedExperts, TenThousandGpusTakeSeconds) {
  // A trillion parameters in 256 experts.
  auto model = model_shape("qwen3-235b-a22b");
  model.layers = 96, model.width = 6144, model.mlp_width = 2048, model.experts = 256, model.name = "trillion";
  EXPECT_GT(model.parameters(), 0.9e12);
  const auto start = std::chrono::steady_clock::now();
  const auto plans = search({.model = model, .cluster = cluster_of("h100", 10'000)});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 8);
  EXPECT_GT(plans.best.front().candidate.ep, 1);
}

}  // namespace
}  // namespace levin::planner
