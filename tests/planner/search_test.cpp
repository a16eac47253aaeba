// Shapes, the search and what it says.
#include "levin/planner/search.h"

#include <array>
#include <chrono>
#include <fstream>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/planner/explain.h"
#include "levin/planner/picture.h"
#include "levin/strategies/fsdp.h"
#include "levin/strategies/model_parallel.h"
#include "levin/strategies/pipeline/simulation.h"
#include "levin/testing/temporary_folder.h"
#include "tests/planner/published.h"

namespace levin::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelShapes, HaveThePublishedParameters) {
  const std::vector<std::pair<const char*, double>> published{
      {"megatron-1.7b", 1.7},   {"megatron-3.6b", 3.6},   {"megatron-7.5b", 7.5},   {"megatron-18b", 18.4},
      {"megatron-39b", 39.1},   {"megatron-76b", 76.1},   {"megatron-145b", 145.6}, {"megatron-310b", 310.1},
      {"megatron-530b", 529.6}, {"megatron-1t", 1008.0},  {"gpt3-175b", 174.6},     {"llama-2-7b", 6.74},
      {"llama-2-70b", 68.98},   {"llama-3-8b", 8.03},     {"llama-3-70b", 70.55},   {"llama-3-405b", 405.85},
      {"mixtral-8x7b", 46.70},  {"mixtral-8x22b", 140.6}, {"qwen3-30b-a3b", 30.5},  {"qwen3-235b-a22b", 235.1}};
  for (const auto& [name, billions] : published)
    EXPECT_NEAR(model_shape(name).parameters() / 1e9, billions, std::max(0.05, 0.001 * billions)) << name;
}

TEST(ModelShapes, OfAFolderAreThoseOfItsConfig) {
  levin::testing::TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    "tie_word_embeddings": false, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";
  auto shape = model_shape(folder.path().string());
  EXPECT_EQ(shape.parameters(), model_shape("llama-2-7b").parameters());
  EXPECT_EQ(shape.model_flops(), model_shape("llama-2-7b").model_flops());
  EXPECT_EQ(model_shape(folder.path().string(), 8192).sequence, 8192);
}

TEST(ModelShapes, CountOperationsAsTheFormulaOfTheRunsDoes) {
  // 72 B s l h^2 (1 + s / 6h + V / 12lh): Narayanan et al. 2021, without the recomputed forward.
  const auto m = model_shape("gpt3-175b");
  const double s = 2048, l = 96, h = 12288, v = 51200;
  EXPECT_NEAR(m.model_flops() / (72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h))), 1, 1e-6);
}

TEST(Search, FindsPlansThatFitAndUseAllGpus) {
  const PlanQuestion question{.model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 1024), .top = 8};
  const auto plans = search(question);
  ASSERT_EQ(plans.best.size(), 8u);
  std::set<std::tuple<int64_t, int64_t, int64_t, int64_t>> meshes;
  for (size_t i = 0; i < plans.best.size(); ++i) {
    const auto& plan = plans.best[i];
    const auto& c = plan.candidate;
    EXPECT_EQ(c.gpus(), 1024);
    EXPECT_EQ(c.batch() * 2048, plans.tokens_per_batch);
    EXPECT_LE(plan.memory.peak, usable_memory(question.cluster));
    EXPECT_EQ(why_not(question.model, c), "");
    EXPECT_TRUE(meshes.insert({c.pp, c.cp, c.tp, c.ep}).second);
    if (i > 0) {
      EXPECT_LE(plan.tokens_per_second, plans.best[i - 1].tokens_per_second * 1.006);
    }
    // What the search says is what evaluating says.
    EXPECT_NEAR(evaluate(question, c).cost.seconds() / plan.cost.seconds(), 1, 1e-9);
  }
  // 175B parameters over A100: tensor parallelism stays in a node, and nobody computes below 40 %.
  EXPECT_LE(plans.best[0].candidate.tp, 8);
  EXPECT_GT(plans.best[0].mfu, 0.4);
  EXPECT_LT(plans.best[0].mfu, 0.75);
}

