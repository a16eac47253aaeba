// A Trainer whose ranks have the stages of a model: the same metrics on every rank, those of one process.
#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/data/loader.h"
#include "levin/models/decoder.h"
#include "levin/optim/adam.h"
#include "levin/strategies/options.h"
#include "levin/testing/process.h"
#include "levin/testing/ranks.h"
#include "levin/testing/temporary_folder.h"
#include "levin/trainer/metric_log.h"
#include "levin/trainer/trainer.h"

namespace levin {
namespace {

struct Language : TrainModuleOf<Batch> {
  Language() {
    torch::manual_seed(3);
    net = register_module(
        "net", models::Decoder(models::DecoderOptions{
                   .vocab_size = 40, .max_positions = 8, .num_layers = 4, .num_heads = 2, .hidden_dim = 16}));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto loss = net(batch["tokens"], batch["targets"]);
    log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    log("rows", static_cast<double>(batch["tokens"].size(0)), {.reduce_fx = "sum"});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    log("val_loss", net(batch["tokens"], batch["targets"]));
    return {};
  }
  Optimizers configure_optimizers() override { return optim::AdamW(parameters(), {.lr = 1e-2}); }

  models::Decoder net = nullptr;
};

std::vector<Batch> batches(int64_t first, int count) {
  std::vector<Batch> all;
  for (int i = 0; i < count; ++i) {
    torch::manual_seed(first + i);
    const auto tokens = torch::randint(0, 40, {8, 6}, torch::kLong);
    all.push_back({{"tokens", tokens}, {"targets", tokens.roll(-1, 1)}});
  }
  return all;
}

/// Metrics at the end of a fit.
std::map<std::string, double> fitted(const StrategyChoice& strategy, int devices, const std::string& folder) {
  auto module = std::make_shared<Language>();
  Trainer trainer({.accelerator = "cpu",
                   .strategy = strategy,
                   .devices = devices,
                   .max_epochs = 2,
                   .enable_progress_bar = false,
                   .accumulate_grad_batches = 2,
                   .gradient_clip_val = 0.5,
                   .default_root_dir = folder});
  trainer.fit(*module, batches(10, 4), batches(90, 2));
  std::map<std::string, double> values;
  for (const auto& [name, value] : trainer.callback_metrics()) values[name] = detail::metric_number(value);
  return values;
}

TEST(TrainerPipeline, MetricsAreThoseOfOneProcessOnEveryRank) {
  const testing::TemporaryFolder root;
  const auto port = std::to_string(testing::free_port());
  testing::run_ranks(2, [&](Collective& group) {
    const auto rank = std::to_string(group.rank());
    // Not before the ranks: threads that computed do not live on in them.
    const auto expected = fitted("single_device", 1, (root / ("one" + rank)).string());
    ASSERT_TRUE(expected.contains("val_loss"));
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    ::setenv("WORLD_SIZE", "2", 1);
    ::setenv("RANK", rank.c_str(), 1);
    ::setenv("LOCAL_RANK", rank.c_str(), 1);
    const auto ours = fitted(PipelineOptions{.microbatches = 4}, 2, (root / "two").string());
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(ours.contains(name)) << name;
      EXPECT_NEAR(ours.at(name), value, 1e-4) << name;
    }
  });
}

}  // namespace
}  // namespace levin
