// Runs that resume from a checkpoint: fixtures/restart.json. What is asked of them is the result of the run that was
// never interrupted, also where Lightning starts the epoch's data again.
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "tests/trainer/conformance.h"

namespace levin::conformance {
namespace {

const Json& restart() {
  return fixture("restart.json");
}

/// The module of the cases; with noise, each batch also draws random numbers.
struct RestartNet : Net {
  explicit RestartNet(bool noise = false, bool plateau = false)
      : Net(Json{{"schedule", plateau ? halving() : restart()["schedule"]}}), noise_(noise) {}
  /// Half the rate after each step that is worse than the best.
  static Json halving() {
    return {{"type", "ReduceLROnPlateau"},
            {"options", {{"mode", "min"}, {"factor", 0.5}, {"patience", 0}}},
            {"monitor", "train_loss_step"},
            {"interval", "step"}};
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    const auto loss = loss_of(batch);
    log("val_loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (!noise_) return Net::training_step(batch, at);
    Batch noisy{{"x", batch["x"] + 0.1 * at::randn_like(batch["x"])}};
    auto loss = loss_of(noisy);
    log("train_loss", loss.detach(), {.on_step = true, .on_epoch = true});
    return loss;
  }

 private:
  bool noise_;
};

/// What every batch was.
struct Losses : Callback {
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch, int64_t i) override {
    losses.push_back(output.loss.item<double>());
    indices.push_back(Json{run.current_epoch(), i, run.global_step()});
    const auto first = batch.get<Batch>()["x"][0];
    samples.push_back((fixture_tensor("x") == first).all(1).nonzero()[0].item<int64_t>() / 4);
  }
  std::vector<double> losses;
  Json indices = Json::array(), samples = Json::array();
};

struct Result {
  std::shared_ptr<Losses> losses = std::make_shared<Losses>();
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  std::shared_ptr<Rows> rows = std::make_shared<Rows>();
  std::vector<Tensor> weights;
  int64_t global_step = 0, current_epoch = 0;
};

struct RestartOptions {
  std::string ckpt_path = {};
  bool validates = false;
  bool noise = false;
  /// Follows the noisy loss, step by step.
  bool plateau = false;
  int64_t accumulate = 1;
  /// Ends there, with a checkpoint at the end of each epoch.
  int64_t max_steps = -1;
};

/// Four epochs of four batches, with a checkpoint every two steps.
Result run(const std::filesystem::path& folder, const Loaders<Batch>& train, const RestartOptions& asked = {}) {
  const Quiet quiet;
  Result result;
  RestartNet module(asked.noise, asked.plateau);
  TrainerOptions options = options_of(Json{{"max_epochs", restart()["max_epochs"]}, {"log_every_n_steps", 1}});
  options.enable_checkpointing = {};
  options.logger = result.rows;
  options.limit_val_batches = asked.validates ? 1 : 0;
  if (asked.validates) options.val_check_interval = 2;
  options.accumulate_grad_batches = asked.accumulate;
  options.max_steps = asked.max_steps;
  options.default_root_dir = folder;
  ModelCheckpointOptions kept{.dirpath = folder, .save_top_k = -1};
  if (asked.max_steps < 0) kept.every_n_train_steps = restart()["every_n_train_steps"].get<int64_t>();
  options.callbacks = {result.watch, result.losses, ModelCheckpoint(std::move(kept))};
  Trainer trainer(std::move(options));
  trainer.fit(module, train, asked.validates ? Loaders<Batch>(loader_of(4, 4, "x_val")) : Loaders<Batch>(),
              {.ckpt_path = asked.ckpt_path});
  for (const auto& parameter : module.parameters()) result.weights.push_back(parameter.detach().clone());
  result.global_step = trainer.global_step();
  result.current_epoch = trainer.current_epoch();
  return result;
}

DataLoader<Batch> placed() {
  return loader_of(16, 4);
}

void expect_as_recorded(const Result& result, const Json& expect) {
  EXPECT_EQ(result.losses->indices, expect["epoch_batch_step"]);
  EXPECT_EQ(result.losses->samples, expect["samples_of_batch"]);
  ASSERT_EQ(result.losses->losses.size(), expect["losses"].size());
  for (size_t i = 0; i < expect["losses"].size(); ++i)
    EXPECT_NEAR(result.losses->losses[i], expect["losses"][i].get<double>(), 1e-6) << i;
  EXPECT_EQ(result.watch->epochs, expect["epochs_started"]);
  EXPECT_EQ(result.watch->validated_at, expect["validated_at"]);
  EXPECT_EQ(result.global_step, expect["global_step"]);
  EXPECT_EQ(result.current_epoch, expect["current_epoch"]);
}

void expect_weights_of(const Result& result, const Json& expect) {
  RestartNet net;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < result.weights.size(); ++i) net.parameters()[i].copy_(result.weights[i]);
  expect_weights(net, expect);
}

/// The same batches, losses and weights, to the last bit, from a batch on.
void expect_same_end(const Result& resumed, const Result& whole, size_t done) {
  ASSERT_EQ(resumed.losses->losses.size() + done, whole.losses->losses.size());
  for (size_t i = 0; i < resumed.losses->losses.size(); ++i) {
    EXPECT_EQ(resumed.losses->losses[i], whole.losses->losses[i + done]) << i;
    EXPECT_EQ(resumed.losses->samples[i], whole.losses->samples[i + done]) << i;
    EXPECT_EQ(resumed.losses->indices[i], whole.losses->indices[i + done]) << i;
  }
  ASSERT_EQ(resumed.weights.size(), whole.weights.size());
  for (size_t i = 0; i < whole.weights.size(); ++i) EXPECT_TRUE(resumed.weights[i].equal(whole.weights[i])) << i;
}

/// What a run that continued wrote is the end of what the whole run wrote.
void expect_same_rows(const Result& resumed, const Result& whole) {
  const auto &rows = resumed.rows->rows, &all = whole.rows->rows;
  ASSERT_LE(rows.size(), all.size());
  EXPECT_EQ(rows, Json(std::vector<Json>(all.end() - static_cast<int64_t>(rows.size()), all.end())));
}

std::string name_at(int64_t step, int64_t steps_per_epoch = 4) {
  return detail::concat("epoch=", (step - 1) / steps_per_epoch, "-step=", step, ".ckpt");
}

TEST(ConformanceRestart, UninterruptedRun) {
  const Folder folder;
  const auto whole = run(folder.path(), placed());
  expect_as_recorded(whole, restart()["whole"]);
  expect_weights_of(whole, restart()["whole"]["final"]);
  for (const auto& [name, state] : restart()["whole"]["checkpoints"].items())
    EXPECT_TRUE(std::filesystem::exists(folder.path() / name)) << name;
}

TEST(ConformanceRestart, ResumesFromEveryPlace) {
  const Folder folder;
  const auto whole = run(folder.path() / "whole", placed());
  for (const int64_t step : {2, 4, 6, 8}) {
    SCOPED_TRACE(step);
    auto expect = restart()["resumed"][name_at(step)];
    // After the last batch of an epoch Lightning leaves out the start of the next one.
    if (step % 4 == 0) expect["epochs_started"] = expect["epochs_started"].get<int64_t>() + 1;
    const auto resumed =
        run(folder.path() / std::to_string(step), placed(), {.ckpt_path = folder.path() / "whole" / name_at(step)});
    expect_as_recorded(resumed, expect);
    expect_same_end(resumed, whole, static_cast<size_t>(step));
    for (const auto& name : expect["checkpoints"])
      EXPECT_TRUE(std::filesystem::exists(folder.path() / std::to_string(step) / name.get<std::string>())) << name;
  }
}

// Lightning gives the first batches of the epoch again here (resumed_without_loader_state).
TEST(ConformanceRestart, FindsThePlaceInALoaderWithoutAState) {
  std::vector<Batch> batches;
  for (auto& batch : placed()) batches.push_back(batch);
  const Folder folder;
  const auto whole = run(folder.path() / "whole", batches);
  expect_as_recorded(whole, restart()["whole"]);
  const auto resumed = run(folder.path() / "resumed", batches, {.ckpt_path = folder.path() / "whole" / name_at(2)});
  ASSERT_NE(restart()["resumed_without_loader_state"]["samples_of_batch"], resumed.losses->samples);
  expect_same_end(resumed, whole, 2);
}

TEST(ConformanceRestart, ValidatesWhatTheCheckpointCutOff) {
  const Folder folder;
  const auto whole = run(folder.path() / "whole", placed(), {.validates = true});
  expect_as_recorded(whole, restart()["whole_validating"]);
  const auto resumed =
      run(folder.path() / "resumed", placed(), {.ckpt_path = folder.path() / "whole" / name_at(2), .validates = true});
  // The checkpoint of a batch stands before the validation that follows it. Lightning leaves that validation out.
  auto expect = restart()["resumed_validating"];
  expect["validated_at"] = restart()["whole_validating"]["validated_at"];
  expect_as_recorded(resumed, expect);
  expect_same_end(resumed, whole, 2);
  expect_same_rows(resumed, whole);
}

TEST(ConformanceRestart, ResumesInsideAnInterruptedEpoch) {
  for (const bool plateau : {false, true}) {
    const Folder folder;
    torch::manual_seed(5);
    const auto whole = run(folder.path() / "whole", placed(), {.noise = true, .plateau = plateau});
    for (const int64_t step : {1, 6, 11}) {
      SCOPED_TRACE(step);
      torch::manual_seed(5);
      const auto start = run(folder.path() / "start", placed(), {.noise = true, .plateau = plateau, .max_steps = step});
      EXPECT_EQ(start.global_step, step);
      const auto resumed =
          run(folder.path() / "resumed", placed(),
              {.ckpt_path = folder.path() / "start" / name_at(step), .noise = true, .plateau = plateau});
      expect_same_end(resumed, whole, static_cast<size_t>(step));
      expect_same_rows(resumed, whole);
    }
  }
}

TEST(ConformanceRestart, SameShuffleAndSameRandomNumbers) {
  const Folder folder;
  const auto shuffled = [] { return loader_of(16, 4, "x", /*shuffle=*/true); };
  torch::manual_seed(5);
  const auto whole = run(folder.path() / "whole", shuffled(), {.noise = true});
  const auto epoch_row = whole.rows->rows.back();
  ASSERT_TRUE(epoch_row["metrics"].contains("train_loss_epoch"));
  for (const int64_t step : {2, 4, 6, 10, 14}) {
    SCOPED_TRACE(step);
    torch::manual_seed(99);
    const auto resumed = run(folder.path() / std::to_string(step), shuffled(),
                             {.ckpt_path = folder.path() / "whole" / name_at(step), .noise = true});
    expect_same_end(resumed, whole, static_cast<size_t>(step));
    // The mean of an epoch that was cut is that of all its batches.
    EXPECT_EQ(resumed.rows->rows.back(), epoch_row);
  }
}

TEST(ConformanceRestart, AfterAWindowOfAccumulation) {
  const Folder folder;
  const auto whole = run(folder.path() / "whole", placed(), {.noise = true, .accumulate = 3});
  for (const int64_t step : {2, 4, 6}) {  // two steps an epoch, after batches 2 and 3
    SCOPED_TRACE(step);
    const auto resumed = run(folder.path() / std::to_string(step), placed(),
                             {.ckpt_path = folder.path() / "whole" / name_at(step, 2), .noise = true, .accumulate = 3});
    expect_same_end(resumed, whole, static_cast<size_t>(step) * 2);
  }
}

}  // namespace
}  // namespace levin::conformance