TEST(Search, PlansATrillionParametersOnTenThousandGpusInSeconds) {
  const auto start = std::chrono::steady_clock::now();
  const auto plans = search({.model = model_shape("megatron-1t"), .cluster = cluster_of("h100", 10'000)});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 5);
  EXPECT_EQ(plans.best.front().candidate.gpus(), 10'000);
}

TEST(Search, WhatWasChosenByHandIsNearTheBest) {
  // Over all meshes that Megatron-LM could run then, the published ones are within 20 % of the best of the model.
  for (const auto& run : testing::narayanan_2021()) {
    const auto question = testing::question_of(run);
    const double theirs = evaluate(question, testing::candidate_of(run)).cost.seconds();
    double best = theirs;
    for (const int64_t tp : {1, 2, 4, 8, 16}) {
      for (const int64_t pp : {1, 2, 4, 5, 7, 8, 12, 16, 32, 35, 64}) {
        for (const int64_t micro : {1, 2, 4, 8, 16}) {
          for (const int64_t chunks : {1, 2, 3}) {
            if (run.gpus % (tp * pp) != 0 || question.model.layers % (pp * chunks) != 0 || (pp == 1 && chunks > 1))
              continue;
            if (run.batch % (run.gpus / tp / pp * micro) != 0) continue;
            const auto candidate = testing::candidate_of({run.model, run.gpus, tp, pp, chunks, micro, run.batch});
            if (!why_not(question.model, candidate).empty()) continue;
            const auto plan = evaluate(question, candidate);
            if (plan.memory.peak <= usable_memory(question.cluster)) best = std::min(best, plan.cost.seconds());
          }
        }
      }
    }
    EXPECT_LT(theirs / best, 1.2) << run.model;
  }
}

TEST(Search, AdaptsToWhatIsAskedFor) {
  // A model that fits everywhere is not split.
  const auto small = search({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 8)}).best.front().candidate;
  EXPECT_EQ(small.pp * small.tp * small.cp, 1);
  EXPECT_EQ(small.checkpointing, Checkpointing::kNone);
  // A long sequence is shared.
  const auto long_texts = search({.model = model_shape("llama-3-8b", 1 << 18), .cluster = cluster_of("h100", 64)});
  EXPECT_GT(long_texts.best.front().candidate.cp, 1);
  // Experts are spread.
  const auto experts = search({.model = model_shape("mixtral-8x22b"), .cluster = cluster_of("h100", 256)});
  EXPECT_GT(experts.best.front().candidate.ep, 1);
  // Without room for state: offload.
  const auto tight = search({.model = model_shape("gpt3-13b"), .cluster = cluster_of("h100", 2, 24e9)});
  EXPECT_TRUE(tight.best.front().candidate.offload);
  EXPECT_GT(tight.best.front().memory.host, 0);
  // A slow network between nodes is never faster.
  auto slow = cluster_of("h100", 256);
  slow.between.bandwidth = 3e9;
  const auto model = model_shape("llama-3-70b");
  EXPECT_LT(search({.model = model, .cluster = slow}).best.front().tokens_per_second,
            search({.model = model, .cluster = cluster_of("h100", 256)}).best.front().tokens_per_second);
}

TEST(Search, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { model_shape("gpt3-157b"); }), HasSubstr("did you mean \"gpt3-175b\"?"));
  EXPECT_THAT(error_of([] { cluster_of("h10", 8); }), HasSubstr("did you mean \"h100\"?"));
  EXPECT_THAT(error_of([] { cluster_of("h100", 0); }), HasSubstr("--gpus 0 is not allowed (1 to 1048576)"));
  EXPECT_THAT(error_of([] { cluster_of("h100", 12); }),
              HasSubstr("--gpus 12 are no whole nodes of 8; take 8 or 16, or say --gpus-per-node"));
  EXPECT_EQ(cluster_of("h100", 4).gpus_per_node, 4);
  EXPECT_THAT(error_of([] { link_bandwidth("fast"); }), HasSubstr("link \"fast\" is no bandwidth"));
  EXPECT_EQ(link_bandwidth("400Gb"), 50e9);
  EXPECT_EQ(link_bandwidth("25GB"), 25e9);
  const auto too_small =
      error_of([] { search({.model = model_shape("gpt3-175b"), .cluster = cluster_of("h100", 4, 4e9)}); });
  EXPECT_THAT(too_small, HasSubstr("gpt3-175b (175B parameters) does not fit on 4 GPUs of 4.00 GB: the leanest of"));
  EXPECT_THAT(too_small, HasSubstr("full checkpointing"));
  EXPECT_THAT(too_small, HasSubstr("offload"));
  EXPECT_EQ(too_small.find('\n'), std::string::npos);
  EXPECT_THAT(error_of([] { search({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 8, 1e9)}); }),
              HasSubstr("--memory 1.00 GB is not enough for any plan"));
  EXPECT_THAT(error_of([] {
                search({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 8), .tokens_per_batch = 1023});
              }),
              HasSubstr("--tokens-per-batch 1023 is less than one sample of 1024 tokens"));
  for (const auto* precision : {"64-true", "fp8-mixed"})
    EXPECT_THAT(error_of([&] {
                  search({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 8), .precision = precision});
                }),
                HasSubstr("is not planned; take bf16-mixed"));
  EXPECT_THAT(error_of([] { model_shape("/nowhere/model"); }),
              HasSubstr("\"/nowhere/model\": there is no such folder"));
  EXPECT_THAT(
      error_of([] { evaluate({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 8)}, {.dp_replicate = 4}); }),
      HasSubstr("is 4 GPUs, not 8"));
}

