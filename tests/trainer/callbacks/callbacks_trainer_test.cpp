// Callbacks in real runs: resuming from a checkpoint, exceptions, predictions.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/io/weights/safetensors.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/callbacks/lambda.h"
#include "levin/trainer/callbacks/model_summary.h"
#include "levin/trainer/callbacks/prediction_writer.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/callbacks/timer.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"
#include "tests/trainer/callbacks/fake_run.h"

namespace levin {
namespace {

using levin::testing::names_in;
using levin::testing::TemporaryFolder;
using ::testing::HasSubstr;
using trainer_test::boring_loader;
using Names = std::set<std::string>;

struct Logging : trainer_test::Boring {
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    auto loss = loss_of(batch);
    log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    auto loss = loss_of(batch);
    log("val_loss", loss, {.prog_bar = true});
    return loss;
  }
};

class CallbacksInRuns : public ::testing::Test {
 protected:
  TrainerOptions options(std::vector<CallbackRef> callbacks, int64_t max_epochs = 1) {
    TrainerOptions o;
    o.accelerator = "cpu";
    o.logger = false;
    o.callbacks = std::move(callbacks);
    o.max_epochs = max_epochs;
    o.enable_progress_bar = false;
    o.enable_model_summary = false;
    o.default_root_dir = folder_.path();
    return o;
  }
  std::filesystem::path dir() const { return folder_.path() / "checkpoints"; }

  TemporaryFolder folder_;
};

struct Estimating : trainer_test::Boring {
  Optimizers configure_optimizers() override {
    estimated = trainer().estimated_stepping_batches();
    return Boring::configure_optimizers();
  }
  std::optional<int64_t> estimated;
};

TEST_F(CallbacksInRuns, TheEstimateOfStepsFollowsTheScheduleOfAccumulation) {
  Estimating module;
  Trainer trainer(options({GradientAccumulationScheduler({.scheduling = {{0, 4}, {2, 2}}})}, 3));
  trainer.fit(module, boring_loader(10), boring_loader(2));
  EXPECT_EQ(trainer.global_step(), 3 + 3 + 5);
  EXPECT_EQ(module.estimated, trainer.global_step());
}

TEST_F(CallbacksInRuns, AResumedRunEndsWithTheSameCheckpoints) {
  // Every save of the whole run must come again in a run that was cut off and continues, with the same weights.
  struct Ending : Logging {
    StepOutput training_step(const Batch& batch, const StepInfo& at) override {
      LEVIN_CHECK(global_step() != ends_at, "[test] the run is cut off here");
      return Logging::training_step(batch, at);
    }
    int64_t ends_at = -1;
  };
  const auto fit = [&](const std::string& name, int64_t ends_at, const std::string& from) {
    torch::manual_seed(3);
    Ending module;
    module.ends_at = ends_at;
    auto kept = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_.path() / name,
                                                                         .filename = "{step}",
                                                                         .monitor = "val_loss",
                                                                         .save_last = true,
                                                                         .save_top_k = 2,
                                                                         .every_n_train_steps = 3});
    auto o = options({kept, EarlyStopping({.monitor = "val_loss", .patience = 100}), Timer({.duration = "1 h"})}, 4);
    o.val_check_interval = 2;
    Trainer trainer(o);
    try {
      trainer.fit(module, boring_loader(32, 4), boring_loader(8, 4), {.ckpt_path = from});
    } catch (const Error&) {
      EXPECT_GE(ends_at, 0);
    }
    return std::pair(kept->best_k_models(), module.layer->weight.detach().clone());
  };
  const auto [whole, weights] = fit("whole", -1, "");
  for (const int64_t cut : {4, 7, 10, 13, 25}) {
    SCOPED_TRACE(cut);
    const auto name = "cut at " + std::to_string(cut);
    fit(name, cut, "");
    const auto [parts, again] = fit(name, -1, (folder_.path() / name / "last.ckpt").string());
    EXPECT_TRUE(weights.equal(again));
    ASSERT_EQ(whole.size(), parts.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_EQ(whole[i].first.filename(), parts[i].first.filename());
      EXPECT_EQ(whole[i].second, parts[i].second);
    }
    EXPECT_EQ(names_in(folder_.path() / "whole"), names_in(folder_.path() / name));
  }
}

