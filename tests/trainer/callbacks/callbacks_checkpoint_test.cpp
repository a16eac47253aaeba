#include <cmath>
#include <fstream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/newest_checkpoint.h"
#include "levin/trainer/callbacks/checkpointing/on_exception_checkpoint.h"
#include "tests/trainer/callbacks/fake_run.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using levin::testing::FakeRun;
using levin::testing::names_in;
using levin::testing::TemporaryFolder;
using ::testing::HasSubstr;
using Names = std::set<std::string>;
using testing::error_of;

std::string name_of(std::string_view pattern, bool insert, const std::map<std::string, double>& metrics,
                    int64_t epoch = 0, int64_t step = 0) {
  return CheckpointName(pattern, insert).format(epoch, step, [&](std::string_view name) -> std::optional<double> {
    const auto found = metrics.find(std::string(name));
    return found == metrics.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(CheckpointNames, AreThoseOfLightning) {
  EXPECT_EQ(name_of("{epoch}-{step}", true, {}, 0, 64), "epoch=0-step=64");
  EXPECT_EQ(name_of("{epoch:03d}-{acc}", true, {{"acc", 0.03}}, 3), "epoch=003-acc=0.03");
  EXPECT_EQ(name_of("{epoch}_{val/loss:.5f}", true, {{"val/loss", 0.03}}, 4), "epoch=4_val/loss=0.03000");
  EXPECT_EQ(name_of("{epoch}-{val_loss:.2f}", true, {{"val_loss", 0.123456}}, 2), "epoch=2-val_loss=0.12");
  EXPECT_EQ(name_of("epoch={epoch}-validation_loss={val_loss:.2f}", false, {{"val_loss", 0.123456}}, 2),
            "epoch=2-validation_loss=0.12");
  EXPECT_EQ(name_of("{missing:d}", true, {}), "missing=0");
  EXPECT_EQ(name_of("{missing:.2f}-{missing}", true, {}), "missing=0.00-missing=0");
  EXPECT_EQ(name_of("{epoch}-{epoch_test}", true, {{"epoch_test", 2}}, 7), "epoch=7-epoch_test=2.0");
  EXPECT_EQ(name_of("{x}", false, {{"x", 1e-5}}), "1e-05");
  EXPECT_EQ(name_of("plain", true, {}), "plain");
}

TEST(CheckpointNames, RefuseWhatCannotBeFormatted) {
  EXPECT_THAT(error_of([] { CheckpointName("{epoch:zz}", true); }), HasSubstr("\"zz\" is not a format of a number"));
  EXPECT_THAT(error_of([] { CheckpointName("{epoch", true); }), HasSubstr("brace without its partner"));
  EXPECT_THAT(error_of([] { CheckpointName("a}b{epoch}", true); }), HasSubstr("brace without its partner"));
  EXPECT_THAT(error_of([] { CheckpointName("{:d}", true); }), HasSubstr("field without a name"));
}

TEST(ModelCheckpointOptions, AreChecked) {
  EXPECT_THAT(error_of([] { ModelCheckpoint({.save_top_k = -2}); }), HasSubstr("save_top_k is -2"));
  EXPECT_THAT(error_of([] { ModelCheckpoint({.save_top_k = 3}); }), HasSubstr("without a monitor"));
  EXPECT_THAT(error_of([] { ModelCheckpoint({.mode = "minn"}); }), HasSubstr("did you mean \"min\"?"));
  EXPECT_THAT(error_of([] { ModelCheckpoint({.save_last = "lnk"}); }), HasSubstr("did you mean \"link\"?"));
  EXPECT_THAT(error_of([] { ModelCheckpoint({.every_n_train_steps = -1}); }), HasSubstr("every_n_train_steps is -1"));
  EXPECT_THAT(error_of([] { ModelCheckpoint({.every_n_train_steps = 10, .every_n_epochs = 1}); }),
              HasSubstr("exclude one another"));
}

class ModelCheckpointTest : public ::testing::Test {
 protected:
  /// A callback in the test's folder, and a run of it alone.
  std::shared_ptr<ModelCheckpoint> make(ModelCheckpointOptions options) {
    if (options.dirpath.empty()) options.dirpath = dir();
    return std::make_shared<ModelCheckpoint>(std::move(options));
  }
  fs::path dir() const { return folder_.path() / "checkpoints"; }

  TemporaryFolder folder_;
};

/// One loss for each epoch.
Names kept_of(const fs::path& dir, ModelCheckpointOptions options, const std::vector<double>& losses) {
  options.dirpath = dir;
  options.filename = "{epoch}";
  FakeRun run({std::make_shared<ModelCheckpoint>(options)});
  run.fit(std::ssize(losses), 1, 1, {}, [&] { run.metrics_["loss"] = losses[run.current_epoch()]; });
  return names_in(dir);
}

Names epochs(std::initializer_list<int> numbers) {
  Names names;
  for (const int n : numbers) names.insert("epoch=" + std::to_string(n) + ".ckpt");
  return names;
}

TEST_F(ModelCheckpointTest, KeepsTheBestK) {
  const std::vector<double> losses{10, 9, 2.8, 5, 2.5};
  EXPECT_EQ(kept_of(dir() / "all", {.monitor = "loss", .save_top_k = -1}, losses), epochs({0, 1, 2, 3, 4}));
  EXPECT_EQ(kept_of(dir() / "0", {.monitor = "loss", .save_top_k = 0}, losses), Names{});
  EXPECT_EQ(kept_of(dir() / "1", {.monitor = "loss", .save_top_k = 1}, losses), epochs({4}));
  EXPECT_EQ(kept_of(dir() / "2", {.monitor = "loss", .save_top_k = 2}, losses), epochs({2, 4}));
  EXPECT_EQ(kept_of(dir() / "3", {.monitor = "loss", .save_top_k = 3}, losses), epochs({2, 3, 4}));
  EXPECT_EQ(kept_of(dir() / "4", {.monitor = "loss", .save_top_k = 4}, losses), epochs({1, 2, 3, 4}));
  EXPECT_EQ(kept_of(dir() / "max", {.monitor = "loss", .save_top_k = 2, .mode = "max"}, losses), epochs({0, 1}));
  EXPECT_EQ(kept_of(dir() / "newest", {}, losses), epochs({4}));
  EXPECT_EQ(kept_of(dir() / "newest all", {.save_top_k = -1}, losses), epochs({0, 1, 2, 3, 4}));
}

TEST_F(ModelCheckpointTest, SavesEveryNSteps) {
  auto checkpoint = make({.filename = "{step}", .save_top_k = -1, .every_n_train_steps = 16});
  FakeRun run({checkpoint});
  run.fit(2, 64, 0);
  EXPECT_EQ(names_in(dir()), (Names{"step=16.ckpt", "step=32.ckpt", "step=48.ckpt", "step=64.ckpt", "step=80.ckpt",
                                    "step=96.ckpt", "step=112.ckpt", "step=128.ckpt"}));
  EXPECT_EQ(checkpoint->best_model_path(), dir() / "step=128.ckpt");
}

TEST_F(ModelCheckpointTest, SeveralStepsInABatchDoNotPassOverATrigger) {
  auto checkpoint = make({.filename = "{step}", .save_top_k = -1, .every_n_train_steps = 5});
  FakeRun run({checkpoint});
  run.fit(1, 6, 0, [&] { ++run.progress_.global_step; });  // two optimizers: 2, 4, ..., 12
  EXPECT_EQ(names_in(dir()), (Names{"step=6.ckpt", "step=10.ckpt"}));
}

TEST_F(ModelCheckpointTest, SavesByTime) {
  double now = 0;
  auto checkpoint =
      make({.filename = "{step}", .save_top_k = -1, .train_time_interval = std::chrono::minutes(1), .clock = [&] {
              return now;
            }});
  FakeRun run({checkpoint});
  run.fit(2, 64, 0, [&] { now += 7; });
  EXPECT_EQ(names_in(dir()).size(), 14u);
}

TEST_F(ModelCheckpointTest, SavesAfterValidationWhenItIsMoreOftenThanTheEpoch) {
  auto checkpoint = make({.filename = "{step}", .monitor = "val_loss", .save_top_k = -1});
  FakeRun run({checkpoint});
  run.plan_.val_check = 0.2;
  run.fit(1, 10, 2, {}, [&] { run.metrics_["val_loss"] = 1; });
  EXPECT_EQ(names_in(dir()), (Names{"step=2.ckpt", "step=4.ckpt", "step=6.ckpt", "step=8.ckpt", "step=10.ckpt"}));
}

TEST_F(ModelCheckpointTest, NanIsTheWorst) {
  for (const auto* mode : {"min", "max"}) {
    auto checkpoint = make({.dirpath = dir() / mode, .filename = "{epoch}", .monitor = "loss", .mode = mode});
    FakeRun run({checkpoint});
    run.fit(1, 1, 1, {}, [&] { run.metrics_["loss"] = std::nan(""); });
    EXPECT_EQ(checkpoint->best_model_score(), mode == std::string("min") ? INFINITY : -INFINITY);
    run.progress_ = {};
    run.fit(3, 1, 1, {}, [&] { run.metrics_["loss"] = run.current_epoch() == 1 ? 5.0 : std::nan(""); });
    EXPECT_EQ(checkpoint->best_model_score(), 5);
    EXPECT_THAT(checkpoint->best_model_path().string(), HasSubstr("epoch=1.ckpt"));
  }
}

TEST_F(ModelCheckpointTest, TakenNamesGetAVersion) {
  const auto names = kept_of(dir(), {.monitor = "loss", .save_top_k = -1}, {1});
  fs::remove_all(dir());
  auto checkpoint = make({.filename = "name", .monitor = "loss", .save_top_k = -1});
  FakeRun run({checkpoint});
  run.fit(4, 1, 1, {}, [&] { run.metrics_["loss"] = 1; });
  EXPECT_EQ(names_in(dir()), (Names{"name.ckpt", "name-v1.ckpt", "name-v2.ckpt", "name-v3.ckpt"}));
}

TEST_F(ModelCheckpointTest, WithoutTheCounterANameIsReplaced) {
  auto checkpoint = make({.filename = "name", .monitor = "loss", .save_top_k = 2, .enable_version_counter = false});
  FakeRun run({checkpoint});
  run.fit(3, 1, 1, {}, [&] { run.metrics_["loss"] = 3 - run.current_epoch(); });
  EXPECT_EQ(names_in(dir()), Names{"name.ckpt"});
  EXPECT_EQ(checkpoint->best_k_models().size(), 1u);
  EXPECT_EQ(load_checkpoint(dir() / "name.ckpt").at("epoch").to_int(), 2);
}

TEST_F(ModelCheckpointTest, SlashesInNamesMakeFoldersWhichGoWithTheirCheckpoints) {
  auto checkpoint = make({.filename = "{epoch}_{val/loss:.5f}", .monitor = "val/loss"});
  FakeRun run({checkpoint});
  run.fit(5, 1, 1, {}, [&] { run.metrics_["val/loss"] = run.current_epoch() == 4 ? 0.03 : 1.0; });
  EXPECT_EQ(checkpoint->best_model_path(), dir() / "epoch=4_val/loss=0.03000.ckpt");
  EXPECT_TRUE(fs::exists(checkpoint->best_model_path()));
  EXPECT_EQ(names_in(dir()), Names{"epoch=4_val"});
  EXPECT_EQ(newest_checkpoint(dir()), checkpoint->best_model_path());
}

TEST_F(ModelCheckpointTest, LastIsTheNewestEvenWhenItIsNotAmongTheBest) {
  auto checkpoint = make({.monitor = "loss", .save_last = true});
  FakeRun run({checkpoint});
  run.fit(3, 2, 2, {}, [&] { run.metrics_["loss"] = 1 + run.current_epoch(); });
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0-step=2.ckpt", "last.ckpt"}));
  EXPECT_EQ(load_checkpoint(dir() / "last.ckpt").at("global_step").to_int(), 6);
  EXPECT_EQ(checkpoint->last_model_path(), dir() / "last.ckpt");
  EXPECT_EQ(checkpoint->best_model_score(), 1);
  verify_checkpoint(dir() / "last.ckpt");
}

TEST_F(ModelCheckpointTest, LastIsTheEndOfTraining) {
  auto checkpoint = make({.filename = "{step}", .save_last = true, .every_n_train_steps = 4});
  FakeRun run({checkpoint});
  run.fit(1, 6, 0);
  EXPECT_EQ(names_in(dir()), (Names{"step=4.ckpt", "last.ckpt"}));
  EXPECT_EQ(load_checkpoint(dir() / "last.ckpt").at("global_step").to_int(), 6);
}

TEST_F(ModelCheckpointTest, LastIsALinkToWhatWasKeptAtThatStep) {
  auto checkpoint = make({.monitor = "loss", .save_last = "link"});
  FakeRun run({checkpoint});
  const std::vector<double> losses{3, 2, 5, 1};
  std::vector<std::string> targets;
  const auto look = [&] {
    const auto last = dir() / "last.ckpt";
    if (fs::exists(fs::symlink_status(last)))
      targets.push_back(fs::is_symlink(last) ? fs::read_symlink(last).string() : "folder");
  };
  run.fit(4, 1, 1, look, [&] { run.metrics_["loss"] = losses[run.current_epoch()]; });
  look();
  // The third epoch was not among the best: then last is a checkpoint of its own.
  EXPECT_EQ(targets,
            (std::vector<std::string>{"epoch=0-step=1.ckpt", "epoch=1-step=2.ckpt", "folder", "epoch=3-step=4.ckpt"}));
  EXPECT_EQ(names_in(dir()), (Names{"epoch=3-step=4.ckpt", "last.ckpt"}));
  EXPECT_EQ(load_checkpoint(dir() / "last.ckpt").at("global_step").to_int(), 4);
}

TEST_F(ModelCheckpointTest, AnotherRunsLastIsLeftAlone) {
  FakeRun first({make({.save_last = true})});
  first.fit(1, 1, 0);
  auto checkpoint = make({.save_last = true});
  FakeRun second({checkpoint});
  second.fit(2, 1, 0);
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0-step=1.ckpt", "last.ckpt", "epoch=1-step=2.ckpt", "last-v1.ckpt"}));
  EXPECT_EQ(checkpoint->last_model_path(), dir() / "last-v1.ckpt");
}

TEST_F(ModelCheckpointTest, AMetricOfValidationIsWaitedFor) {
  auto checkpoint = make(
      {.filename = "{step}", .monitor = "val_loss", .save_last = true, .save_top_k = -1, .every_n_train_steps = 3});
  FakeRun run({checkpoint});
  std::vector<int64_t> last;
  run.fit(
      2, 8, 4,
      [&] {
        if (fs::exists(dir() / "last.ckpt"))
          last.push_back(load_checkpoint(dir() / "last.ckpt").at("global_step").to_int());
      },
      [&] { run.metrics_["val_loss"] = 10.0 - run.global_step(); });
  // Due at 3, 6, 9, 12 and 15; validated at 4, 8, 12 and 16.
  EXPECT_EQ(names_in(dir()), (Names{"step=4.ckpt", "step=8.ckpt", "step=12.ckpt", "step=16.ckpt", "last.ckpt"}));
  for (const auto& [path, score] : checkpoint->best_k_models())
    EXPECT_EQ(score, 10.0 - load_checkpoint(path).at("global_step").to_int());
  EXPECT_EQ(last.front(), 3);
  EXPECT_EQ(load_checkpoint(dir() / "last.ckpt").at("global_step").to_int(), 16);
}

TEST_F(ModelCheckpointTest, AMetricOfTrainingIsNot) {
  auto checkpoint = make({.filename = "{step}", .monitor = "loss", .save_top_k = -1, .every_n_train_steps = 3});
  FakeRun run({checkpoint});
  run.fit(1, 8, 4, [&] { run.metrics_["loss"] = run.global_step(); });
  EXPECT_EQ(names_in(dir()), (Names{"step=3.ckpt", "step=6.ckpt"}));
  EXPECT_EQ(checkpoint->best_model_score(), 3);
}

TEST_F(ModelCheckpointTest, AMissingMetricIsAnErrorOnceValidationHasRun) {
  FakeRun run({make({.monitor = "val_los"})});
  EXPECT_THAT(error_of([&] { run.fit(1, 1, 1, {}, [&] { run.metrics_["val_loss"] = 1; }); }),
              HasSubstr("[ModelCheckpoint] metric \"val_los\" was not logged, did you mean \"val_loss\"?"));
  FakeRun steps({make({.monitor = "val_los", .every_n_train_steps = 1})});
  EXPECT_THAT(error_of([&] { steps.fit(1, 2, 1, {}, [&] { steps.metrics_["val_loss"] = 1; }); }),
              HasSubstr("did you mean \"val_loss\"?"));
}

TEST_F(ModelCheckpointTest, WhenNothingWasDueTheEndIsKept) {
  for (const bool monitored : {false, true}) {
    const auto at = dir() / (monitored ? "monitored" : "plain");
    auto checkpoint =
        make({.dirpath = at, .filename = "{step}", .monitor = monitored ? "loss" : "", .every_n_train_steps = 100});
    FakeRun run({checkpoint});
    run.fit(1, 7, 0);
    EXPECT_EQ(names_in(at), Names{"step=7.ckpt"});
  }
  FakeRun never({make({.dirpath = dir() / "never", .every_n_epochs = 0})});
  never.fit(1, 7, 0);
  EXPECT_EQ(names_in(dir() / "never"), Names{});
}

TEST_F(ModelCheckpointTest, OneStepIsKeptOnce) {
  // Validation and the end of the epoch come at the same step.
  auto checkpoint = make({.save_top_k = -1});
  FakeRun run({checkpoint});
  run.fit(1, 2, 2);
  run.each(&Callback::on_train_epoch_end, run);
  EXPECT_EQ(names_in(dir()), Names{"epoch=0-step=2.ckpt"});
}

TEST_F(ModelCheckpointTest, NothingIsKeptInRehearsals) {
  FakeRun dev({make({.save_last = true})});
  dev.plan_.fast_dev_run = 1;
  dev.fit(1, 2, 2);
  FakeRun sanity({make({.save_last = true, .save_on_train_epoch_end = false})});
  sanity.start();
  sanity.progress_.global_step = 3;
  sanity.stage_ = Stage::kSanity;
  sanity.each(&Callback::on_validation_end, sanity);
  EXPECT_EQ(names_in(dir()), Names{});
}

TEST_F(ModelCheckpointTest, DefaultFolderIsThatOfTheLogger) {
  auto checkpoint = std::make_shared<ModelCheckpoint>();
  FakeRun run({checkpoint}, folder_.path());
  run.fit(1, 64, 0);
  EXPECT_EQ(checkpoint->best_model_path(), folder_.path() / "checkpoints" / "epoch=0-step=64.ckpt");
}

TEST_F(ModelCheckpointTest, TwoCallbacksDoNotTakeEachOthersNames) {
  auto a = make({.save_top_k = 1, .every_n_train_steps = 2});
  auto b = make({.monitor = "loss", .save_top_k = 1, .every_n_train_steps = 2});
  FakeRun run({a, b});
  run.fit(1, 4, 0, [&] { run.metrics_["loss"] = run.global_step(); });
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0-step=2-v1.ckpt", "epoch=0-step=4.ckpt"}));
  EXPECT_EQ(b->best_model_path(), dir() / "epoch=0-step=2-v1.ckpt");
}

TEST_F(ModelCheckpointTest, OldOnesGoOnlyWhenTheNewOneIsThere) {
  auto checkpoint = make({.filename = "{step}", .every_n_train_steps = 1});
  FakeRun run({checkpoint});
  run.start();
  run.train_batches_ = 2;
  std::vector<Names> seen;
  for (int i = 0; i < 2; ++i) {
    ++run.progress_.global_step;
    run.each(&Callback::on_train_batch_end, run, StepOutput(), AnyBatch(), i);
  }
  EXPECT_EQ(names_in(dir()), Names{"step=2.ckpt"});
  // A write that fails leaves the old one.
  std::ofstream(dir() / "step=3.ckpt") << "in the way";
  auto stubborn = make({.filename = "{step}", .every_n_train_steps = 1, .enable_version_counter = false});
  FakeRun failing({stubborn});
  failing.start();
  for (int i = 0; i < 2; ++i) {
    ++failing.progress_.global_step;
    failing.each(&Callback::on_train_batch_end, failing, StepOutput(), AnyBatch(), i);
  }
  ++failing.progress_.global_step;
  EXPECT_THROW(failing.each(&Callback::on_train_batch_end, failing, StepOutput(), AnyBatch(), 2), Error);
  EXPECT_TRUE(fs::exists(dir() / "step=2.ckpt" / "manifest.json"));
}

TEST_F(ModelCheckpointTest, ACheckpointKnowsItself) {
  auto checkpoint = make({.filename = "{step}", .monitor = "loss", .save_last = true, .every_n_train_steps = 2});
  FakeRun run({checkpoint});
  run.fit(1, 2, 0, [&] { run.metrics_["loss"] = 1; });
  const auto state = load_checkpoint(dir() / "step=2.ckpt").at("callbacks").to_dict().at(checkpoint->state_key());
  EXPECT_EQ(state.to_dict().at("best_model_path").to_string(), "step=2.ckpt");
  EXPECT_EQ(state.to_dict().at("last_model_path").to_string(), "last.ckpt");
}

TEST_F(ModelCheckpointTest, AResumedRunKeepsItsBest) {
  const ModelCheckpointOptions options{.filename = "{epoch}", .monitor = "loss", .save_last = true, .save_top_k = 2};
  FakeRun first({make(options)});
  first.fit(3, 1, 1, {}, [&] { first.metrics_["loss"] = 3 - first.current_epoch(); });
  EXPECT_EQ(names_in(dir()), (Names{"epoch=1.ckpt", "epoch=2.ckpt", "last.ckpt"}));
  auto checkpoint = make(options);
  FakeRun second({checkpoint});
  second.ckpt_path_ = dir() / "last.ckpt";
  second.fit(5, 1, 1, {}, [&] { second.metrics_["loss"] = second.current_epoch() == 4 ? 0.5 : 7; });
  EXPECT_EQ(names_in(dir()), (Names{"epoch=2.ckpt", "epoch=4.ckpt", "last.ckpt"}));
  EXPECT_EQ(checkpoint->best_model_score(), 0.5);
}

TEST_F(ModelCheckpointTest, WhatTheRunResumedFromIsNotDeleted) {
  const ModelCheckpointOptions options{.filename = "{step}", .every_n_train_steps = 2};
  FakeRun first({make(options)});
  first.fit(1, 2, 0);
  FakeRun second({make(options)});
  second.ckpt_path_ = dir() / "step=2.ckpt";
  second.fit(1, 4, 0);
  EXPECT_EQ(names_in(dir()), (Names{"step=2.ckpt", "step=6.ckpt"}));
}

TEST_F(ModelCheckpointTest, AMovedFolderKeepsWorking) {
  const ModelCheckpointOptions options{.filename = "{epoch}", .monitor = "loss", .save_top_k = 2};
  FakeRun first({make(options)});
  first.fit(2, 1, 1, {}, [&] { first.metrics_["loss"] = 3 - first.current_epoch(); });
  const auto moved = folder_.path() / "moved";
  fs::rename(dir(), moved);
  auto o = options;
  o.dirpath = moved;
  auto checkpoint = make(o);
  FakeRun second({checkpoint});
  second.ckpt_path_ = moved / "epoch=1.ckpt";
  second.start();
  EXPECT_EQ(checkpoint->best_k_models().size(), 2u);
  EXPECT_EQ(checkpoint->best_model_path(), moved / "epoch=1.ckpt");
  EXPECT_EQ(checkpoint->best_model_score(), 2);
}

TEST_F(ModelCheckpointTest, AnotherFolderForgetsAllButTheBest) {
  const ModelCheckpointOptions options{.filename = "{epoch}", .monitor = "loss", .save_top_k = 2};
  FakeRun first({make(options)});
  first.fit(2, 1, 1, {}, [&] { first.metrics_["loss"] = 3 - first.current_epoch(); });
  auto o = options;
  o.dirpath = folder_.path() / "other";
  auto checkpoint = make(o);
  FakeRun second({checkpoint});
  second.ckpt_path_ = dir() / "epoch=1.ckpt";
  second.start();
  EXPECT_TRUE(checkpoint->best_k_models().empty());
  EXPECT_EQ(fs::weakly_canonical(checkpoint->best_model_path()), fs::weakly_canonical(dir() / "epoch=1.ckpt"));
  EXPECT_EQ(checkpoint->best_model_score(), std::nullopt);
}

TEST_F(ModelCheckpointTest, ASecondFitStartsAgain) {
  auto checkpoint = make({.filename = "{epoch}", .monitor = "loss"});
  FakeRun run({checkpoint});
  run.fit(1, 1, 1, {}, [&] { run.metrics_["loss"] = 1; });
  run.progress_ = {};
  run.fit(1, 1, 1, {}, [&] { run.metrics_["loss"] = 5; });
  EXPECT_EQ(checkpoint->best_model_score(), 5);
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0.ckpt", "epoch=0-v1.ckpt"}));
}

TEST_F(ModelCheckpointTest, ExceptionsAreKeptWhenAsked) {
  FakeRun run({make({.filename = "{step}", .save_last = true, .save_on_exception = true, .every_n_epochs = 10})});
  run.start();
  run.progress_.global_step = 5;
  run.each(&Callback::on_exception, run, std::runtime_error("boom"));
  EXPECT_EQ(names_in(dir()), (Names{"step=5.ckpt", "last.ckpt"}));
  FakeRun silent({make({.dirpath = dir() / "silent"})});
  silent.start();
  silent.progress_.global_step = 5;
  silent.each(&Callback::on_exception, silent, std::runtime_error("boom"));
  EXPECT_EQ(names_in(dir() / "silent"), Names{});
}

TEST_F(ModelCheckpointTest, AFolderThatCannotBeWrittenIsSaidAtTheStart) {
  std::ofstream(folder_.path() / "file") << "x";
  FakeRun run({make({.dirpath = folder_.path() / "file" / "checkpoints"})});
  EXPECT_THAT(error_of([&] { run.start(); }), HasSubstr("file"));
}

TEST(OnExceptionCheckpoint, IsWrittenOnErrorAndGoesWithACleanRun) {
  TemporaryFolder folder;
  auto checkpoint = std::make_shared<OnExceptionCheckpoint>(OnExceptionCheckpointOptions{.dirpath = folder.path()});
  FakeRun run({checkpoint});
  run.start();
  run.progress_.global_step = 3;
  run.each(&Callback::on_exception, run, std::runtime_error("boom"));
  run.each(&Callback::teardown, run, std::string_view("fit"));
  EXPECT_EQ(names_in(folder.path()), Names{"on_exception.ckpt"});
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.path() / "on_exception.ckpt");
  FakeRun again({checkpoint});
  again.each(&Callback::setup, again, std::string_view("test"));
  again.each(&Callback::teardown, again, std::string_view("test"));
  EXPECT_EQ(names_in(folder.path()), Names{"on_exception.ckpt"});
  again.fit(1, 1, 0);
  EXPECT_EQ(names_in(folder.path()), Names{});
  EXPECT_THROW(OnExceptionCheckpoint({.filename = ""}), Error);
}

/// A state of the run at that place.
StateDict at_place(int64_t epoch, int64_t step) {
  return {{"epoch", epoch}, {"global_step", step}, {"x", 1}};
}

TEST(NewestCheckpoint, TakesTheFurthestWhateverItsNameAndTime) {
  TemporaryFolder folder;
  const auto save = [&](const std::string& name, int64_t epoch, int64_t step) {
    save_checkpoint(folder.path() / name, at_place(epoch, step));
  };
  EXPECT_EQ(newest_checkpoint(folder.path()), std::nullopt);
  EXPECT_EQ(newest_checkpoint(folder.path() / "missing"), std::nullopt);
  save("epoch=10-step=264.ckpt", 10, 264);
  save("epoch=9-step=240.ckpt", 9, 240);
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.path() / "epoch=10-step=264.ckpt");
  save("interrupted.ckpt", 2, 40);
  save("last.ckpt", 10, 260);
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.path() / "epoch=10-step=264.ckpt");
  save("last.ckpt", 10, 264);
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.path() / "last.ckpt") << "of equal ones";
  std::ofstream(folder.path() / "last.ckpt" / "manifest.json") << "damaged";
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.path() / "epoch=10-step=264.ckpt");
}

