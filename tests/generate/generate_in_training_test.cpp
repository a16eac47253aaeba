// Samples while training: generate() in a hook of a TrainModule, with weights that are whole or sharded.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/generate/generate.h"
#include "levin/levin.h"
#include "levin/testing/probe.h"
#include "levin/testing/temporary_folder.h"

namespace levin::generate_tests {
namespace {

const models::DecoderOptions kSizes{
    .vocab_size = 40, .max_positions = 48, .num_layers = 2, .num_heads = 2, .hidden_dim = 16, .mlp_dim = 32};

struct Speaker : TrainModule {
  Speaker() { net = register_module("net", models::Decoder(kSizes)); }
  StepOutput training_step(const Batch& batch, const StepInfo&) override { return net(batch["x"], batch["y"]); }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return net(batch["x"], batch["y"]); }
  Optimizers configure_optimizers() override { return optim::AdamW(parameters(), {.lr = 1e-2}); }
  void on_validation_end() override {
    if (trainer().sanity_checking()) return;
    const std::vector<std::vector<int64_t>> prompts{{1, 2, 3}, {7}, {5, 6, 5, 6}};
    trainer().call_model([&] {
      spoken.clear();
      // By the likeliest tokens, by draws, by guesses, by beams.
      for (GenerateOptions options :
           {GenerateOptions{.temperature = 0}, GenerateOptions{.top_k = 6, .seed = 4},
            GenerateOptions{.temperature = 0, .prompt_lookup = 3}, GenerateOptions{.temperature = 0, .num_beams = 2}}) {
        options.max_new_tokens = 20;
        for (const auto& row : generate(net, prompts, options)) spoken += fmt::format("{}\n", row.ids);
      }
    });
    EXPECT_FALSE(net->is_training());  // as validation left it
  }

  models::Decoder net = nullptr;
  std::string spoken;
};

/// Trains a little, and tells what the last sample was.
std::string spoken_by(const std::string& strategy, int devices) {
  torch::manual_seed(1);
  Speaker speaker;
  TrainerOptions options{.accelerator = "cpu", .strategy = strategy, .devices = devices};
  options.logger = false;
  options.max_epochs = 2;
  options.enable_checkpointing = options.enable_progress_bar = options.enable_model_summary = false;
  options.use_distributed_sampler = false;
  const auto x = at::arange(24).view({2, 12}) % 9;
  const std::vector<Batch> batches(4, Batch{{"x", x}, {"y", models::next_tokens(x)}});  // the same on every rank
  Trainer(options).fit(speaker, batches, batches);
  return speaker.spoken;
}

LEVIN_PROBE(speaks_while_training) {
  testing::write_answer(arguments.at(0), spoken_by(arguments.at(1), 2));
}

TEST(GenerateInTraining, EveryStrategySpeaksAsOneProcessDoes) {
  const auto alone = spoken_by("single_device", 1);
  ASSERT_EQ(std::ranges::count(alone, '\n'), 12);
  for (const std::string strategy : {"ddp", "fsdp", "deepspeed_stage_3"}) {
    const testing::TemporaryFolder folder;
    EXPECT_EQ(testing::launch_probe("speaks_while_training", 2, {folder.path().string(), strategy}), 0) << strategy;
    for (const auto& answer : testing::read_answers(folder.path(), 2)) EXPECT_EQ(answer, alone) << strategy;
  }
}

}  // namespace
}  // namespace levin::generate_tests