TEST_F(CallbacksInRuns, TheNewestIsKeptWithoutBeingAsked) {
  trainer_test::Boring module;
  Trainer trainer(options({}, 2));
  trainer.fit(module, boring_loader(8, 2));
  EXPECT_EQ(names_in(dir()), Names{"epoch=1-step=8.ckpt"});
  ASSERT_NE(trainer.callback<ModelCheckpoint>(), nullptr);
  EXPECT_EQ(trainer.callback<ModelCheckpoint>()->best_model_path(), dir() / "epoch=1-step=8.ckpt");
  EXPECT_EQ(newest_checkpoint(dir()), dir() / "epoch=1-step=8.ckpt");
}

struct Failing : trainer_test::Boring {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    LEVIN_CHECK(at.batch_idx != fails_at, "[test] this batch fails");
    return loss_of(batch);
  }
  int64_t fails_at = 5;
};

TEST_F(CallbacksInRuns, ExceptionsAreKeptAndResumedFrom) {
  for (const int64_t accumulate : {1, 4}) {
    SCOPED_TRACE(accumulate);
    Failing module;
    auto o = options(
        {OnExceptionCheckpoint({.dirpath = dir()}), ModelCheckpoint({.dirpath = dir(), .save_on_exception = true})});
    o.accumulate_grad_batches = accumulate;
    {
      Trainer trainer(o);
      EXPECT_THROW(trainer.fit(module, boring_loader(8, 1)), Error);
    }
    const auto steps = accumulate == 1 ? 5 : 1;
    EXPECT_EQ(names_in(dir()), (Names{"on_exception.ckpt", "epoch=0-step=" + std::to_string(steps) + ".ckpt"}));
    EXPECT_EQ(load_checkpoint(dir() / "on_exception.ckpt").at("global_step").to_int(), steps);
    module.fails_at = -1;
    Trainer trainer(o);
    trainer.fit(module, boring_loader(8, 1), {}, {.ckpt_path = "last"});
    EXPECT_EQ(trainer.global_step(), accumulate == 1 ? 8 : 2);
    EXPECT_FALSE(std::filesystem::exists(dir() / "on_exception.ckpt"));
    std::filesystem::remove_all(dir());
  }
}

/// Saves under a name that Ctrl-C gives, after a batch.
struct Interrupts : Callback {
  Interrupts(std::filesystem::path where, int64_t step) : path(std::move(where)), at(step) {}
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) override {
    if (run.global_step() == at) run.save_checkpoint(path);
  }
  std::filesystem::path path;
  int64_t at;
};

TEST_F(CallbacksInRuns, LastIsTheFurthestAndNotTheOneThatCtrlCLeft) {
  const auto fit = [&](int64_t epochs, const std::string& from, std::vector<CallbackRef> callbacks) {
    trainer_test::Boring module;
    Trainer trainer(options(std::move(callbacks), epochs));
    trainer.fit(module, boring_loader(8, 2), {}, {.ckpt_path = from});
    return trainer.global_step();
  };
  fit(2, "", {Interrupts(dir() / "interrupted.ckpt", 3)});
  ASSERT_EQ(names_in(dir()), (Names{"epoch=1-step=8.ckpt", "interrupted.ckpt"}));
  const auto text = testing::captured_stderr([&] { fit(3, "last", {}); });
  EXPECT_THAT(text, ::testing::HasSubstr("interrupted.ckpt, which is at epoch 0, step 3; epoch=1-step=8.ckpt is at"));
  EXPECT_THAT(text, ::testing::HasSubstr("resumes from " + (dir() / "epoch=1-step=8.ckpt").string()));
  EXPECT_EQ(names_in(dir()), (Names{"epoch=2-step=12.ckpt"})) << "what the run before has left is this one's";

  std::ofstream(dir() / "epoch=2-step=12.ckpt" / "state.json") << "damaged";
  EXPECT_THAT(testing::error_of([&] { fit(4, "last", {}); }),
              ::testing::HasSubstr("none of the 1 checkpoints in \"" + dir().string() +
                                   "\" can be loaded, and the lines above say why; without ckpt_path the run starts"));
  EXPECT_EQ(fit(1, "", {}), 4);
}

