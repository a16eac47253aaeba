// Tuning callbacks where ranks have parts of parameters: what is unfrozen late trains as in one process, or is refused.
#include "levin/checkpoint/checkpoint.h"
#include "levin/models/decoder.h"
#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/finetuning.h"
#include "levin/trainer/callbacks/model_pruning.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

/// Sizes that two ranks divide: each has as many rows.
struct Halves : TrainModule {
  Halves() {
    torch::manual_seed(3);
    backbone = register_module("backbone", torch::nn::Linear(32, 6));
    head = register_module("head", torch::nn::Linear(6, 2));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto y = head(at::tanh(backbone(batch["x"])));
    return at::mse_loss(y, at::ones_like(y));
  }
  Optimizers configure_optimizers() override { return optim::SGD(head->parameters(), {.lr = 0.1, .momentum = 0.9}); }
  torch::nn::Linear backbone{nullptr}, head{nullptr};
};

/// Its backbone has layers that ranks split, and norms that every rank has.
struct Language : TrainModule {
  Language() {
    torch::manual_seed(3);
    backbone = register_module(
        "backbone", models::Decoder(models::DecoderOptions{
                        .vocab_size = 40, .max_positions = 8, .num_layers = 2, .num_heads = 2, .hidden_dim = 16}));
    head = register_module("head", torch::nn::Linear(40, 2));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto tokens = (batch["x"].narrow(1, 0, 6).abs() * 100).to(at::kLong).remainder(40);
    const auto y = head(backbone(tokens));
    return at::mse_loss(y, at::ones_like(y));
  }
  Optimizers configure_optimizers() override { return optim::SGD(head->parameters(), {.lr = 0.1, .momentum = 0.9}); }
  models::Decoder backbone{nullptr};
  torch::nn::Linear head{nullptr};
};

/// Keeps the full weights of all ranks while the strategy has them.
struct Keep : Callback {
  void on_train_end(TrainerContext& run) override {
    auto* shards = run.fabric().strategy().shards();
    if (!shards) {
      weights = weights_of(run.module());
      return;
    }
    for (const auto& [name, value] : full_state_dict(run.module(), *shards, {.rank0_only = false}))
      weights[name] = value.to_tensor().clone();
  }
  std::map<std::string, Tensor> weights;
};

/// Every number after a fit, in the order of names.
std::string trained(const std::string& model, TrainerOptions options, int64_t rows, const std::string& ckpt_path = "") {
  const auto keep = std::make_shared<Keep>();
  options.callbacks.push_back(keep);
  Halves halves;
  Language language;
  Trainer trainer(std::move(options));
  if (model == "language")
    trainer.fit(language, loader(32, rows), {}, {.ckpt_path = ckpt_path});
  else
    trainer.fit(halves, loader(32, rows), {}, {.ckpt_path = ckpt_path});
  std::string text;
  for (const auto& [name, tensor] : keep->weights)
    for (int64_t i = 0; i < tensor.numel(); ++i) text += levin::detail::concat(tensor.flatten()[i].item<double>(), " ");
  return text;
}

TrainerOptions tuning(const std::filesystem::path& folder, const std::string& strategy, int devices) {
  auto options = quiet({BackboneFinetuning({.unfreeze_backbone_at_epoch = 1})}, 3, folder);
  options.strategy = strategy;
  options.devices = devices;
  return options;
}

LEVIN_PROBE(finetuning_of_shards) {
  testing::write_answer(arguments.at(0), trained(arguments.at(1), tuning(arguments.at(0), arguments.at(2), 2),
                                                 std::stoll(arguments.at(3))));
}

/// The same in two runs; the second one resumes after the backbone has got a group of parameters.
LEVIN_PROBE(resumed_finetuning_of_shards) {
  const std::filesystem::path folder = arguments.at(0), kept = folder / "kept";
  auto first = tuning(folder, arguments.at(2), 2);
  first.callbacks.push_back(SaveAt(kept, 6));
  const auto rows = std::stoll(arguments.at(3));
  trained(arguments.at(1), std::move(first), rows);
  testing::write_answer(folder, trained(arguments.at(1), tuning(folder, arguments.at(2), 2), rows, kept.string()));
}

void expect_as_one(const std::string& model, const std::string& strategy, const std::string& rows,
                   const std::string& probe = "finetuning_of_shards") {
  const TemporaryFolder folder;
  EXPECT_EQ(testing::launch_probe(probe, 2, {folder.path().string(), model, strategy, rows}), 0);
  std::istringstream ranks(testing::read_answers(folder.path(), 2)[1]),
      alone(trained(model, tuning(folder.path(), "single_device", 1), 8));
  double a = 0, b = 0;
  int numbers = 0;
  for (; ranks >> a && alone >> b; ++numbers) ASSERT_NEAR(a, b, 2e-5) << strategy << " " << numbers;
  EXPECT_GT(numbers, 200) << strategy;
}

TEST(TuningShards, FinetuningLeavesShardsToTheStrategy) {
  for (const auto* strategy : {"fsdp", "deepspeed_stage_1"}) expect_as_one("halves", strategy, "4");
}

TEST(TuningShards, FinetuningOfSplitLayersSumsWhatWasFrozen) {
  expect_as_one("language", "model_parallel:tp=2,sequence_parallel", "8");
}

TEST(TuningShards, FinetuningResumesAfterTheBackboneWasUnfrozen) {
  for (const auto* strategy : {"fsdp", "deepspeed_stage_1"})
    expect_as_one("halves", strategy, "4", "resumed_finetuning_of_shards");
  expect_as_one("language", "model_parallel:tp=2,sequence_parallel", "8", "resumed_finetuning_of_shards");
}

LEVIN_PROBE(refused_of_shards) {
  const auto& strategy = arguments.at(2);
  auto options = tuning(arguments.at(0), strategy, 2);
  if (arguments.at(1) == "pruning") options.callbacks = {ModelPruning()};
  EXPECT_THAT(error_of([&] { trained("language", std::move(options), 4); }), HasSubstr(arguments.at(3)));
}

void expect_refused(const std::string& callback, const std::string& strategy, const std::string& error) {
  const TemporaryFolder folder;
  EXPECT_EQ(testing::launch_probe("refused_of_shards", 2, {folder.path().string(), callback, strategy, error}), 0)
      << callback << " " << strategy;
}

TEST(TuningShards, FinetuningIsRefusedWhereNobodyReducesWhatIsUnfrozen) {
  expect_refused("finetuning", "tensor_parallel", "use strategy \"model_parallel\"");
}

TEST(TuningShards, PruningOfShardsIsRefused) {
  expect_refused("pruning", "fsdp", "use strategy \"ddp\"");
}

}  // namespace
}  // namespace levin::tuning_test
