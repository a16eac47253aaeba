// Steps whose loss or gradients are nan or inf, by policy, on one rank and on several; and what is saved meanwhile.
#include "levin/trainer/nonfinite.h"

#include <limits>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/capture.h"
#include "levin/testing/probe.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"
#include "levin/trainer/callbacks/lambda.h"
#include "levin/trainer/callbacks/spike_detection.h"
#include "levin/trainer/callbacks/weight_averaging.h"
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

/// Batches in which something is wrong, or for the reference nothing is returned.
struct FailingOften : Failing {
  FailingOften(Bad what, std::set<int64_t> at) : Failing(what), batches(std::move(at)) {}
  StepOutput training_step(const Batch& data, const StepInfo& info) override {
    batch = batches.contains(trainer().progress().total_batches) ? trainer().progress().total_batches : -1;
    return Failing::training_step(data, info);
  }
  Optimizers configure_optimizers() override {
    optim::AdamW adam(parameters(), {.lr = 0.05});
    return {adam, {.scheduler = optim::StepLR(adam, {.step_size = 3, .gamma = 0.5}), .interval = "step"}};
  }
  std::set<int64_t> batches;
};

TrainerOptions going_back(const fs::path& folder, int64_t every = 2, std::vector<CallbackRef> more = {}) {
  more.emplace_back(ModelCheckpoint({.dirpath = folder / "kept", .every_n_train_steps = every}));
  return options("rollback", std::move(more), folder);
}

// The weights, Adam's state and the learning rates are those of a run that left the steps out: a batch without a loss
// makes no step, and counts as one.
TEST(NonFinite, RollbackLeavesOutTheStepsSinceTheLastCheckpoint) {
  for (const auto bad : {Bad::kLoss, Bad::kGradient}) {
    TemporaryFolder folder;
    FailingOften net(bad, {5}), reference(Bad::kNoLoss, {4, 5});
    Ended ended;
    const auto text = testing::captured_stderr([&] { ended = fit(net, going_back(folder.path())); });
    EXPECT_EQ(ended.error, "");
    EXPECT_EQ(ended.steps, 16);
    EXPECT_TRUE(ended.weight.equal(fit(reference, options("warn")).weight));
    EXPECT_THAT(text, HasSubstr("nan or inf in epoch 0, batch 5: the run goes back to"));
    EXPECT_THAT(text, HasSubstr("epoch=0-step=4.ckpt (epoch 0, step 4) and on with the next batch; return 1 of 3"));
    EXPECT_EQ(names_in(folder.path() / "kept"), (Names{"epoch=1-step=16.ckpt"}));
  }
}

TEST(NonFinite, RollbackEndsAWindowOfAccumulation) {
  TemporaryFolder folder;
  FailingOften net(Bad::kLoss, {9}), reference(Bad::kNoLoss, {8, 9, 10, 11});
  auto o = going_back(folder.path(), 1);
  auto plain = options("warn");
  o.accumulate_grad_batches = plain.accumulate_grad_batches = 4;
  const auto ended = fit(net, o);
  EXPECT_EQ(ended.error, "");
  EXPECT_EQ(ended.steps, 4);
  EXPECT_TRUE(ended.weight.equal(fit(reference, plain).weight));
}

TEST(NonFinite, RollbackIsBounded) {
  TemporaryFolder folder;
  FailingOften net(Bad::kGradient, {3, 5, 7, 9});
  auto o = going_back(folder.path());
  o.max_rollbacks = 2;
  const auto ended = fit(net, o);
  EXPECT_THAT(ended.error, HasSubstr("nan or inf in epoch 0, batch 7, after the run has gone back 2 times"));
  EXPECT_TRUE(ended.weight.isfinite().all().item<bool>());
  EXPECT_THAT(error_of([] { Trainer({.max_rollbacks = 0}); }), HasSubstr("max_rollbacks 0 is not allowed"));
}

TEST(NonFinite, RollbackNeedsACheckpoint) {
  TemporaryFolder folder;
  FailingOften net(Bad::kGradient, {1});
  EXPECT_THAT(fit(net, going_back(folder.path())).error, HasSubstr("finds no checkpoint of this run to go back to"));
  auto o = options("rollback");
  o.enable_checkpointing = false;
  EXPECT_THAT(error_of([&] { Trainer trainer(o); }), HasSubstr("enable_checkpointing = false does not write"));
}

