// A Trainer whose ranks have parts of layers: random numbers and metrics of what they have together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/words.h"
#include "levin/data/loader.h"
#include "levin/models/decoder.h"
#include "levin/optim/adam.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"
#include "levin/trainer/metric_log.h"
#include "levin/trainer/trainer.h"

namespace levin {
namespace {

struct Dropping : TrainModuleOf<Batch> {
  Dropping() {
    torch::manual_seed(3);
    net = register_module(
        "net",
        models::Decoder(models::DecoderOptions{
            .vocab_size = 40, .max_positions = 8, .num_layers = 2, .num_heads = 2, .hidden_dim = 16, .dropout = 0.2}));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto rows = static_cast<double>(batch["tokens"].size(0));
    for (const auto* fx : {"sum", "mean", "min", "max"})
      log(fx, rows, {.on_step = true, .on_epoch = true, .reduce_fx = fx, .sync_dist = true});
    return net(batch["tokens"], batch["targets"]);
  }
  Optimizers configure_optimizers() override { return optim::AdamW(parameters(), {.lr = 1e-2}); }

  models::Decoder net = nullptr;
};

std::vector<Batch> batches() {
  std::vector<Batch> all;
  for (int i = 0; i < 4; ++i) {
    torch::manual_seed(10 + i);
    const auto tokens = torch::randint(0, 40, {8, 6}, torch::kLong);
    all.push_back({{"tokens", tokens}, {"targets", tokens.roll(-1, 1)}});
  }
  return all;
}

TrainerOptions options_of(const std::string& strategy, int devices, int64_t epochs, const std::string& folder) {
  return {.accelerator = "cpu",
          .strategy = strategy,
          .devices = devices,
          .max_epochs = epochs,
          .enable_checkpointing = false,
          .enable_progress_bar = false,
          .enable_model_summary = false,
          .default_root_dir = folder};
}

/// What every rank has whole.
struct KeepWhole : Callback {
  void on_train_end(TrainerContext& run) override {
    auto* shards = run.fabric().strategy().shards();
    for (const auto& parameter : run.module().named_parameters())
      if (!shards->find(parameter.value()))
        text += detail::concat(parameter.key(), " ", parameter.value().detach().to(at::kDouble).sum().item<double>(),
                               " ", parameter.value().detach().abs().max().item<double>(), "\n");
  }
  std::string text;
};

LEVIN_PROBE(resumes_split) {
  const auto keep = std::make_shared<KeepWhole>();
  auto options = options_of("model_parallel:tp=2", 2, 2, arguments.at(0));
  options.callbacks = {keep};
  Trainer trainer(std::move(options));
  Dropping module;
  trainer.fit(module, batches(), {}, {.ckpt_path = arguments.at(1)});
  testing::write_answer(arguments.at(0), keep->text);
}

TEST(SplitRanks, ARunOfOneProcessResumesWithOneStateOfRandomNumbers) {
  const testing::TemporaryFolder folder;
  const auto checkpoint = (folder / "one.ckpt").string();
  Trainer trainer(options_of("single_device", 1, 1, folder.path().string()));
  Dropping module;
  trainer.fit(module, batches());
  trainer.save_checkpoint(checkpoint);
  EXPECT_EQ(testing::launch_probe("resumes_split", 2, {folder.path().string(), checkpoint}), 0);
  const auto told = testing::read_answers(folder.path(), 2);
  EXPECT_THAT(told[0], ::testing::HasSubstr("net."));
  EXPECT_EQ(told[0], told[1]);
}

LEVIN_PROBE(logs_split) {
  Trainer trainer(options_of(arguments.at(1), 2, 1, arguments.at(0)));
  Dropping module;
  trainer.fit(module, batches());
  std::string text;
  for (const auto* name : {"sum", "mean", "min", "max"})
    for (const auto* when : {"_step", "_epoch"})
      text += detail::concat(detail::metric_number(trainer.callback_metrics().at(std::string(name) + when)), " ");
  testing::write_answer(arguments.at(0), text);
}

TEST(SplitRanks, ABatchThatRanksHaveTogetherCountsOnce) {
  for (const auto* strategy : {"model_parallel:tp=2", "context_parallel"}) {
    const testing::TemporaryFolder folder;
    EXPECT_EQ(testing::launch_probe("logs_split", 2, {folder.path().string(), strategy}), 0);
    for (const auto& told : testing::read_answers(folder.path(), 2)) EXPECT_EQ(told, "8 32 8 8 8 8 8 8 ") << strategy;
  }
}

}  // namespace
}  // namespace levin