TEST(Cost, BubbleIsThatOfTheSimulator) {
  const PlanQuestion question{.model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 64)};
  const CostModel cost(question);
  const MemoryModel memory(question.model, question.software, question.precision);
  for (const auto& [schedule, chunks] :
       {std::pair(Schedule::kGPipe, 1), std::pair(Schedule::k1F1B, 1), std::pair(Schedule::kInterleaved, 3),
        std::pair(Schedule::kZB1P, 1), std::pair(Schedule::kZBV, 2)}) {
    const Candidate c{
        .pp = 8, .tp = 8, .schedule = schedule, .chunks = chunks, .microbatches = 32, .sequence_parallel = true};
    const auto times = cost.layer(c);
    const double layers = 12.0 / static_cast<double>(chunks);
    const auto played = simulate(make_pipeline_schedule(std::string(to_string(schedule)), 8, 32, chunks),
                                 {.forward = layers * (times.forward + times.tp_forward),
                                  .backward_input = layers * (times.backward_inputs + times.tp_backward),
                                  .backward_weight = layers * times.backward_weights});
    const auto ours = cost.of(c, memory);
    // Of the step; the head and the sums of gradients are not played.
    EXPECT_NEAR(ours.bubble / ours.seconds(), played.bubble_fraction(), 0.02) << to_string(schedule);
  }
}

TEST(Cost, PipelinesAndRingsGoAtThePaceOfTheirSlowestHop) {
  auto question = PlanQuestion{.model = model_shape("llama-3-70b", 8192), .cluster = cluster_of("h100", 64)};
  // Four ranks a stage: every second boundary leaves the node.
  const Candidate stages{.pp = 16,
                         .cp = 2,
                         .tp = 2,
                         .schedule = Schedule::kInterleaved,
                         .chunks = 5,
                         .microbatches = 512,
                         .sequence_parallel = true};
  const double fast = evaluate(question, stages).cost.pp;
  // The activation of a rank's tokens in 16 bits, forward and backward.
  const double bytes = 2.0 * 4096 * 8192 / 2, messages = 2 * (512 * 5 + 15);
  EXPECT_NEAR(fast, messages * (bytes / (50e9 * 0.55) + 12e-6), 1e-3 * fast);
  question.cluster.between.bandwidth = link_bandwidth("1Gb");
  EXPECT_NEAR(evaluate(question, stages).cost.pp, messages * (bytes / (0.125e9 * 0.55) + 12e-6), 1);
  // A ring over eight nodes, and one within a node.
  question.model = model_shape("llama-3-8b", 131072);
  const Candidate ring{.dp_shard = 1, .cp = 16, .tp = 4, .zero_stage = 3, .sequence_parallel = true},
      inside{.dp_shard = 32, .cp = 2, .tp = 1, .zero_stage = 3};
  EXPECT_GT(evaluate(question, ring).cost.cp, 10);
  const double near = evaluate(question, inside).cost.cp;
  question.cluster.between.bandwidth = link_bandwidth("400Gb");
  EXPECT_LT(evaluate(question, ring).cost.cp, 10);
  EXPECT_EQ(evaluate(question, inside).cost.cp, near);
  // The plan follows: with a slow link between nodes the best is slower, and another.
  const auto best = [](const char* link) {
    PlanQuestion asked{.model = model_shape("llama-3-70b", 8192), .cluster = cluster_of("h100", 64)};
    asked.cluster.between.bandwidth = link_bandwidth(link);
    return search(asked).best.front().cost.seconds();
  };
  EXPECT_GT(best("1Gb"), 1.5 * best("400Gb"));
  EXPECT_GT(best("0.01Gb"), 2 * best("1Gb"));
}

