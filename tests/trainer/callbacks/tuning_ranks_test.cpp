// Tuning callbacks of two ranks that see different data: what they decide is the same.
#include <cstdlib>

#include "levin/distributed/launcher.h"
#include "levin/trainer/callbacks/finetuning.h"
#include "levin/trainer/callbacks/model_pruning.h"
#include "levin/trainer/callbacks/spike_detection.h"
#include "levin/trainer/callbacks/tuning/batch_size_finder.h"
#include "levin/trainer/callbacks/tuning/lr_finder.h"
#include "levin/trainer/callbacks/weight_averaging.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

constexpr const char* kFolder = "LEVIN_TUNING_TEST_FOLDER";

/// Runs a test of this program that is otherwise disabled, as two ranks; what each of them told.
std::vector<std::string> told_by_ranks(const std::string& test) {
  Folder folder;
  ::setenv(kFolder, folder.path().c_str(), 1);
  EXPECT_EQ(launch({.command = {"/proc/self/exe", "--gtest_brief=1", "--gtest_also_run_disabled_tests",
                                "--gtest_filter=TuningRankBodies.DISABLED_" + test},
                    .nproc = 2}),
            0);
  std::vector<std::string> told;
  for (const char* rank : {"rank_0", "rank_1"}) {
    const auto path = folder.path() / rank;
    told.push_back(std::filesystem::exists(path) ? read_file(path) : "(nothing)");
  }
  return told;
}

std::filesystem::path folder_of_ranks() {
  return std::getenv(kFolder) ? std::getenv(kFolder) : "";
}

TrainerOptions two_ranks(std::vector<CallbackRef> callbacks, int64_t max_epochs) {
  auto options = quiet(std::move(callbacks), max_epochs, folder_of_ranks());
  options.strategy = "ddp";
  options.devices = 2;
  return options;
}

void tell(const Trainer& trainer, const std::string& text) {
  write_file(folder_of_ranks() / ("rank_" + std::to_string(trainer.fabric().global_rank())), text);
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

TEST(TuningRankBodies, DISABLED_Finetuning) {
  Transfer net;
  Trainer trainer(two_ranks({BackboneFinetuning({.unfreeze_backbone_at_epoch = 1})}, 3));
  trainer.fit(net, loader(32, 4));
  tell(trainer, text_of(net));
}

TEST(TuningRanks, FinetuningAveragesWhatTheStrategyLeftOut) {
  const auto told = told_by_ranks("Finetuning");
  EXPECT_EQ(told[0], told[1]);
  Transfer one;
  Trainer(quiet({BackboneFinetuning({.unfreeze_backbone_at_epoch = 1})}, 3)).fit(one, loader(32, 8));
  std::istringstream ranks(told[0]), alone(text_of(one));
  double a = 0, b = 0;
  int numbers = 0;
  for (; ranks >> a && alone >> b; ++numbers) ASSERT_NEAR(a, b, 2e-5) << numbers;
  EXPECT_EQ(numbers, 32 * 6 + 6 + 6 * 2 + 2);
}

TEST(TuningRankBodies, DISABLED_Spike) {
  struct Jumping : Net {
    StepOutput training_step(const Batch& batch, const StepInfo& at) override {
      const bool jumps = trainer().fabric().global_rank() == 1 && at.batch_idx == 3;
      return loss_of(batch) * 0 + (jumps ? 9.0 : 1.0);
    }
  };
  Jumping net;
  Trainer trainer(two_ranks({SpikeDetection()}, 1));
  try {
    trainer.fit(net, loader(32, 2));
    tell(trainer, "no spike");
  } catch (const TrainingSpikeError& error) {
    tell(trainer, levin::detail::concat("spike in ", error.batch_idx()));
  }
}

TEST(TuningRanks, ASpikeOfOneEndsAll) {
  EXPECT_EQ(told_by_ranks("Spike"), (std::vector<std::string>{"spike in 3", "spike in 3"}));
}

TEST(TuningRankBodies, DISABLED_LearningRate) {
  const auto finder = std::make_shared<LearningRateFinder>(LearningRateFinderOptions{.min_lr = 1e-2, .max_lr = 100});
  Net net;
  Trainer trainer(two_ranks({finder, EMAWeightAveraging({.decay = 0.5})}, 1));
  trainer.fit(net, loader(32, 2));
  tell(trainer, levin::detail::concat(finder->results().lrs.size(), " ", finder->results().suggestion().value_or(0),
                                      " ", text_of(net)));
}

TEST(TuningRanks, FollowOneLearningRate) {
  const auto told = told_by_ranks("LearningRate");
  EXPECT_EQ(told[0], told[1]);
  EXPECT_LT(std::stoi(told[0]), 100);  // it diverged, and both stopped
}

TEST(TuningRankBodies, DISABLED_Pruning) {
  Net net;
  Trainer trainer(two_ranks({ModelPruning({.pruning_fn = "random_unstructured"})}, 2));
  trainer.launch();
  torch::manual_seed(trainer.fabric().global_rank());
  trainer.fit(net, loader(16, 2));
  tell(trainer, text_of(net));
}

TEST(TuningRanks, PruneTheSameAtRandom) {
  const auto told = told_by_ranks("Pruning");
  EXPECT_EQ(told[0], told[1]);
  EXPECT_THAT(told[0], HasSubstr(" 0 "));
}

TEST(TuningRankBodies, DISABLED_BatchSize) {
  Net net;
  Trainer trainer(two_ranks({BatchSizeFinder()}, 1));
  tell(trainer, error_of([&] { trainer.fit(net, loader(16, 2)); }));
}

TEST(TuningRanks, RefuseToSearchForABatchSize) {
  for (const auto& told : told_by_ranks("BatchSize")) EXPECT_THAT(told, HasSubstr("not with 2"));
}

}  // namespace
}  // namespace levin::tuning_test
