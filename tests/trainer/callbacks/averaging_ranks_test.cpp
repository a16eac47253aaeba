// Averages of weights of which two ranks hold a part each: those of one process, in checkpoints and resumed too.
#include <cstdlib>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/stochastic_weight_averaging.h"
#include "levin/trainer/callbacks/weight_averaging.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

struct AveragedNet : Net {
  AveragedNet() { momentum = 0.5; }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    const auto loss = loss_of(batch);
    val_losses.push_back(loss.item<double>());
    return loss;
  }
  std::vector<double> val_losses;
};

struct SaveWhenTrained : Callback {
  explicit SaveWhenTrained(std::filesystem::path where) : path(std::move(where)) {}
  CallbackOrder order() const override { return CallbackOrder::kCheckpoint; }
  void on_train_end(TrainerContext& run) override { run.save_checkpoint(path); }
  std::filesystem::path path;
};

/// Trains with an average, resumes from the middle, and averages the last epochs; returns the losses of validation.
std::vector<double> train_averages(const std::filesystem::path& folder, const std::string& strategy, int ranks) {
  const auto options = [&](std::vector<CallbackRef> callbacks) {
    auto asked = quiet(std::move(callbacks), 2, folder);
    asked.strategy = strategy;
    asked.devices = ranks;
    asked.num_sanity_val_steps = 0;
    return asked;
  };
  const auto ema = [] { return EMAWeightAveraging({.decay = 0.9}); };
  const auto fit = [&](Trainer& trainer, Net& net, const std::string& from = {}) {
    FitOptions how;
    how.ckpt_path = from;
    trainer.fit(net, loader(32, 8 / ranks), loader(16, 8 / ranks, "x_val"), how);
  };
  AveragedNet whole;
  Trainer first(options({ema(), SaveAt(folder / "middle", 3), SaveWhenTrained(folder / "whole")}));
  fit(first, whole);
  AveragedNet resumed;
  Trainer second(options({ema(), SaveWhenTrained(folder / "resumed")}));
  fit(second, resumed, (folder / "middle").string());
  AveragedNet last;
  Trainer third(options({StochasticWeightAveraging({.swa_lrs = 0.05, .swa_epoch_start = int64_t{1}})}));
  fit(third, last);
  third.save_checkpoint((folder / "last").string());
  return whole.val_losses;
}

LEVIN_PROBE(averages_weights) {
  const auto losses = train_averages(arguments.at(0), arguments.at(1), 2);
  std::string text;
  for (const auto loss : losses) text += levin::detail::concat(loss, " ");
  testing::write_answer(arguments.at(0), text);
}

void expect_weights_near(const StateDict& ours, const StateDict& wanted, double tolerance, const std::string& where) {
  for (const auto& [name, value] : wanted)
    EXPECT_LE((ours.at(name).to_tensor() - value.to_tensor()).abs().max().item<double>(), tolerance)
        << where << " " << name;
}

TEST(AveragingRanks, AreThoseOfOneProcess) {
  TemporaryFolder one;
  const auto losses = train_averages(one.path(), "auto", 1);
  for (const char* strategy : {"fsdp", "deepspeed_stage_2"}) {
    TemporaryFolder two;
    ASSERT_EQ(testing::launch_probe("averages_weights", 2, {two.path().string(), strategy}), 0);
    for (const char* name : {"whole", "resumed", "last"}) {
      const auto ours = load_checkpoint((two.path() / name).string()),
                 wanted = load_checkpoint((one.path() / name).string());
      const auto where = levin::detail::concat(strategy, " ", name);
      expect_weights_near(ours.at("model").to_dict(), wanted.at("model").to_dict(), 2e-6, where);
      if (!wanted.contains("current_model_state")) continue;
      expect_weights_near(ours.at("current_model_state").to_dict(), wanted.at("current_model_state").to_dict(), 2e-6,
                          where);
    }
    const auto whole = load_checkpoint((two.path() / "whole").string()),
               resumed = load_checkpoint((two.path() / "resumed").string());
    expect_weights_near(resumed.at("model").to_dict(), whole.at("model").to_dict(), 0, "resumed");
    // Validation saw the average.
    const auto answers = testing::read_answers(two.path(), 2);
    std::istringstream zero(answers[0]), other(answers[1]);
    double a = 0, b = 0;
    size_t count = 0;
    for (; zero >> a && other >> b; ++count) EXPECT_NEAR((a + b) / 2, losses.at(count), 2e-6) << strategy << count;
    EXPECT_EQ(count, losses.size());
  }
}

}  // namespace
}  // namespace levin::tuning_test
