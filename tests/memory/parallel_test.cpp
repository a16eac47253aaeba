// What a training step takes on each rank of a model that is spread over ranks, against what was predicted.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/devices/memory_counter.h"
#include "levin/memory/estimate.h"
#include "levin/models/decoder.h"
#include "levin/optim/adam.h"
#include "levin/strategies/options.h"
#include "levin/testing/error_of.h"
#include "tests/strategies/training.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::Trainee;

struct SpreadCase {
  std::string name;
  StrategyChoice choice;
  int world = 2;
  /// Ranks of a pipeline.
  int pp = 1;
  std::string precision = "32-true";
  bool experts = false;
  int64_t batch = 8;
  /// Layers are gathered over ranks.
  bool gathers = false;

  friend void PrintTo(const SpreadCase& c, std::ostream* out) { *out << c.name << " " << c.precision; }
};

models::DecoderOptions options_of(bool experts) {
  models::DecoderOptions options{.vocab_size = 512,
                                 .max_positions = 64,
                                 .num_layers = 4,
                                 .num_heads = 4,
                                 .hidden_dim = 128,
                                 .mlp_dim = 512,
                                 .tied_head = false};
  if (!experts) return options;
  options.norm = "rms", options.bias = false, options.activation = "silu_gated", options.positions = "rotary";
  // As many rows for every expert, whatever the router chooses: an estimate has no values to choose by.
  options.experts = {.count = 4, .per_token = 2, .capacity_factor = 1};
  return options;
}

Tensor tokens_of(const SpreadCase& c, c10::Device device, int64_t seed = 0) {
  if (device.is_meta()) return at::empty({c.batch, 64}, at::TensorOptions(device).dtype(at::kLong));
  torch::manual_seed(seed);
  return torch::randint(0, 512, {c.batch, 64}, at::kLong);
}

