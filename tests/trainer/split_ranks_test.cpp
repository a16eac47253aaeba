// A Trainer whose ranks have parts of layers: random numbers and metrics of what they have together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/checkpoint/checkpoint.h"
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
  explicit Dropping(double dropout = 0.2, int64_t experts = 0) {
    torch::manual_seed(3);
    models::DecoderOptions options{
        .vocab_size = 40, .max_positions = 8, .num_layers = 2, .num_heads = 2, .hidden_dim = 16, .dropout = dropout};
    if (experts > 0) {
      options.bias = false;
      options.activation = "silu_gated";
      options.experts.count = experts;
    }
    net = register_module("net", models::Decoder(options));
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

struct SaveAtEnd : Callback {
  explicit SaveAtEnd(std::filesystem::path to) : path(std::move(to)) {}
  void on_train_end(TrainerContext& run) override { run.save_checkpoint(path); }
  std::filesystem::path path;
};

/// Two epochs, or the second one from a checkpoint; what it has then is saved.
void train_two_epochs(const std::string& strategy, int devices, const std::filesystem::path& folder, int64_t experts,
                      const std::string& from) {
  auto options = options_of(strategy, devices, 2, folder.string());
  options.callbacks = {std::make_shared<SaveAtEnd>(folder / "after.ckpt")};
  Trainer trainer(std::move(options));
  Dropping module(0, experts);
  trainer.fit(module, batches(), {}, {.ckpt_path = from});
}

LEVIN_PROBE(resumes_shards) {
  train_two_epochs(arguments.at(0), 2, arguments.at(1), std::stoll(arguments.at(2)), arguments.at(3));
}

TEST(SplitRanks, ARunOfOneProcessResumesWhereRanksHaveShards) {
  const std::vector<std::pair<std::string, int64_t>> cases{
      {"tensor_parallel", 0}, {"model_parallel:tp=2", 0}, {"expert_parallel", 4}};
  for (const auto& [strategy, experts] : cases) {
    const testing::TemporaryFolder folder, ranks;
    const auto half = (folder / "half.ckpt").string();
    Trainer trainer(options_of("single_device", 1, 1, folder.path().string()));
    Dropping module(0, experts);
    trainer.fit(module, batches());
    trainer.save_checkpoint(half);
    train_two_epochs("single_device", 1, folder.path(), experts, half);
    EXPECT_EQ(
        testing::launch_probe("resumes_shards", 2, {strategy, ranks.path().string(), std::to_string(experts), half}), 0)
        << strategy;
    const auto expected = load_checkpoint(folder / "after.ckpt"), ours = load_checkpoint(ranks / "after.ckpt");
    for (const auto& [name, value] : expected.at("model").to_dict())
      EXPECT_LT((ours.at("model").to_dict().at(name).to_tensor() - value.to_tensor()).abs().max().item<double>(), 1e-4)
          << strategy << " " << name;
  }
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