TEST(Cost, GroupsAcrossTheEndOfANodeUseItsNetwork) {
  // Six neighbours: the second such group has two ranks in the first node and four in the next.
  const CostModel cost({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 24)});
  EXPECT_GT(cost.all_reduce_seconds(1e9, 6, 1), 2 * cost.all_reduce_seconds(1e9, 4, 1));
  EXPECT_GT(cost.send_seconds(1e9, 6, 1), 5 * cost.send_seconds(1e9, 4, 1));
  EXPECT_GT(cost.all_to_all_seconds(1e9, 6, 1), 2 * cost.all_to_all_seconds(1e9, 4, 1));
  // In a single node there is no end.
  const CostModel alone({.model = model_shape("gpt2"), .cluster = cluster_of("h100", 6)});
  EXPECT_LT(alone.send_seconds(1e9, 6, 1), 1.01 * alone.send_seconds(1e9, 4, 1));
}

TEST(Cost, UnevenStagesAreThoseOfTheSimulator) {
  // 126 layers over 16 ranks: some chunks have a layer more.
  const PlanQuestion question{.model = model_shape("llama-3-405b", 8192), .cluster = cluster_of("h100", 16 * 8)};
  const CostModel cost(question);
  const MemoryModel memory(question.model, question.software, question.precision);
  for (const auto& [schedule, chunks] :
       {std::pair(Schedule::kInterleaved, 2), std::pair(Schedule::kInterleaved, 4),
        std::pair(Schedule::kInterleaved, 7), std::pair(Schedule::k1F1B, 1), std::pair(Schedule::kZBV, 2)}) {
    const Candidate c{
        .pp = 16, .tp = 8, .schedule = schedule, .chunks = chunks, .microbatches = 64, .sequence_parallel = true};
    ASSERT_EQ(why_not(question.model, c), "");
    const auto times = cost.layer(c);
    const int64_t pieces = 16 * chunks;
    std::vector<double> layers;
    for (int64_t piece = 0; piece < pieces; ++piece)
      layers.push_back(static_cast<double>(126 / pieces + (piece < 126 % pieces)));
    const auto played = simulate(make_pipeline_schedule(std::string(to_string(schedule)), 16, 64, chunks),
                                 {.forward = times.forward + times.tp_forward,
                                  .backward_input = times.backward_inputs + times.tp_backward,
                                  .backward_weight = times.backward_weights,
                                  .stage_factors = layers});
    // Without the head, whose time the last stages have in place of layers, and without what is no stage's.
    const double m = 64, of_layers = static_cast<double>(memory.most_layers(c));
    const auto ours = cost.of(c, memory);
    const double fill = ours.bubble / (ours.compute + ours.tp);
    const double all = m * of_layers * (times.forward + times.tp_forward + times.backward() + times.tp_backward);
    EXPECT_NEAR(all * (1 + fill) / played.window, 1, 0.04) << to_string(schedule) << " " << chunks;
  }
}

TEST(Explain, SaysWhyAndHow) {
  const PlanQuestion question{.model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 1024)};
  const auto plans = search(question);
  const auto text = plans_text(question, plans);
  EXPECT_THAT(text, HasSubstr("gpt3-175b: 175B parameters, 96 layers, width 12288, 2048 tokens a sample\n"));
  EXPECT_THAT(text, HasSubstr("1024 x a100 of 80.0 GB, 8 a node; bf16-mixed; 4.19M tokens a step"));
  EXPECT_THAT(text, HasSubstr("computing\n"));
  EXPECT_THAT(text, HasSubstr("With one thing changed:\n"));
  EXPECT_THAT(text, HasSubstr("does not fit: "));
  EXPECT_THAT(text, HasSubstr("levin::Fabric fabric({.strategy = "));
  const auto& first = plans.best.front();
  double share = 0;
  for (const auto& [name, seconds] : first.cost.parts()) share += seconds / first.cost.seconds();
  EXPECT_NEAR(share, 1, 1e-9);
  // The neighbours are worse: else the search had found them.
  for (const auto& other : alternatives(question, first))
    EXPECT_TRUE(!other.fits || other.slower > -0.006) << other.change << " " << other.slower;
  const auto json = nlohmann::json::parse(plans_json(question, plans));
  EXPECT_EQ(json["plans"].size(), plans.best.size());
  EXPECT_EQ(json["plans"][0]["pp"], first.candidate.pp);
  EXPECT_EQ(json["plans"][0]["strategy"], strategy_name(first.candidate));
  EXPECT_NEAR(json["plans"][0]["memory"]["peak"].get<double>(), first.memory.peak, 1);
}