/// The greatest peak of the second and third step, on this rank.
int64_t measure(Collective& group, const SpreadCase& c) {
  at::globalContext().setUserEnabledMkldnn(false);  // in a process of its own; it takes scratch in 16 bits
  MemoryCounter counter;
  const auto plan = resolve_precision(c.precision, at::kCPU);
  torch::manual_seed(1);
  auto model = models::decoder(options_of(c.experts));
  Optimizer optimizer(optim::AdamW(model->parameters(), {.lr = 1e-3}));
  Trainee trainee(group, c.choice, *model, at::kCPU, c.precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  const auto tokens = tokens_of(c, at::kCPU, trainee.strategy().data_place().rank);
  int64_t peak = 0;
  for (int step = 0; step < 3; ++step) {
    counter.reset_peak();
    trainee.step(tokens, [&](const Tensor& part) {
      std::optional<Autocast> autocast;
      if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
      return model(part, part);
    });
    optimizer.step();
    optimizer.zero_grad();
    if (step > 0) peak = std::max(peak, counter.peak());
  }
  return peak;
}

MemoryEstimate predict(const SpreadCase& c, int pipeline_rank, const std::string& optimizer = "adamw") {
  return estimate_memory([&] { return models::decoder(options_of(c.experts)); },
                         [](auto& model, const Batch& batch) { return model(batch["x"], batch["x"]); },
                         [](const Tensor& loss, const Batch&) { return loss; }, {{"x", tokens_of(c, at::kMeta)}},
                         {.layout = state_layout(c.choice, c.world),
                          .precision = c.precision,
                          .optimizer = optimizer,
                          .world_size = c.world,
                          .pipeline_rank = pipeline_rank,
                          .device = at::kCPU});
}

class MemoryOfSpreadModels : public ::testing::TestWithParam<SpreadCase> {};

TEST_P(MemoryOfSpreadModels, MatchesPrediction) {
  const auto& c = GetParam();
  const auto results = run_ranks(c.world, [&](Collective& group) { return at::tensor(measure(group, c)); });
  // Each of Gloo's two threads may have a layer in its buffer at the highest moment, or be done before.
  const double layer = (12 * 128 * 128 + 13 * 128) * (c.precision == "32-true" ? 4 : 2);
  for (int rank = 0; rank < c.world; ++rank) {
    const int place = rank / (c.world / c.pp);  // a pipeline is the outer axis
    const auto predicted = static_cast<double>(predict(c, place).total_peak);
    const auto measured = static_cast<double>(results[static_cast<size_t>(rank)].tensor().item<int64_t>());
    if (std::getenv("LEVIN_SHOW_MEMORY"))
      fmt::print("{} {} rank {} of {}: predicted {:.2f} MB, measured {:.2f} MB, {:.4f}\n", c.name, c.precision, rank,
                 c.world, predicted / 1e6, measured / 1e6, predicted / measured);
    EXPECT_LT(measured, predicted * 1.05) << "rank " << rank << ", predicted " << predicted;
    EXPECT_GT(measured + (c.gathers ? 2 * layer : 0), predicted * 0.95)
        << "rank " << rank << ", predicted " << predicted;
  }
}

std::vector<SpreadCase> spread_cases() {
  const auto mesh = [](ParallelSizes sizes, const char* schedule = "1f1b") {
    return ModelParallelOptions{.mesh = sizes, .pipeline = {.schedule = schedule, .microbatches = 4}};
  };
  const auto offloaded = [](ModelParallelOptions options) {
    options.fsdp.cpu_offload = true;
    return options;
  };
  return {
      {.name = "cp2", .choice = ContextParallelOptions{}},
      {.name = "cp2_heads", .choice = ContextParallelOptions{.rotate = ContextRotation::kAllToAll}},
      {.name = "cp2", .choice = ContextParallelOptions{}, .precision = "bf16-mixed", .batch = 2},
      {.name = "shard2_cp2", .choice = mesh({.dp_shard = 2, .cp = 2}), .world = 4, .gathers = true},
      {.name = "gpipe_pp2", .choice = PipelineOptions{.schedule = "gpipe", .microbatches = 4}, .pp = 2},
      {.name = "1f1b_pp2", .choice = PipelineOptions{.microbatches = 4}, .pp = 2},
      {.name = "interleaved_pp2",
       .choice = PipelineOptions{.schedule = "interleaved", .chunks = 2, .microbatches = 4},
       .pp = 2},
      {.name = "copies2_pp2", .choice = PipelineOptions{.size = 2, .microbatches = 4}, .world = 4, .pp = 2},
      {.name = "shard2_pp2", .choice = mesh({.pp = 2, .dp_shard = 2}), .world = 4, .pp = 2, .gathers = true},
      {.name = "tp2_pp2", .choice = mesh({.pp = 2, .tp = 2}), .world = 4, .pp = 2},
      // Parameters are cast on each rank. Without copies gradients are reduced in every backward.
      {.name = "gpipe_cast_pp2", .choice = mesh({.pp = 2}, "gpipe"), .pp = 2, .precision = "bf16-mixed", .batch = 4},
      {.name = "1f1b_cast_pp2", .choice = mesh({.pp = 2}), .pp = 2, .precision = "bf16-mixed", .batch = 4},
      {.name = "copies2_cast_pp2",
       .choice = mesh({.pp = 2, .dp_replicate = 2}),
       .world = 4,
       .pp = 2,
       .precision = "bf16-mixed",
       .batch = 4},
      {.name = "zb1p_cast_pp2", .choice = mesh({.pp = 2}, "zb1p"), .pp = 2, .precision = "bf16-mixed", .batch = 4},
      // Parameters, their gradients and the optimizer's state are in host memory.
      {.name = "offload_pp2", .choice = offloaded(mesh({.pp = 2})), .pp = 2, .batch = 4},
      {.name = "offload_pp2", .choice = offloaded(mesh({.pp = 2})), .pp = 2, .precision = "bf16-mixed", .batch = 4},
      {.name = "offload_gpipe_pp2",
       .choice = offloaded(mesh({.pp = 2}, "gpipe")),
       .pp = 2,
       .precision = "bf16-mixed",
       .batch = 4},
      {.name = "offload_shard2_pp2",
       .choice = offloaded(mesh({.pp = 2, .dp_shard = 2})),
       .world = 4,
       .pp = 2,
       .precision = "bf16-mixed",
       .batch = 4,
       .gathers = true},
      // Gradients of weights are computed apart, for which their layers are gathered again.
      {.name = "zb1p_shard2_pp2",
       .choice = mesh({.pp = 2, .dp_shard = 2}, "zb1p"),
       .world = 4,
       .pp = 2,
       .gathers = true},
      {.name = "zbv_shard2_pp2", .choice = mesh({.pp = 2, .dp_shard = 2}, "zbv"), .world = 4, .pp = 2, .gathers = true},
      {.name = "ep2", .choice = ExpertParallelOptions{}, .experts = true},
      // Experts that one rank has, and experts that are sharded over two.
      {.name = "shard2_ep2", .choice = mesh({.dp_shard = 2, .ep = 2}), .experts = true, .batch = 4, .gathers = true},
      {.name = "shard2_ep2",
       .choice = mesh({.dp_shard = 2, .ep = 2}),
       .precision = "bf16-mixed",
       .experts = true,
       .batch = 1,
       .gathers = true},
      {.name = "shard4_ep2",
       .choice = mesh({.dp_shard = 4, .ep = 2}),
       .world = 4,
       .experts = true,
       .batch = 4,
       .gathers = true},
      {.name = "shard2_tp2_ep2",
       .choice = mesh({.dp_shard = 2, .tp = 2, .ep = 2}),
       .world = 4,
       .experts = true,
       .gathers = true},
      {.name = "shard2_ep2_pp2",
       .choice = mesh({.pp = 2, .dp_shard = 2, .ep = 2}),
       .world = 4,
       .pp = 2,
       .experts = true,
       .gathers = true},
      {.name = "cp2_ep2", .choice = mesh({.dp_shard = 1, .cp = 2, .ep = 2}), .experts = true, .gathers = true},
  };
}

INSTANTIATE_TEST_SUITE_P(Meshes, MemoryOfSpreadModels, ::testing::ValuesIn(spread_cases()), [](const auto& each) {
  auto name = each.param.name + "_" + each.param.precision;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(MemoryOfSpreadModels, IsRefusedWhereItIsNotKnown) {
  const auto line = [](const StrategyChoice& choice, int world, int rank = 0) {
    return error_of([&] { (void)predict({.name = "", .choice = choice, .world = world}, rank); });
  };
  const ModelParallelOptions staged{.mesh = {.pp = 2}, .pipeline = {.microbatches = 4}};
  EXPECT_EQ(line(staged, 2), "no error");
  EXPECT_THAT(line(staged, 2, 2), HasSubstr("pipeline_rank 2 is not one of 2 ranks of a pipeline"));
  EXPECT_THAT(line(ModelParallelOptions{.mesh = {.dp_shard = 4, .ep = 2}}, 4), HasSubstr("the model has no experts"));
  const SpreadCase experts{
      .name = "", .choice = ModelParallelOptions{.mesh = {.dp_shard = 2, .ep = 2}}, .experts = true};
  EXPECT_THAT(error_of([&] { (void)predict(experts, 0, "lamb"); }),
              HasSubstr("each rank has some of the experts (ep); use AdamW or SGD"));
  EXPECT_THAT(line(ExpertParallelOptions{}, 2), HasSubstr("the model has no experts"));
  EXPECT_THAT(line(PipelineOptions{.size = 3}, 4), HasSubstr("pipelines of 3 ranks do not divide 4 ranks"));
  EXPECT_THAT(line(ContextParallelOptions{.size = 3}, 4), HasSubstr("do not divide 4 ranks"));
}

}  // namespace
}  // namespace levin
