// Steps whose loss or gradients are nan or inf, by policy, on one rank and on several; and what is saved meanwhile.
#include "levin/trainer/nonfinite.h"

#include <limits>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/capture.h"
#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"
#include "levin/trainer/callbacks/spike_detection.h"
#include "tests/trainer/callbacks/fake_run.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

namespace fs = std::filesystem;
using Names = std::set<std::string>;
using levin::testing::names_in;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// What is not finite in one batch of the run, on one rank.
enum class Bad { kNothing, kLoss, kGradient, kNoLoss };

struct Failing : Net {
  explicit Failing(Bad what, int64_t at = 5, int64_t on_rank = 0) : bad(what), batch(at), rank(on_rank) {}
  StepOutput training_step(const Batch& data, const StepInfo&) override {
    const bool here = trainer().progress().total_batches == batch && trainer().fabric().global_rank() == rank;
    const auto y = plain(data["x"]);
    const auto loss = at::mse_loss(y, at::ones_like(y));
    if (!here || bad == Bad::kNothing) return loss;
    if (bad == Bad::kNoLoss) return {};
    if (bad == Bad::kLoss) return loss + kNan;    // with gradients that are finite
    return loss + (y - y.detach()).sqrt().sum();  // 0, with a gradient of inf
  }
  Bad bad;
  int64_t batch, rank;
};

TrainerOptions options(const std::string& policy, std::vector<CallbackRef> callbacks = {}, const fs::path& root = {}) {
  auto o = quiet(std::move(callbacks), 2, root);
  for (const auto& callback : o.callbacks)
    if (dynamic_cast<const ModelCheckpoint*>(callback.get().get())) o.enable_checkpointing = true;
  o.on_nonfinite = policy;
  return o;
}

struct Ended {
  std::string error;
  int64_t steps = 0;
  Tensor weight;
};
Ended fit(Failing& net, const TrainerOptions& o, const std::string& from = {}) {
  Trainer trainer(o);
  Ended ended;
  try {
    trainer.fit(net, loader(16, 2), {}, {.ckpt_path = from});
  } catch (const Error& error) {
    ended.error = error.what();
  }
  ended.steps = trainer.global_step();
  ended.weight = net.plain->weight.detach().clone();
  return ended;
}

Tensor after_steps(int64_t steps) {
  Failing net(Bad::kNothing);
  auto o = options("stop");
  o.max_steps = steps;
  return fit(net, o).weight;
}

TEST(NonFinite, StopsBeforeTheStepIsMade) {
  for (const auto bad : {Bad::kLoss, Bad::kGradient}) {
    TemporaryFolder folder;
    Failing net(bad);
    auto newest = std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.dirpath = folder.path(), .save_last = true, .every_n_train_steps = 1});
    const auto ended = fit(net, options("stop", {newest}, folder.path()));
    EXPECT_THAT(ended.error, HasSubstr("nan or inf in epoch 0, batch 5"));
    EXPECT_THAT(ended.error, HasSubstr(bad == Bad::kLoss ? "the loss is" : "the gradients are"));
    EXPECT_EQ(ended.steps, 5);
    EXPECT_TRUE(ended.weight.equal(after_steps(5)));
    EXPECT_EQ(names_in(folder.path()), (Names{"epoch=0-step=5.ckpt", "last.ckpt"}));
  }
}

TEST(NonFinite, TheStateBeforeTheStepIsKeptAndResumedFrom) {
  for (const int64_t accumulate : {1, 4}) {
    TemporaryFolder folder;
    auto o = options("stop", {OnExceptionCheckpoint({.dirpath = folder.path()})}, folder.path());
    o.accumulate_grad_batches = accumulate;
    Failing net(Bad::kGradient);
    EXPECT_NE(fit(net, o).error, "");
    Failing good(Bad::kNothing), whole(Bad::kNothing);
    const auto resumed = fit(good, o, (folder.path() / "on_exception.ckpt").string());
    EXPECT_EQ(resumed.error, "");
    EXPECT_TRUE(resumed.weight.equal(fit(whole, o).weight)) << accumulate;
  }
}

TEST(NonFinite, SkipLeavesTheStepOut) {
  for (const auto bad : {Bad::kLoss, Bad::kGradient}) {
    Failing net(bad), without(Bad::kNoLoss);
    Ended ended;
    const auto text = testing::captured_stderr([&] { ended = fit(net, options("skip")); });
    EXPECT_EQ(ended.error, "");
    EXPECT_EQ(ended.steps, 16);
    EXPECT_TRUE(ended.weight.isfinite().all().item<bool>());
    // A batch without a loss makes no step either: what was accumulated before it is stepped, and there was nothing.
    auto expected = fit(without, options("warn"));
    EXPECT_TRUE(ended.weight.allclose(expected.weight, 1e-6, 1e-6));
    EXPECT_THAT(text, HasSubstr("1 steps of epoch 0 were left out"));
  }
}

