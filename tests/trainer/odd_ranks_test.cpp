// A rank that was given another option than the others: a line on all of them, and no model of its own.
#include <cstdlib>

#include <gmock/gmock.h>

#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/lambda.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

constexpr int kOdd = 2;

struct Small : TrainModule {
  explicit Small(double rate) : lr(rate) { layer = register_module("layer", torch::nn::Linear(4, 1)); }
  StepOutput training_step(const Batch& batch, const StepInfo&) override { return layer(batch["x"]).mean(); }
  Optimizers configure_optimizers() override { return optim::SGD(layer->parameters(), {.lr = lr}); }
  torch::nn::Linear layer{nullptr};
  double lr;
};

struct OddCase {
  std::string name;
  std::function<void(TrainerOptions&)> change;
  std::string line;
};

const std::vector<OddCase>& cases() {
  static const std::vector<OddCase> all{
      {"clip", [](auto& o) { o.gradient_clip_val = 0.1; }, R"(gradient_clip_val is "0.1" on rank 2 and "0" on rank 0)"},
      {"precision", [](auto& o) { o.precision = "bf16-mixed"; },
       R"(precision is "bf16-mixed" on rank 2 and "32-true" on rank 0)"},
      {"accumulate", [](auto& o) { o.accumulate_grad_batches = 3; },
       R"(accumulate_grad_batches is "3" on rank 2 and "1" on rank 0)"},
      {"epochs", [](auto& o) { o.max_epochs = 3; }, R"(max_epochs is "3" on rank 2 and "2" on rank 0)"},
      {"interval", [](auto& o) { o.val_check_interval = 2; }, R"(val_check_interval is "2" on rank 2)"},
      {"monitor", [](auto& o) { o.callbacks.emplace_back(EarlyStopping({.monitor = "loss"})); },
       "callbacks is \"EarlyS"},
      {"checkpoint",
       [](auto& o) {
         o.enable_checkpointing = true;
         o.callbacks.emplace_back(ModelCheckpoint({.every_n_train_steps = 2}));
       },
       "callbacks is \"ModelCheckpoint{"},
      {"policy", [](auto& o) { o.on_nonfinite = "skip"; }, R"(on_nonfinite is "skip" on rank 2 and "stop" on rank 0)"},
      {"lr", [](auto&) {}, R"(optimizer 0 is "SGD, lr 0.5)"},
      {"none", [](auto&) {}, "no error"},
      // What one rank alone may have.
      {"print", [](auto& o) { o.callbacks.emplace_back(LambdaCallback({})); }, "no error"},
  };
  return all;
}

LEVIN_PROBE(odd_options) {
  const int rank = std::atoi(std::getenv("RANK"));
  std::string answers;
  for (const auto& one : cases()) {
    auto options = quiet({}, 2, std::filesystem::path(arguments.at(0)));
    options.strategy = "ddp";
    options.devices = 3;
    options.use_distributed_sampler = false;
    if (rank == kOdd) one.change(options);
    Small net(rank == kOdd && one.name == "lr" ? 0.5 : 0.1);
    Trainer trainer(options);
    std::string error = "no error";
    try {
      trainer.fit(net, std::vector<Batch>(2, Batch{{"x", at::ones({2, 4})}}));
    } catch (const std::exception& e) {
      error = e.what();
    }
    answers += error + "\n";
  }
  testing::write_answer(arguments.at(0), answers);
}

TEST(OddRank, IsNamedWithTheOptionThatDiffers) {
  const TemporaryFolder folder;
  testing::launch_probe("odd_options", 3, {folder.path().string()});
  for (const auto& answer : testing::read_answers(folder.path(), 3)) {
    std::istringstream lines(answer);
    for (const auto& one : cases()) {
      std::string line;
      std::getline(lines, line);
      EXPECT_THAT(line, HasSubstr(one.line)) << one.name;
    }
  }
}

}  // namespace
}  // namespace levin::tuning_test
