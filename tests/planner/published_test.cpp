// The cost model against published runs, with one calibration for all of them.
#include "tests/planner/published.h"

#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

namespace levin::planner::testing {
namespace {

constexpr double kPeak = 312e12;

/// Of the peak, counted with the recomputed forward.
double utilization(const PlanQuestion& question, const Candidate& candidate) {
  return evaluate(question, candidate).hfu;
}

TEST(Published, WeakScalingTo3072GpusIsWithinSixPoints) {
  for (const auto& run : narayanan_2021()) {
    const auto plan = evaluate(question_of(run), candidate_of(run));
    EXPECT_NEAR(100 * plan.hfu, 100 * run.tflops * 1e12 / kPeak, 6) << run.model;
    // They ran: they fit.
    EXPECT_LT(plan.memory.peak, usable_memory(cluster_of("a100", run.gpus))) << run.model;
  }
}

TEST(Published, SelectiveRecomputationIsWithinSixPoints) {
  for (const auto& run : korthikanti_2022()) {
    const auto question = question_of(run);
    const auto plan = evaluate(question, candidate_of(run));
    const double published = question.model.model_flops() * static_cast<double>(run.batch) /
                             (run.seconds * static_cast<double>(run.gpus) * kPeak);
    EXPECT_NEAR(100 * plan.mfu, 100 * published, 6) << run.model;
    EXPECT_LT(plan.memory.peak, usable_memory(question.cluster)) << run.model;
  }
}

TEST(Published, SelectiveRecomputationIsAsMuchFasterAsMeasured) {
  // 29.0 %, 31.8 %, 29.7 % and 32.1 % in the paper.
  const auto runs = korthikanti_2022();
  for (size_t i = 0; i < 4; ++i) {
    const double full = evaluate(question_of(runs[i]), candidate_of(runs[i])).cost.seconds();
    const double selective = evaluate(question_of(runs[i + 4]), candidate_of(runs[i + 4])).cost.seconds();
    EXPECT_NEAR(full / selective, runs[i].seconds / runs[i + 4].seconds, 0.1) << runs[i].model;
  }
}

TEST(Published, MeasuredUtilizationGrowsWithTheModelAsItDid) {
  // Table 1: at least 1.15 times as much from 18B to 530B.
  const auto runs = narayanan_2021();
  const auto small = evaluate(question_of(runs[3]), candidate_of(runs[3]));
  const auto large = evaluate(question_of(runs[8]), candidate_of(runs[8]));
  EXPECT_NEAR(large.hfu / small.hfu, 163.0 / 135.0, 0.15);
}

/// 32 layers, as wide as the model of 530B: figure 13 of Narayanan et al. 2021.
PlanQuestion figure_13() {
  auto model = model_shape("megatron-530b");
  model.layers = 32;
  return {.model = model, .cluster = cluster_of("a100", 64), .software = megatron()};
}

TEST(Published, TensorParallelOfANodeTimesPipelineIsBest) {
  const auto question = figure_13();
  EXPECT_NEAR(question.model.parameters() / 1e9, 162.2, 0.5);
  for (const int64_t batch : {32, 128}) {
    std::vector<double> rates;
    for (const int64_t pp : {2, 4, 8, 16, 32})
      rates.push_back(utilization(question, {.pp = pp,
                                             .tp = 64 / pp,
                                             .schedule = Schedule::k1F1B,
                                             .microbatches = batch,
                                             .checkpointing = Checkpointing::kFull}));
    // It falls to both sides of tp 8 x pp 8.
    EXPECT_LT(rates[0], rates[1]);
    EXPECT_LT(rates[1], rates[2]);
    EXPECT_GT(rates[2], rates[3]);
    EXPECT_GT(rates[3], rates[4]);
  }
}

TEST(Published, InterleavedIsFasterAndTheMoreSoTheSmallerTheBatch) {
  // Figure 12: 175B on 96 GPUs, tp 8 x pp 12, two layers a chunk.
  const PlanQuestion question{
      .model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 96), .software = megatron()};
  double before = 1e9;
  for (const int64_t batch : {12, 24, 36, 48, 60}) {
    Candidate plain{
        .pp = 12, .tp = 8, .schedule = Schedule::k1F1B, .microbatches = batch, .checkpointing = Checkpointing::kFull};
    auto interleaved = plain;
    interleaved.schedule = Schedule::kInterleaved, interleaved.chunks = 4;
    const double gain = utilization(question, interleaved) / utilization(question, plain);
    EXPECT_GT(gain, 1.05) << batch;
    EXPECT_LT(gain, before) << batch;
    before = gain;
  }
}

/// 5.9B parameters on 64 GPUs: figures 14 and 15.
PlanQuestion small_model() {
  auto model = model_shape("gpt3-6.7b");
  model.width = 3840, model.head_width = 120, model.mlp_width = 4 * 3840;
  return {.model = model, .cluster = cluster_of("a100", 64), .software = megatron()};
}

TEST(Published, DataParallelBeatsPipelineAndTensorParallelWhereItFits) {
  double pipeline = 1, tensor = 1;
  for (const int64_t n : {2, 4, 8, 16, 32}) {
    const Candidate stages{.pp = n,
                           .dp_replicate = 64 / n,
                           .schedule = Schedule::k1F1B,
                           .microbatches = 512 * n / 64,
                           .checkpointing = Checkpointing::kFull};
    const Candidate split{
        .dp_replicate = 64 / n, .tp = n, .microbatches = 512 * n / 64, .checkpointing = Checkpointing::kFull};
    const double with_stages = utilization(small_model(), stages), with_split = utilization(small_model(), split);
    EXPECT_LT(with_stages, pipeline) << n;
    EXPECT_LT(with_split, tensor) << n;
    // Across nodes tensor parallelism falls faster.
    if (n > 8) {
      EXPECT_LT(with_split, 0.7 * with_stages) << n;
    }
    pipeline = with_stages, tensor = with_split;
  }
}

TEST(Published, MicroBatchOfTwoIsBestFor91B) {
  // Figure 16: 91B on 64 GPUs, tp 8 x pp 8. One and two are close at the small batch.
  auto model = model_shape("megatron-530b");
  model.layers = 32, model.width = 15360, model.head_width = 120, model.mlp_width = 4 * 15360;
  EXPECT_NEAR(model.parameters() / 1e9, 91.4, 1);
  const PlanQuestion question{.model = model, .cluster = cluster_of("a100", 64), .software = megatron()};
  for (const int64_t batch : {128, 512}) {
    std::vector<double> rates;
    for (const int64_t micro : {1, 2, 4, 8})
      rates.push_back(utilization(question, {.pp = 8,
                                             .tp = 8,
                                             .schedule = Schedule::k1F1B,
                                             .micro_batch = micro,
                                             .microbatches = batch / micro,
                                             .checkpointing = Checkpointing::kFull}));
    EXPECT_GT(rates[1], 0.99 * rates[0]) << batch;
    EXPECT_GT(rates[1], 0.995 * rates[2]) << batch;
    EXPECT_GT(rates[2], rates[3]) << batch;
  }
}

TEST(Published, MoreGpusForTheSameBatchCostWhatTheyDid) {
  // Table 2: teraFLOP/s of tp 8 x pp 12 (175B) and tp 8 x pp 35 (530B).
  struct Row {
    const char* model;
    int64_t gpus, pp, batch;
    double tflops;
  };
  for (const auto& row : {Row{"gpt3-175b", 384, 12, 1536, 153}, Row{"gpt3-175b", 768, 12, 1536, 149},
                          Row{"gpt3-175b", 1536, 12, 1536, 141}, Row{"megatron-530b", 560, 35, 2240, 171},
                          Row{"megatron-530b", 1120, 35, 2240, 167}, Row{"megatron-530b", 2240, 35, 2240, 159}}) {
    const int64_t replicas = row.gpus / 8 / row.pp;
    const Candidate candidate{.pp = row.pp,
                              .dp_replicate = replicas,
                              .tp = 8,
                              .schedule = Schedule::k1F1B,
                              .microbatches = row.batch / replicas,
                              .checkpointing = Checkpointing::kFull};
    const PlanQuestion question{
        .model = model_shape(row.model), .cluster = cluster_of("a100", row.gpus), .software = megatron()};
    EXPECT_NEAR(100 * utilization(question, candidate), 100 * row.tflops * 1e12 / kPeak, 6) << row.model << row.gpus;
  }
}

TEST(Published, RunsOnOneH200AreWithinTenPercent) {
  // Compiled steps of bench/RESULTS.md, 2026-11-16.
  struct Row {
    const char* model;
    int64_t sequence, batch;
    const char* precision;
    double milliseconds;
  };
  for (const auto& row : {Row{"gpt2", 1024, 16, "bf16-mixed", 30.53}, Row{"gpt2_large", 1024, 8, "bf16-mixed", 92.6},
                          Row{"vit_l_16", 0, 64, "bf16-mixed", 52.34}, Row{"vit_l_16", 0, 64, "bf16-true", 49.30},
                          Row{"vit_l_16", 0, 16, "bf16-true", 14.10}, Row{"vit_l_16", 0, 4, "bf16-true", 6.47}}) {
    const PlanQuestion question{
        .model = model_shape(row.model, row.sequence), .cluster = cluster_of("h200", 1), .precision = row.precision};
    const double seconds = evaluate(question, {.micro_batch = row.batch}).cost.seconds();
    EXPECT_NEAR(1e3 * seconds / row.milliseconds, 1, 0.10) << row.model << " " << row.batch << " " << row.precision;
  }
}

}  // namespace
}  // namespace levin::planner::testing