TEST(NewestCheckpoint, ThatAllAreDamagedIsNotThatThereIsNone) {
  TemporaryFolder folder;
  save_checkpoint(folder.path() / "one.ckpt", at_place(1, 1));
  std::ofstream(folder.path() / "one.ckpt" / "manifest.json") << "damaged";
  EXPECT_THAT(error_of([&] { newest_checkpoint(folder.path()); }), HasSubstr("none of the 1 checkpoints"));
  std::filesystem::remove(folder.path() / "one.ckpt" / "manifest.json");
  EXPECT_THAT(error_of([&] { newest_checkpoint(folder.path()); }), HasSubstr("none of the 1 checkpoints"));
  save_checkpoint(folder.path() / "two.ckpt", at_place(0, 1));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder.path() / "two.ckpt");
}

/// Names of files that are one with another.
size_t shared_files(const std::filesystem::path& folder) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.hard_link_count() > 1) ++count;
  return count;
}

TEST_F(ModelCheckpointTest, LastIsACopyThatSharesNoFile) {
  auto checkpoint = make({.save_last = true, .every_n_train_steps = 1});
  FakeRun run({checkpoint}, folder_.path());
  run.fit(1, 3, 0);
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0-step=3.ckpt", "last.ckpt"}));
  EXPECT_EQ(shared_files(dir()), 0u);
  for (const auto& file : std::filesystem::directory_iterator(dir() / "epoch=0-step=3.ckpt"))
    EXPECT_EQ(read_file(file.path()), read_file(dir() / "last.ckpt" / file.path().filename()));
  verify_checkpoint(dir() / "last.ckpt");
}

