// A run in precision "fp8-mixed" that resumes has the losses of one that was not interrupted, to the bit.
#include <gtest/gtest.h>

#include "levin/levin.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

struct Fp8Trained : TrainModule {
  Fp8Trained()
      : model(register_module(
            "model", models::Decoder(models::DecoderOptions{
                         .vocab_size = 32, .max_positions = 16, .num_layers = 1, .num_heads = 2, .hidden_dim = 32}))) {}
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto tokens = batch["tokens"];
    const auto loss = model(tokens, models::next_tokens(tokens));
    losses.push_back(loss.item<double>());
    return loss;
  }
  Optimizers configure_optimizers() override { return {optim::AdamW(parameters(), {.lr = 3e-3})}; }

  models::Decoder model;
  std::vector<double> losses;
};

/// Losses of a run that may begin at a checkpoint, and saves one after five steps.
std::vector<double> losses_of(const std::string& save, const std::string& resume, int64_t seed,
                              const std::string& precision = "fp8-mixed") {
  torch::manual_seed(3);
  const auto tokens = (torch::randint(0, 32, {64, 1}) + torch::arange(16)).remainder(32);
  auto loader = make_loader(TensorDataset({{"tokens", tokens}}), {.batch_size = 8});
  torch::manual_seed(seed);
  Fp8Trained module;
  TrainerOptions options{.accelerator = "cpu",
                         .devices = 1,
                         .precision = precision,
                         .logger = false,
                         .max_steps = 12,
                         .enable_checkpointing = false,
                         .enable_progress_bar = false,
                         .enable_model_summary = false};
  if (!save.empty())
    options.callbacks = {
        LambdaCallback({.on_train_batch_end = [&](TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
          if (run.global_step() == 5) run.save_checkpoint(save);
        }})};
  Trainer trainer(options);
  trainer.fit(module, loader, {}, {.ckpt_path = resume});
  if (!save.empty()) trainer.save_checkpoint(save + "_end");
  return module.losses;
}

TEST(TrainerFp8, ResumesToTheBit) {
  const testing::TemporaryFolder folder;
  const auto path = (folder.path() / "five").string();
  const auto whole = losses_of(path, "", 0);
  ASSERT_EQ(whole.size(), 12u);
  EXPECT_EQ(losses_of("", path, 1), std::vector<double>(whole.begin() + 5, whole.end()));
  for (const auto& saved : {path, path + "_end"}) {
    const auto histories = load_checkpoint(saved).at("fp8_histories").to_dict().at("module_0").to_dict();
    EXPECT_GT(histories.at("histories").to_tensor().abs().max().item<float>(), 0);
  }
  // In another precision it continues without them.
  EXPECT_EQ(losses_of("", path, 1, "bf16-mixed").size(), 7u);
}

}  // namespace
}  // namespace levin