TEST(NonFinite, SkipGoesWithEveryPrecisionOfTheCpu) {
  for (const char* precision : {"bf16-mixed", "bf16-true", "64-true"}) {
    Failing net(Bad::kGradient);
    auto o = options("skip");
    o.precision = precision;
    const auto ended = fit(net, o);
    EXPECT_EQ(ended.error, "") << precision;
    EXPECT_TRUE(ended.weight.isfinite().all().item<bool>()) << precision;
  }
}

TEST(NonFinite, ACheckpointOfThemEvictsNothing) {
  TemporaryFolder folder;
  Failing net(Bad::kGradient);
  auto newest = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder.path(), .save_last = true, .every_n_train_steps = 1});
  Ended ended;
  const auto text = testing::captured_stderr([&] { ended = fit(net, options("warn", {newest}, folder.path())); });
  EXPECT_EQ(ended.error, "");
  EXPECT_FALSE(ended.weight.isfinite().all().item<bool>());
  EXPECT_EQ(names_in(folder.path()), (Names{"epoch=0-step=5.ckpt", "last.ckpt"}));
  EXPECT_THAT(text, HasSubstr("weights are nan or inf after step 6 of epoch 0 (layer.weight): no checkpoint"));
  for (const char* name : {"epoch=0-step=5.ckpt", "last.ckpt"})
    EXPECT_TRUE(load_checkpoint(folder.path() / name)
                    .at("model")
                    .to_dict()
                    .at("layer.weight")
                    .to_tensor()
                    .isfinite()
                    .all()
                    .item<bool>());
  EXPECT_EQ(newest->best_model_path(), folder.path() / "epoch=0-step=5.ckpt");
}

TEST(NonFinite, ACheckpointOfThemIsRefusedByHand) {
  TemporaryFolder folder;
  Failing net(Bad::kGradient);
  Trainer trainer(options("warn"));
  trainer.fit(net, loader(16, 2));
  EXPECT_THAT(error_of([&] { trainer.save_checkpoint(folder.path() / "end.ckpt"); }), HasSubstr("was not written"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(NonFinite, SpikesAreSeenInTheStepThatSaves) {
  TemporaryFolder folder;
  Failing net(Bad::kGradient);
  const auto ended = fit(
      net, options("stop",
                   {SpikeDetection(), ModelCheckpoint({.dirpath = folder.path() / "kept", .every_n_train_steps = 6})},
                   folder.path()));
  EXPECT_THAT(ended.error, HasSubstr("[SpikeDetection] the loss jumped in batch 5"));
  EXPECT_TRUE(fs::exists(folder.path() / "skip_batches.json"));
  EXPECT_EQ(names_in(folder.path() / "kept"), Names{});
}

TEST(NonFinite, AnotherWordIsRefused) {
  EXPECT_THAT(error_of([] { Trainer({.on_nonfinite = "skp"}); }), HasSubstr("did you mean \"skip\"?"));
}

/// Strategy, policy, what is bad: rank 1's batch 3. Each rank tells its weights, steps and error.
LEVIN_PROBE(nonfinite_on_one_rank) {
  const fs::path folder = arguments.at(0);
  auto o = options(arguments.at(3), {}, folder);
  o.strategy = arguments.at(1);
  o.devices = std::stoi(arguments.at(2));
  Failing net(arguments.at(4) == "loss" ? Bad::kLoss : Bad::kGradient, 3, 1);
  Trainer trainer(o);
  std::string error = "no error";
  try {
    trainer.fit(net, loader(24, 2));
  } catch (const NonFiniteError& thrown) {
    error = detail::concat("epoch ", thrown.epoch(), ", batch ", thrown.batch_idx());
  }
  bool finite = true;
  for (const auto& weight : net.parameters()) finite &= weight.isfinite().all().item<bool>();
  testing::write_answer(folder,
                        error + ", step " + std::to_string(trainer.global_step()) + (finite ? ", finite" : ", nan"));
}

TEST(NonFiniteRanks, DecideTogetherAtTheSameStep) {
  struct Case {
    const char* strategy;
    int ranks;
  };
  for (const auto& [strategy, ranks] : {Case{"ddp", 3}, Case{"fsdp", 2}, Case{"deepspeed_stage_2", 3}})
    for (const char* policy : {"stop", "skip"})
      for (const char* bad : {"loss", "gradient"}) {
        SCOPED_TRACE(std::string(strategy) + " " + policy + " " + bad);
        TemporaryFolder folder;
        EXPECT_EQ(testing::launch_probe("nonfinite_on_one_rank", ranks,
                                        {folder.path().string(), strategy, std::to_string(ranks), policy, bad}),
                  0);
        for (const auto& answer : testing::read_answers(folder.path(), ranks))
          EXPECT_EQ(answer, std::string(policy) == "stop"
                                ? "epoch 0, batch 3, step 3, finite"
                                : "no error, step " + std::to_string(ranks == 3 ? 8 : 12) + ", finite");
      }
}

}  // namespace
}  // namespace levin::tuning_test
