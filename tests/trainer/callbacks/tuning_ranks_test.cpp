// Tuning callbacks of two ranks that see different data: what they decide is the same.
#include <cstdlib>

#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/finetuning.h"
#include "levin/trainer/callbacks/model_pruning.h"
#include "levin/trainer/callbacks/spike_detection.h"
#include "levin/trainer/callbacks/tuning/batch_size_finder.h"
#include "levin/trainer/callbacks/tuning/lr_finder.h"
#include "levin/trainer/callbacks/weight_averaging.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

/// Runs a probe as two ranks; what each of them answers.
std::vector<std::string> answers_of_ranks(const std::string& probe) {
  const TemporaryFolder folder;
  EXPECT_EQ(testing::launch_probe(probe, 2, {folder.path().string()}), 0);
  return testing::read_answers(folder.path(), 2);
}

TrainerOptions two_ranks(const std::filesystem::path& folder, std::vector<CallbackRef> callbacks, int64_t max_epochs) {
  auto options = quiet(std::move(callbacks), max_epochs, folder);
  options.strategy = "ddp";
  options.devices = 2;
  return options;
}

std::string text_of(const torch::nn::Module& module) {
  std::string text;
  for (const auto& [name, tensor] : weights_of(module))
    for (int64_t i = 0; i < tensor.numel(); ++i) text += levin::detail::concat(tensor.flatten()[i].item<double>(), " ");
  return text;
}

/// A backbone without batch norm, so that two ranks do what one does.
struct Transfer : TrainModule {
  Transfer() {
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

LEVIN_PROBE(finetuning_of_ranks) {
  Transfer net;
  Trainer trainer(two_ranks(arguments.at(0), {BackboneFinetuning({.unfreeze_backbone_at_epoch = 1})}, 3));
  trainer.fit(net, loader(32, 4));
  testing::write_answer(arguments.at(0), text_of(net));
}

TEST(TuningRanks, FinetuningAveragesWhatTheStrategyLeftOut) {
  const auto told = answers_of_ranks("finetuning_of_ranks");
  EXPECT_EQ(told[0], told[1]);
  Transfer one;
  Trainer(quiet({BackboneFinetuning({.unfreeze_backbone_at_epoch = 1})}, 3)).fit(one, loader(32, 8));
  std::istringstream ranks(told[0]), alone(text_of(one));
  double a = 0, b = 0;
  int numbers = 0;
  for (; ranks >> a && alone >> b; ++numbers) ASSERT_NEAR(a, b, 2e-5) << numbers;
  EXPECT_EQ(numbers, 32 * 6 + 6 + 6 * 2 + 2);
}

LEVIN_PROBE(spike_of_one_rank) {
  struct Jumping : Net {
    StepOutput training_step(const Batch& batch, const StepInfo& at) override {
      const bool jumps = trainer().fabric().global_rank() == 1 && at.batch_idx == 3;
      return loss_of(batch) * 0 + (jumps ? 9.0 : 1.0);
    }
  };
  Jumping net;
  Trainer trainer(two_ranks(arguments.at(0), {SpikeDetection()}, 1));
  try {
    trainer.fit(net, loader(32, 2));
    testing::write_answer(arguments.at(0), "no spike");
  } catch (const TrainingSpikeError& error) {
    testing::write_answer(arguments.at(0), levin::detail::concat("spike in ", error.batch_idx()));
  }
}

TEST(TuningRanks, ASpikeOfOneEndsAll) {
  EXPECT_EQ(answers_of_ranks("spike_of_one_rank"), (std::vector<std::string>{"spike in 3", "spike in 3"}));
}

LEVIN_PROBE(learning_rate_of_ranks) {
  const auto finder = std::make_shared<LearningRateFinder>(LearningRateFinderOptions{.min_lr = 1e-2, .max_lr = 100});
  Net net;
  Trainer trainer(two_ranks(arguments.at(0), {finder, EMAWeightAveraging({.decay = 0.5})}, 1));
  trainer.fit(net, loader(32, 2));
  testing::write_answer(arguments.at(0),
                        levin::detail::concat(finder->results().lrs.size(), " ",
                                              finder->results().suggestion().value_or(0), " ", text_of(net)));
}

TEST(TuningRanks, FollowOneLearningRate) {
  const auto told = answers_of_ranks("learning_rate_of_ranks");
  EXPECT_EQ(told[0], told[1]);
  EXPECT_LT(std::stoi(told[0]), 100);  // it diverged, and both stopped
}

LEVIN_PROBE(pruning_of_ranks) {
  Net net;
  Trainer trainer(two_ranks(arguments.at(0), {ModelPruning({.pruning_fn = "random_unstructured"})}, 2));
  trainer.launch();
  torch::manual_seed(trainer.fabric().global_rank());
  trainer.fit(net, loader(16, 2));
  testing::write_answer(arguments.at(0), text_of(net));
}

TEST(TuningRanks, PruneTheSameAtRandom) {
  const auto told = answers_of_ranks("pruning_of_ranks");
  EXPECT_EQ(told[0], told[1]);
  EXPECT_THAT(told[0], HasSubstr(" 0 "));
}

LEVIN_PROBE(batch_size_of_ranks) {
  Net net;
  Trainer trainer(two_ranks(arguments.at(0), {BatchSizeFinder()}, 1));
  testing::write_answer(arguments.at(0), error_of([&] { trainer.fit(net, loader(16, 2)); }));
}

TEST(TuningRanks, RefuseToSearchForABatchSize) {
  for (const auto& told : answers_of_ranks("batch_size_of_ranks")) EXPECT_THAT(told, HasSubstr("not with 2"));
}

}  // namespace
}  // namespace levin::tuning_test
