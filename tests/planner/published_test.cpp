// The cost model against published runs, with one calibration for all of them.
#include "tests/planner/published.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include <gtest/gtest.h>

namespace levin::planner::testing {
namespace {

constexpr double kPeak = 312e12;

/// Of the peak, counted with the recomputed forward.
double utilization(const PlanQuestion& question, const Candidate& candidate) {
  return evaluate(question, candidate).hfu;
}

TEST(Published, TableOfWeakScalingAgreesWithItself) {
  const auto runs = narayanan_2021();
  const auto sizes = narayanan_2021_sizes();
  ASSERT_EQ(runs.size(), sizes.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto& [name, width, layers, heads, parameters, percent, petaflops] = sizes[i];
    const auto model = model_shape(runs[i].model);
    EXPECT_EQ(model.name, name);
    EXPECT_EQ(std::tuple(model.width, model.layers, model.heads, model.vocabulary, model.sequence),
              std::tuple(width, layers, heads, 51200, 2048))
        << name;
    EXPECT_NEAR(model.parameters() / 1e9, parameters, 0.06) << name;
    EXPECT_NEAR(100 * runs[i].tflops * 1e12 / kPeak, percent, 0.55) << name;
    EXPECT_NEAR(runs[i].tflops * static_cast<double>(runs[i].gpus) / 1e3, petaflops, 0.004 * petaflops) << name;
  }
}

TEST(Published, WeakScalingTo3072GpusIsWithinFourPoints) {
  for (const auto& run : narayanan_2021()) {
    const auto plan = evaluate(question_of(run), candidate_of(run));
    // With the recomputed forward, as published, and without: their MFU.
    const double published = 100 * run.tflops * 1e12 / kPeak;
    EXPECT_NEAR(100 * plan.hfu, published, 4) << run.model;
    EXPECT_NEAR(100 * plan.mfu, published * plan.mfu / plan.hfu, 4) << run.model;
    // They ran: they fit.
    EXPECT_LT(plan.memory.peak, usable_memory(cluster_of("a100", run.gpus))) << run.model;
  }
}

TEST(Published, SelectiveRecomputationIsWithinFourPoints) {
  // Of the four models with selective recomputation.
  const std::vector<double> mfu{41.5, 51.4, 56.0, 56.3};
  size_t row = 0;
  for (const auto& run : korthikanti_2022()) {
    const auto question = question_of(run);
    const auto plan = evaluate(question, candidate_of(run));
    const double published = question.model.model_flops() * static_cast<double>(run.batch) /
                             (run.seconds * static_cast<double>(run.gpus) * kPeak);
    EXPECT_NEAR(100 * plan.mfu, 100 * published, 4) << run.model;
    EXPECT_LT(plan.memory.peak, usable_memory(question.cluster)) << run.model;
    // The published seconds give the published MFU.
    if (row >= 4) {
      EXPECT_NEAR(100 * published, mfu[row - 4], 0.25) << run.model;
    }
    ++row;
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

TEST(Published, OrderOfTheWeakScalingRunsIsThePublishedOne) {
  // Wherever two rows of table 1 are 8 % or more apart.
  const auto runs = narayanan_2021();
  int64_t pairs = 0;
  for (const auto& a : runs) {
    for (const auto& b : runs) {
      if (a.tflops < 1.08 * b.tflops) continue;
      ++pairs;
      EXPECT_GT(evaluate(question_of(a), candidate_of(a)).hfu, evaluate(question_of(b), candidate_of(b)).hfu)
          << a.model << " " << b.model;
    }
  }
  EXPECT_GE(pairs, 17);
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

TEST(Published, SendingPiecesOfActivationsGainsAsMuchAsMeasured) {
  // Figure 18: the interleaved runs of figure 12, of which each tp rank sends its part alone. Up to 11 % in the paper.
  PlanQuestion question{.model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 96), .software = megatron()};
  for (const int64_t batch : {12, 24, 36, 48, 60}) {
    const Candidate candidate{.pp = 12,
                              .tp = 8,
                              .schedule = Schedule::kInterleaved,
                              .chunks = 4,
                              .microbatches = batch,
                              .checkpointing = Checkpointing::kFull};
    question.software.scatters_sends = true;
    const double pieces = utilization(question, candidate);
    question.software.scatters_sends = false;
    EXPECT_NEAR(pieces / utilization(question, candidate), 1.11, 0.05) << batch;
  }
}

TEST(Published, PipelineOfMoreStagesScalesWithTheBatch) {
  // Figure 11: three layers of 20480 a stage, tp 8. Each further stage costs bubble, and less so with batches of 128.
  double before[2] = {1, 1};
  for (const int64_t pp : {1, 2, 4, 8}) {
    double rates[2];
    for (const int i : {0, 1}) {
      auto model = model_shape("megatron-530b");
      model.layers = 3 * pp;
      const PlanQuestion question{.model = model, .cluster = cluster_of("a100", 8 * pp), .software = megatron()};
      rates[i] = utilization(question, {.pp = pp,
                                        .tp = 8,
                                        .schedule = pp > 1 ? Schedule::k1F1B : Schedule::kNone,
                                        .microbatches = i == 0 ? 8 : 128,
                                        .checkpointing = Checkpointing::kFull});
      EXPECT_LT(rates[i], before[i]) << pp;
      before[i] = rates[i];
    }
    EXPECT_LT(rates[0], rates[1]) << pp;
    if (pp == 8) {
      EXPECT_LT(rates[0], 0.6 * rates[1]);
    }
  }
}

TEST(Published, RecomputationCostsAQuarterAndAllowsTwiceTheThroughput) {
  // Figure 17: 145B on 128 GPUs, tp 8 x pp 16. In sequences per second up to 33 % less at the same batch; with the
  // batches that it makes room for up to twice as much.
  const PlanQuestion question{
      .model = model_shape("megatron-145b"), .cluster = cluster_of("a100", 128), .software = megatron()};
  const auto rate = [&](int64_t batch, Checkpointing checkpointing) {
    return evaluate(
               question,
               {.pp = 16, .tp = 8, .schedule = Schedule::k1F1B, .microbatches = batch, .checkpointing = checkpointing})
        .tokens_per_second;
  };
  for (const int64_t batch : {1, 2, 4, 8})
    EXPECT_NEAR(rate(batch, Checkpointing::kFull) / rate(batch, Checkpointing::kNone), 0.72, 0.05) << batch;
  EXPECT_NEAR(rate(256, Checkpointing::kFull) / rate(8, Checkpointing::kNone), 2, 0.25);
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
  // Figure 16: 91B on 64 GPUs, tp 8 x pp 8. One and two are close at the small batch, two and four at the large one.
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
    EXPECT_GT(rates[1], rates[0]) << batch;
    EXPECT_GT(rates[1], 0.999 * rates[2]) << batch;
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
    EXPECT_NEAR(100 * utilization(question, candidate), 100 * row.tflops * 1e12 / kPeak, 5) << row.model << row.gpus;
  }
}

/// The fastest of the micro-batches and chunks that fit, as nobody tells which were taken.
Plan best_of(const PlanQuestion& question, const PublishedH100& run) {
  const int64_t samples = run.batch / 48;
  Plan best;
  for (int64_t micro = 1; micro <= samples; micro *= 2) {
    for (int64_t chunks = 1; chunks <= (run.pp == 1 ? 1 : run.layers / run.pp); ++chunks) {
      if (run.layers % (run.pp * chunks) != 0) continue;
      for (const auto checkpointing : {Checkpointing::kNone, Checkpointing::kSelective}) {
        Candidate c{.pp = run.pp, .dp_shard = 48, .tp = run.tp, .zero_stage = 1, .chunks = chunks};
        c.schedule = run.pp == 1 ? Schedule::kNone : chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
        c.micro_batch = micro, c.microbatches = samples / micro;
        c.sequence_parallel = run.tp > 1, c.checkpointing = checkpointing;
        if (!why_not(question.model, c).empty()) continue;
        const auto plan = evaluate(question, c);
        if (plan.memory.peak < usable_memory(question.cluster) && plan.mfu > best.mfu) best = plan;
      }
    }
  }
  return best;
}

TEST(Published, MegatronCoreOnH100IsWithinTenPoints) {
  for (const auto& run : megatron_core_2024()) {
    auto model = model_shape("gpt3-175b");
    model.layers = run.layers, model.width = run.width, model.heads = model.kv_heads = run.heads;
    model.head_width = run.width / run.heads, model.mlp_width = 4 * run.width;
    model.vocabulary = 131072, model.tied_head = false, model.sequence = model.positions = 4096;
    EXPECT_NEAR(model.parameters() / 1e9, run.parameters, 0.025 * run.parameters + 0.1);
    const PlanQuestion question{.model = model, .cluster = cluster_of("h100", run.gpus), .software = megatron_core()};
    // They count all pairs of causal attention.
    const double mfu = 100 * best_of(question, run).mfu * model.model_flops(true) / model.model_flops(false);
    // The smallest, without tp, is the one that we take for too fast.
    EXPECT_NEAR(mfu, run.tflops / 9.894, run.tp == 1 ? 13 : 10) << run.parameters;
  }
}

TEST(Published, LlamaOf405BIsWithinFourPointsAndInOrder) {
  double before = 1;
  for (const auto& run : llama_3_2024()) {
    // The first and the last stage have a layer less, in place of which they have embedding and head.
    auto model = model_shape("llama-3-405b", run.sequence);
    const double flops = model.model_flops();
    model.layers += 2;
    const PlanQuestion question{.model = model, .cluster = cluster_of("h100", run.gpus)};
    const Candidate candidate{.pp = 16,
                              .dp_shard = run.dp,
                              .cp = run.cp,
                              .tp = 8,
                              .zero_stage = 2,
                              .schedule = Schedule::kInterleaved,
                              .chunks = 8,
                              .microbatches = (int64_t{1} << 24) / run.sequence / run.dp,
                              .sequence_parallel = true};
    const double mfu = evaluate(question, candidate).mfu * flops / model.model_flops();
    if (std::getenv("LEVIN_SHOW_PLANS"))
      std::printf("llama-3-405b on %ld, as it ran: %.1f, published %.0f\n", static_cast<long>(run.gpus), 100 * mfu,
                  run.mfu);
    EXPECT_NEAR(100 * mfu, run.mfu, 4) << run.gpus << " " << run.sequence;
    EXPECT_LT(mfu, before);
    before = mfu;
  }
}

TEST(Published, SearchPlansLlamaOf405BAsItWasTrained) {
  // 126 layers do not divide by 16 stages; 43 and 41 % were published for tp 8 x pp 16.
  for (const auto& run : llama_3_2024()) {
    if (run.sequence != 8192) continue;
    const auto best = search({.model = model_shape("llama-3-405b", run.sequence),
                              .cluster = cluster_of("h100", run.gpus),
                              .tokens_per_batch = int64_t{1} << 24})
                          .best.front();
    if (std::getenv("LEVIN_SHOW_PLANS"))
      std::printf("llama-3-405b on %ld: %.1f, published %.0f; tp %ld pp %ld chunks %ld\n", static_cast<long>(run.gpus),
                  100 * best.mfu, run.mfu, static_cast<long>(best.candidate.tp), static_cast<long>(best.candidate.pp),
                  static_cast<long>(best.candidate.chunks));
    EXPECT_NEAR(100 * best.mfu, run.mfu, 5) << run.gpus;
    EXPECT_GT(best.candidate.pp, 1);
    EXPECT_LE(best.candidate.tp, 8);
  }
}

TEST(Published, TodaysBestPlansAreFasterThanTheRunsOf2021ByWhatTheSoftwareOfThenLacked) {
  // docs/parallelism.md has these rows: published, the same run by our model, the best plan of today's software.
  for (const auto& run : narayanan_2021()) {
    const auto then = question_of(run);
    auto today = then;
    today.software = {};
    today.tokens_per_batch = run.batch * then.model.sequence;
    const auto best = search(today).best.front();
    const double published = 100 * run.tflops * 1e12 / kPeak;
    const double same = 100 * evaluate(then, candidate_of(run)).hfu;
    if (std::getenv("LEVIN_SHOW_PLANS"))
      std::printf("| %s on %ld | %.0f | %.0f | %.0f |\n", run.model.c_str(), static_cast<long>(run.gpus), published,
                  same, 100 * best.mfu);
    EXPECT_NEAR(same, published, 4) << run.model;
    EXPECT_GT(100 * best.mfu, published) << run.model;
    // 72 % were published with flash attention (below); what is planned above that is optimistic.
    EXPECT_LT(100 * best.mfu, 75) << run.model;
  }
}

TEST(Published, FlashAttentionOnA100IsWithinFivePoints) {
  // Dao 2023 (arXiv:2307.08691): up to 225 TFLOP/s per A100, 72 % of the peak, counting all pairs; 2.7B at 8192 tokens.
  const PlanQuestion question{.model = model_shape("gpt3-2.7b", 8192), .cluster = cluster_of("a100", 8)};
  const auto best = search(question).best.front();
  const double all = question.model.model_flops(true) / question.model.model_flops(false);
  if (std::getenv("LEVIN_SHOW_PLANS")) std::printf("gpt3-2.7b at 8192: %.1f, published 72\n", 100 * best.mfu * all);
  EXPECT_NEAR(100 * best.mfu * all, 72, 5);
}

Candidate candidate_of(const PublishedExperts& run) {
  Candidate c{.pp = run.pp, .tp = run.tp, .ep = run.ep, .zero_stage = 1, .chunks = run.chunks};
  c.dp_shard = run.gpus / run.tp / run.pp;
  c.microbatches = run.batch / c.dp_shard;
  c.schedule = run.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  c.sequence_parallel = run.tp > 1;
  c.checkpointing = run.checkpointing;
  return c;
}

TEST(Published, MixturesOfExpertsAreWithinFivePoints) {
  double before = 100;
  for (const auto& run : megatron_core_experts()) {
    auto model = model_shape(run.model, 4096);
    const double flops = model.model_flops(true);
    // 94 layers in 96 places: embedding and head take those of one each.
    if (model.layers % run.pp != 0) model.layers += run.pp - model.layers % run.pp;
    const PlanQuestion question{
        .model = model, .cluster = cluster_of("h100", run.gpus), .software = megatron_core_fused()};
    const auto plan = evaluate(question, candidate_of(run));
    const double mfu = 100 * plan.mfu * flops / model.model_flops(false);
    if (std::getenv("LEVIN_SHOW_PLANS")) {
      std::printf("%s: %.1f, published %.1f;", run.model.c_str(), mfu, run.tflops / 9.894);
      for (const auto& [part, seconds] : plan.cost.parts()) std::printf(" %s %.3f", part.c_str(), seconds);
      std::printf(" s; peak %.1f GB\n", plan.memory.peak / 1e9);
    }
    EXPECT_NEAR(mfu, run.tflops / 9.894, 5) << run.model;
    // Of eight experts a token a rank of theirs keeps the rows of its own part of the tokens; ours has those of all.
    if (model.experts_per_token < 8) {
      EXPECT_LT(plan.memory.peak, usable_memory(question.cluster)) << run.model;
    }
    // The more and the smaller the experts, the lower.
    EXPECT_LE(mfu, before) << run.model;
    before = mfu;
  }
}

TEST(Published, SpreadExpertsBeatSplitOnes) {
  // The same README: ep 8 is better than ep 4 x tp 2 for 8x7B; both stay within a node.
  const PlanQuestion question{
      .model = model_shape("mixtral-8x7b"), .cluster = cluster_of("h100", 64), .software = megatron_core_fused()};
  const auto run = megatron_core_experts().front();
  auto split = run;
  split.ep = 4, split.tp = 2;
  EXPECT_LT(evaluate(question, candidate_of(run)).cost.seconds(),
            evaluate(question, candidate_of(split)).cost.seconds());
}

TEST(Published, SearchFindsTheMeshOfMixtral) {
  const auto run = megatron_core_experts().front();
  const auto best = search({.model = model_shape(run.model),
                            .cluster = cluster_of("h100", run.gpus),
                            .tokens_per_batch = run.batch * 4096})
                        .best.front();
  EXPECT_EQ(std::tuple(best.candidate.tp, best.candidate.pp, best.candidate.ep), std::tuple(run.tp, run.pp, run.ep));
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