/// A checkpoint as a cluster's signal leaves it in the root folder, of a whole run.
void leave_of_a_cluster(const std::filesystem::path& path, TrainerOptions o) {
  Logging module;
  Trainer trainer(std::move(o));
  trainer.fit(module, boring_loader(8, 2));
  trainer.save_checkpoint(path);
}

TEST_F(CallbacksInRuns, LastIsTheFurthestOfAClustersCheckpointsToo) {
  const auto resume = [&](int64_t epochs) {
    return testing::captured_stderr([&] {
      Logging module;
      Trainer(options({}, epochs)).fit(module, boring_loader(8, 2), {}, {.ckpt_path = "last"});
    });
  };
  const auto hpc = folder_.path() / "hpc_ckpt_3.ckpt";
  TemporaryFolder elsewhere;
  auto two = options({}, 2);
  two.default_root_dir = elsewhere.path();
  two.enable_checkpointing = false;
  leave_of_a_cluster(hpc, two);
  EXPECT_THAT(resume(3), HasSubstr("resumes from " + hpc.string()));
  ASSERT_EQ(names_in(dir()), (Names{"epoch=2-step=12.ckpt"}));
  const auto text = resume(4);
  EXPECT_THAT(text, HasSubstr("hpc_ckpt_3.ckpt, which is at epoch"));
  EXPECT_THAT(text, HasSubstr("resumes from " + (dir() / "epoch=2-step=12.ckpt").string()));
  // Damaged, it is passed over; where it is all there is, the run refuses.
  std::filesystem::resize_file(hpc / "model.safetensors", 10);
  EXPECT_THAT(resume(5), HasSubstr("resumes from " + (dir() / "epoch=3-step=16.ckpt").string()));
  std::filesystem::remove_all(dir());
  EXPECT_THAT(testing::error_of([&] { resume(5); }), HasSubstr("can be loaded"));
}

TEST_F(CallbacksInRuns, TheFurthestOfTheFoldersOfAllCheckpointsCounts) {
  const auto keeping = [&](int64_t epochs) {
    return options({ModelCheckpoint({.dirpath = folder_.path() / "by_epoch", .every_n_epochs = 2}),
                    ModelCheckpoint({.dirpath = folder_.path() / "by_step", .every_n_train_steps = 5})},
                   epochs);
  };
  Logging module;
  Trainer(keeping(3)).fit(module, boring_loader(8, 2));
  ASSERT_EQ(names_in(folder_.path() / "by_epoch"), (Names{"epoch=1-step=8.ckpt"}));
  const auto text = testing::captured_stderr(
      [&] { Trainer(keeping(4)).fit(module, boring_loader(8, 2), {}, {.ckpt_path = "last"}); });
  EXPECT_THAT(text, HasSubstr("resumes from " + (folder_.path() / "by_step/epoch=2-step=10.ckpt").string()));
}

TEST_F(CallbacksInRuns, EvaluatingTheLastOfNothingIsRefused) {
  Logging module;
  Trainer trainer(options({}));
  for (const char* stage : {"test", "validate", "predict"}) {
    const auto line = testing::error_of([&] {
      if (stage == std::string("test")) trainer.test(module, boring_loader(2), {.ckpt_path = "last"});
      if (stage == std::string("validate")) trainer.validate(module, boring_loader(2), {.ckpt_path = "last"});
      if (stage == std::string("predict")) trainer.predict(module, boring_loader(2), {.ckpt_path = "last"});
    });
    EXPECT_THAT(line, HasSubstr("there is no checkpoint in")) << stage;
  }
  auto one = options({}, 1);
  one.enable_checkpointing = false;
  leave_of_a_cluster(folder_.path() / "hpc_ckpt_1.ckpt", one);
  const auto text = testing::captured_stderr([&] { trainer.test(module, boring_loader(2), {.ckpt_path = "last"}); });
  EXPECT_THAT(text, HasSubstr("weights from"));
  EXPECT_THAT(text, HasSubstr("hpc_ckpt_1.ckpt"));
}