/// A run that looked for its checkpoint itself.
struct Restarted : FakeRun {
  using FakeRun::FakeRun;
  bool resumes_last() const override { return true; }
};

TEST_F(ModelCheckpointTest, AResumedRunDeletesWhatTheOneBeforeCouldNot) {
  const auto options = ModelCheckpointOptions{.every_n_train_steps = 1};
  {
    FakeRun run({make(options)}, folder_.path());
    run.fit(1, 3, 0);
  }
  // Killed after step 4 was written and before step 3 was deleted; a file of somebody else lies there, too.
  {
    FakeRun run({make(options)}, folder_.path());
    run.ckpt_path_ = dir() / "epoch=0-step=3.ckpt";
    run.start();
    run.progress_.global_step = 4;
    run.each(&Callback::on_train_batch_end, run, StepOutput(), AnyBatch(), int64_t{0});
    save_checkpoint(dir() / "mine.ckpt", at_place(0, 1));
  }
  ASSERT_EQ(names_in(dir()), (Names{"epoch=0-step=3.ckpt", "epoch=0-step=4.ckpt", "mine.ckpt"}));
  Restarted run({make(options)}, folder_.path());
  run.ckpt_path_ = dir() / "epoch=0-step=4.ckpt";
  run.start();
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0-step=4.ckpt", "mine.ckpt"}));
  run.progress_.global_step = 5;
  run.each(&Callback::on_train_batch_end, run, StepOutput(), AnyBatch(), int64_t{0});
  EXPECT_EQ(names_in(dir()), (Names{"epoch=0-step=5.ckpt", "mine.ckpt"})) << "the one resumed from goes like any other";
}

}  // namespace
}  // namespace levin