TEST(NonFinite, RollbackPassesOverWhatIsDamagedOrDeleted) {
  TemporaryFolder folder;
  const auto kept = folder.path() / "kept";
  FailingOften net(Bad::kGradient, {7}), reference(Bad::kNoLoss, {2, 3, 4, 5, 6, 7});
  LambdaCallback damage({.on_train_batch_start = [&](TrainerContext& run, const AnyBatch&, int64_t) {
    if (run.progress().total_batches != 7) return;
    fs::remove_all(kept / "epoch=0-step=6.ckpt");
    fs::resize_file(kept / "epoch=0-step=4.ckpt" / "model.safetensors", 10);
  }});
  auto o = options("rollback",
                   {std::move(damage), ModelCheckpoint({.dirpath = kept, .save_top_k = -1, .every_n_train_steps = 2})},
                   folder.path());
  const auto ended = fit(net, o);
  EXPECT_EQ(ended.error, "");
  EXPECT_TRUE(ended.weight.equal(fit(reference, options("warn")).weight));
}

TEST(NonFinite, RollbackTakesTheAverageBackToo) {
  TemporaryFolder folder;
  struct Average : EMAWeightAveraging {
    Average() : EMAWeightAveraging({.decay = 0.5}) {}
  };
  auto with = std::make_shared<Average>(), expected = std::make_shared<Average>();
  FailingOften net(Bad::kGradient, {5}), reference(Bad::kNoLoss, {4, 5});
  EXPECT_EQ(fit(net, going_back(folder.path(), 2, {with})).error, "");
  EXPECT_EQ(fit(reference, options("warn", {expected})).error, "");
  // The run ends with the average.
  EXPECT_TRUE(net.plain->weight.isfinite().all().item<bool>());
  // What the average saw of the two batches without a step differs: it counts steps.
  EXPECT_TRUE(net.plain->weight.allclose(reference.plain->weight, 1e-2, 1e-2));
}

TEST(NonFinite, ARunThatResumesRemembersHowOftenItWentBack) {
  TemporaryFolder folder;
  auto o = going_back(folder.path());
  o.max_rollbacks = 1;
  FailingOften first(Bad::kGradient, {5});
  EXPECT_EQ(fit(first, o).error, "");
  FailingOften second(Bad::kGradient, {17});
  o.max_epochs = 3;
  EXPECT_THAT(fit(second, o, (folder.path() / "kept/epoch=1-step=16.ckpt").string()).error,
              HasSubstr("after the run has gone back 1 times"));
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
  if (arguments.at(3) == "rollback") {
    o.enable_checkpointing = true;
    o.callbacks.emplace_back(ModelCheckpoint({.dirpath = folder / "kept", .every_n_train_steps = 2}));
  }
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
    for (const char* policy : {"stop", "skip", "rollback"})
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

/// A module that steps its optimizer itself: nobody looks at its gradients, and losses are shared later.
struct StepsItself : Failing {
  using Failing::Failing;
  StepOutput training_step(const Batch& data, const StepInfo& info) override {
    auto output = Failing::training_step(data, info);
    auto optimizer = optimizers().at(0);
    manual_backward(output.loss);
    optimizer.step();
    optimizer.zero_grad();
    return output;
  }
};

LEVIN_PROBE(nonfinite_by_hand) {
  const fs::path folder = arguments.at(0);
  auto o = options("stop", {}, folder);
  o.strategy = "ddp";
  o.devices = 3;
  StepsItself net(Bad::kLoss, 3, 1);
  net.automatic_optimization = false;
  Trainer trainer(o);
  std::string error = "no error";
  try {
    trainer.fit(net, loader(24, 2));
  } catch (const NonFiniteError& thrown) {
    error = detail::concat("epoch ", thrown.epoch(), ", batch ", thrown.batch_idx());
  }
  testing::write_answer(folder, error);
}

TEST(NonFiniteRanks, OfAModuleThatStepsItselfIsSeenAtTheEndOfTheEpoch) {
  TemporaryFolder folder;
  EXPECT_EQ(testing::launch_probe("nonfinite_by_hand", 3, {folder.path().string()}), 0);
  for (const auto& answer : testing::read_answers(folder.path(), 3)) EXPECT_EQ(answer, "epoch 0, batch 3");
}

}  // namespace
}  // namespace levin::tuning_test