TEST_F(CallbacksInRuns, AccumulationIsSetForARunThatResumesInsideAnEpoch) {
  const auto fit = [&](int64_t max_steps, const std::string& from) {
    torch::manual_seed(3);
    trainer_test::Boring module;
    auto o = options({GradientAccumulationScheduler({.scheduling = {{0, 4}}}),
                      ModelCheckpoint({.filename = "{step}", .save_top_k = -1, .every_n_train_steps = 1})});
    o.max_steps = max_steps;
    Trainer trainer(o);
    trainer.fit(module, boring_loader(16, 1), {}, {.ckpt_path = from});
    return trainer.global_step();
  };
  EXPECT_EQ(fit(2, ""), 2);
  EXPECT_EQ(fit(-1, (dir() / "step=2.ckpt").string()), 4);
}

TEST_F(CallbacksInRuns, SchedulingIsRefusedWhereItCannotBe) {
  trainer_test::Boring module;
  auto o = options({GradientAccumulationScheduler({.scheduling = {{0, 4}}})});
  o.accumulate_grad_batches = 2;
  Trainer trainer(o);
  EXPECT_THROW(trainer.fit(module, boring_loader(8, 1)), Error);
  module.automatic_optimization = false;
  Trainer manual(options({GradientAccumulationScheduler({.scheduling = {{0, 4}}})}));
  EXPECT_THROW(manual.fit(module, boring_loader(8, 1)), Error);
}

TEST_F(CallbacksInRuns, PredictionsAreWritten) {
  trainer_test::Boring module;
  const auto out = folder_.path() / "out";
  Trainer trainer(options({SafetensorsPredictionWriter({.output_dir = out, .write_interval = "batch_and_epoch"})}));
  const auto kept = trainer.predict(module, boring_loader(6, 2), {.return_predictions = false});
  EXPECT_TRUE(kept.empty() || kept.front().empty());
  EXPECT_EQ(names_in(out), (Names{"batch_00000-rank_0.safetensors", "batch_00001-rank_0.safetensors",
                                  "batch_00002-rank_0.safetensors", "predictions-rank_0.safetensors"}));
  const auto expected = trainer.predict(module, boring_loader(6, 2));
  SafetensorsFile file(out / "predictions-rank_0.safetensors");
  EXPECT_TRUE(file.read("0/2/prediction").equal(expected[0][2].loss));
}

TEST_F(CallbacksInRuns, ABarOfPlainLines) {
  char* data = nullptr;
  size_t size = 0;
  auto* file = ::open_memstream(&data, &size);
  Logging module;
  {
    auto o = options(
        {TrainerProgressBar({.file = file, .lines = file, .live = false}), ModelSummary(),
         LambdaCallback({.on_train_epoch_end = [](TrainerContext& run) { run.print("epoch ", run.current_epoch()); }})},
        2);
    o.enable_progress_bar = {};
    o.enable_model_summary = {};
    Trainer trainer(o);
    trainer.fit(module, boring_loader(8, 2), boring_loader(4, 2));
  }
  std::fclose(file);
  const std::string text(data, size);
  std::free(data);
  EXPECT_THAT(text, HasSubstr("Total params"));
  EXPECT_THAT(text, HasSubstr("epoch 0\nEpoch 1/2 100% 4/4"));
  EXPECT_THAT(text, HasSubstr("epoch 1\nEpoch 2/2 100% 4/4"));
  EXPECT_THAT(text, HasSubstr("  train_loss_epoch "));
  EXPECT_THAT(text, HasSubstr("  val_loss "));
}

TEST_F(CallbacksInRuns, TimeCountsOnOverRuns) {
  double now = 0;
  const TimerOptions timer{.duration = std::chrono::seconds(10), .verbose = false, .clock = [&] { return now; }};
  const auto fit = [&](int64_t max_steps, const std::string& from) {
    trainer_test::Boring module;
    auto o = options({Timer(timer), LambdaCallback({.on_train_batch_end = [&](auto&&...) { now += 3; }}),
                      ModelCheckpoint({.filename = "{step}", .save_top_k = -1, .every_n_train_steps = 1})});
    o.max_steps = max_steps;
    Trainer trainer(o);
    trainer.fit(module, boring_loader(16, 1), {}, {.ckpt_path = from});
    return trainer.global_step();
  };
  EXPECT_EQ(fit(2, ""), 2);
  now += 1000;
  // The Timer looks before the time of a batch is added: 0, 3 | 6, 9, 12.
  EXPECT_EQ(fit(-1, (dir() / "step=2.ckpt").string()), 5);
}

}  // namespace
}  // namespace levin