TEST(Explain, ConfigurationHasTheFieldsOfTheOptions) {
  const PlanQuestion question{.model = model_shape("gpt3-175b"), .cluster = cluster_of("h100", 64)};
  const auto text = [&](const Candidate& candidate) { return configuration_text(question, {.candidate = candidate}); };
  EXPECT_THAT(text({.dp_shard = 8, .tp = 8, .zero_stage = 3, .sequence_parallel = true}),
              HasSubstr("levin::ModelParallelOptions{.mesh = {.dp_shard = 8, .tp = 8}, .sequence_parallel = true}"));
  EXPECT_THAT(
      text({.pp = 8, .dp_replicate = 8, .schedule = Schedule::kInterleaved, .chunks = 2, .microbatches = 16}),
      HasSubstr(
          "levin::ModelParallelOptions{.mesh = {.pp = 8, .dp_replicate = 8, .dp_shard = 1}, .pipeline = {.schedule = "
          "\"interleaved\", .chunks = 2, .microbatches = 16}}"));
  EXPECT_THAT(text({.dp_shard = 64, .zero_stage = 3, .checkpointing = Checkpointing::kFull}),
              HasSubstr("levin::FsdpOptions{.activation_checkpointing_policy = levin::policy::repeated()}"));
  EXPECT_THAT(
      text({.dp_replicate = 64, .micro_batch = 2, .microbatches = 4}),
      HasSubstr("--trainer.devices=8 --trainer.num_nodes=8 --trainer.precision=bf16-mixed --trainer.strategy=ddp "
                "--trainer.accumulate_grad_batches=4 --data.batch_size=2"));
  EXPECT_THAT(text({.dp_shard = 8, .tp = 8, .zero_stage = 3, .sequence_parallel = true}),
              HasSubstr("--trainer.strategy=model_parallel:dp_shard=8,tp=8,sequence_parallel "));
  // What a command line cannot say is told.
  EXPECT_THAT(text({.dp_replicate = 64, .checkpointing = Checkpointing::kFull}), HasSubstr("without it memory is not"));
  EXPECT_THAT(text({.dp_shard = 64, .zero_stage = 3, .checkpointing = Checkpointing::kFull}),
              Not(HasSubstr("without it memory is not")));
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

/// Options, and the words that they were compiled from.
#define LEVIN_WRITTEN(...)                    \
  std::pair<StrategyChoice, std::string> {    \
    __VA_ARGS__, without_spaces(#__VA_ARGS__) \
  }

TEST(Explain, ConfigurationCompiles) {
  const auto pipeline = LEVIN_WRITTEN(levin::ModelParallelOptions{
      .mesh = {.pp = 8, .dp_replicate = 2, .dp_shard = 4, .cp = 2, .tp = 4},
      .sequence_parallel = true,
      .fsdp = {.sharding_strategy = "grad_op", .activation_checkpointing_policy = levin::policy::repeated()},
      .pipeline = {.schedule = "interleaved", .chunks = 2, .microbatches = 16}});
  EXPECT_EQ(without_spaces(strategy_text({.pp = 8,
                                          .dp_replicate = 2,
                                          .dp_shard = 4,
                                          .cp = 2,
                                          .tp = 4,
                                          .zero_stage = 2,
                                          .schedule = Schedule::kInterleaved,
                                          .chunks = 2,
                                          .microbatches = 16,
                                          .sequence_parallel = true,
                                          .checkpointing = Checkpointing::kFull})),
            pipeline.second);
  const auto experts = LEVIN_WRITTEN(levin::ModelParallelOptions{.mesh = {.dp_shard = 64, .ep = 8}});
  EXPECT_EQ(without_spaces(strategy_text({.dp_shard = 64, .ep = 8, .zero_stage = 3})), experts.second);
  const auto offloaded = LEVIN_WRITTEN(
      levin::FsdpOptions{.cpu_offload = true, .activation_checkpointing_policy = levin::policy::repeated()});
  EXPECT_EQ(without_spaces(strategy_text(
                {.dp_shard = 8, .zero_stage = 3, .checkpointing = Checkpointing::kFull, .offload = true})),
            offloaded.second);
}

/// What a name makes is what the plan says.
void expect_named(const Candidate& c) {
  const auto name = strategy_name(c);
  const auto strategy = make_strategy(name, static_cast<int>(c.gpus()));
  const auto* mesh = dynamic_cast<const ModelParallelStrategy*>(strategy.get());
  if (!mesh) {
    EXPECT_EQ(c.pp * c.cp * c.tp * c.ep, 1) << name;
    EXPECT_TRUE(name.starts_with(strategy->name())) << name;
    return;
  }
  const auto& o = mesh->options();
  const auto sizes = o.mesh.over(static_cast<int>(c.gpus()));
  EXPECT_EQ((std::array<int64_t, 6>{sizes.pp, sizes.dp_replicate, sizes.dp_shard, sizes.cp, sizes.tp, sizes.ep}),
            (std::array<int64_t, 6>{c.pp, c.dp_replicate, c.dp_shard, c.cp, c.tp, c.ep}))
      << name;
  EXPECT_EQ(o.sequence_parallel, c.sequence_parallel) << name;
  EXPECT_EQ(o.fsdp.sharding_strategy, c.zero_stage == 2 ? "grad_op" : "full") << name;
  EXPECT_EQ(o.fsdp.cpu_offload, c.offload) << name;
  EXPECT_EQ(o.fsdp.activation_checkpointing_policy.has_value(), c.checkpointing == Checkpointing::kFull) << name;
  if (c.pp == 1) return;
  EXPECT_EQ(o.pipeline.schedule, to_string(c.schedule)) << name;
  EXPECT_EQ(o.pipeline.microbatches, c.microbatches) << name;
  if (c.schedule == Schedule::kInterleaved) {
    EXPECT_EQ(o.pipeline.chunks, c.chunks) << name;
  }
}

TEST(Explain, NamesMakeTheStrategyOfThePlan) {
  struct Case {
    const char *model, *gpu;
    int64_t gpus, sequence;
    double memory;
  };
  for (const auto& [model, gpu, gpus, sequence, memory] :
       {Case{"gpt2", "h200", 1, 0, 0}, Case{"gpt2", "h100", 8, 0, 0}, Case{"gpt3-13b", "h100", 2, 0, 24e9},
        Case{"gpt3-175b", "a100", 1024, 0, 0}, Case{"llama-3-8b", "h100", 64, 1 << 18, 0},
        Case{"llama-3-70b", "h100", 64, 0, 0}, Case{"mixtral-8x22b", "h100", 256, 0, 0},
        Case{"megatron-1t", "a100", 3072, 0, 0}, Case{"vit_h_14", "l4", 16, 0, 0}}) {
    const PlanQuestion question{
        .model = model_shape(model, sequence), .cluster = cluster_of(gpu, gpus, memory), .top = 20};
    for (const auto& plan : search(question).best) expect_named(plan.candidate);
  }
  EXPECT_THAT(error_of([] { make_strategy("model_parallel:sharding=half"); }),
              HasSubstr("\"sharding=half\": sharding may be \"full\" or \"grad_op\""));
  EXPECT_THAT(error_of([] { make_strategy("model_parallel:checkpointing=selective"); }),
              HasSubstr("checkpointing may be \"full\""));
  EXPECT_THAT(error_of([] { make_strategy("model_parallel:ofload"); }), HasSubstr("did you mean \"offload\"?"));
}

TEST(Explain, DrawsEverySchedule) {
  const PlanQuestion question{.model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 1024)};
  for (const auto& [schedule, chunks] :
       {std::pair(Schedule::kGPipe, 1), std::pair(Schedule::k1F1B, 1), std::pair(Schedule::kInterleaved, 3),
        std::pair(Schedule::kZB1P, 1), std::pair(Schedule::kZBV, 2)}) {
    const auto plan = evaluate(
        question, {.pp = 16, .dp_replicate = 8, .tp = 8, .schedule = schedule, .chunks = chunks, .microbatches = 128});
    const auto svg = to_svg(picture_of(question, plan));
    EXPECT_THAT(svg, HasSubstr("gpt3-175b on 1024 x a100"));
    EXPECT_THAT(svg, HasSubstr("8 of 16 stages are drawn"));
    EXPECT_LT(svg.size(), 400'000u);
  }
  const PlanQuestion alone{.model = model_shape("gpt2"), .cluster = cluster_of("h200", 1)};
  EXPECT_THAT(to_svg(picture_of(alone, evaluate(alone, {.micro_batch = 16}))), HasSubstr("gpt2 on 1 x h200"));
}

}  // namespace
}  // namespace levin::planner
