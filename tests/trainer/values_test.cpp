// What the Trainer refuses before anything starts, field by field, and how values are written as text.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/trainer.h"

namespace levin {
namespace {

using namespace std::chrono_literals;
using namespace levin::literals;
using testing::error_of;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Refused by the constructor of the Trainer, in one line that names the option.
void expect_refused(const char* says, TrainerOptions options) {
  if (options.accelerator == "auto") options.accelerator = "cpu";
  if (!options.logger.is_set()) options.logger = false;
  const auto line = error_of([&] { const Trainer trainer(std::move(options)); });
  EXPECT_THAT(line, HasSubstr(says));
  EXPECT_EQ(line.front(), '[') << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

TEST(TrainerValues, DevicesAreThoseOfFabric) {
  expect_refused("\"cpuu\" is not known", {.accelerator = "cpuu"});
  EXPECT_THAT(error_of([] { resolve_trainer(TrainerOptions{.accelerator = "gpu"}, 0); }),
              HasSubstr("accelerator \"gpu\""));
  expect_refused("did you mean \"ddp\"?", {.strategy = "dddp"});
  expect_refused("leaves nothing to run on", {.devices = 0});
  expect_refused("leaves nothing to run on", {.devices = "0"});
  expect_refused("devices -2 is not allowed", {.devices = -2});
  expect_refused("devices \"two\"", {.devices = "two"});
  expect_refused("empty list", {.devices = std::vector<int>{}});
  expect_refused("num_nodes 0 is not allowed", {.num_nodes = 0});
  expect_refused("num_nodes -1 is not allowed", {.num_nodes = -1});
  expect_refused("precision \"fp16\"", {.precision = "fp16"});
  // Who started the processes is looked up when they start.
  Trainer trainer({.accelerator = "cpu", .logger = false, .plugins = {.cluster_environment = "slrm"}});
  EXPECT_THAT(error_of([&] { trainer.launch(); }), HasSubstr("did you mean \"slurm\"?"));
}

TEST(TrainerValues, LoggersCallbacksAndProfiler) {
  expect_refused("did you mean \"tensorboard\"?", {.logger = "tensorbord"});
  expect_refused("\"cvs\"", {.logger = "json,cvs"});
  expect_refused("a logger is empty", {.logger = {std::shared_ptr<Logger>()}});
  expect_refused("a callback is empty", {.callbacks = {std::shared_ptr<Callback>()}});
  expect_refused("two callbacks keep a state under the key",
                 {.callbacks = {EarlyStopping({.monitor = "loss"}), EarlyStopping({.monitor = "loss"})}});
  expect_refused("more than one progress bar", {.callbacks = {TrainerProgressBar(), TrainerProgressBar()}});
  expect_refused("enable_checkpointing is false", {.callbacks = {ModelCheckpoint()}, .enable_checkpointing = false});
  expect_refused("enable_progress_bar is false", {.callbacks = {TrainerProgressBar()}, .enable_progress_bar = false});
  expect_refused("did you mean \"simple\"?", {.profiler = "simpel"});
}

TEST(TrainerValues, Length) {
  expect_refused("fast_dev_run -1 is not allowed", {.fast_dev_run = -1});
  expect_refused("max_epochs -2 is not allowed", {.max_epochs = -2});
  expect_refused("min_epochs -1 is not allowed", {.min_epochs = -1});
  expect_refused("max_steps -2 is not allowed", {.max_steps = -2});
  expect_refused("min_steps -1 is not allowed", {.min_steps = -1});
  expect_refused("min_epochs 3 is more than max_epochs 2", {.max_epochs = 2, .min_epochs = 3});
  expect_refused("min_steps 3 is more than max_steps 2", {.max_steps = 2, .min_steps = 3});
  expect_refused("max_time", {.max_time = Duration(-1s)});
  expect_refused("max_time", {.max_time = Duration(std::chrono::duration<double>(kNan))});
}

TEST(TrainerValues, Limits) {
  for (const Limit& limit : {Limit(-1), Limit(1.2), Limit(-0.5), Limit(kNan), Limit(kInf), Limit("-3")}) {
    expect_refused("limit_train_batches", {.limit_train_batches = limit});
    expect_refused("limit_val_batches", {.limit_val_batches = limit});
    expect_refused("limit_test_batches", {.limit_test_batches = limit});
    expect_refused("limit_predict_batches", {.limit_predict_batches = limit});
    expect_refused("overfit_batches", {.overfit_batches = limit});
  }
}

TEST(TrainerValues, Validation) {
  for (const Interval& interval :
       {Interval(0), Interval(-1), Interval(0.0), Interval(1.5), Interval(-0.1), Interval(kNan), Interval(0_steps),
        Interval("0 steps"), Interval(0s), Interval("00:00:00:00"), Interval(-5s)})
    expect_refused("val_check_interval", {.val_check_interval = interval});
  expect_refused("check_val_every_n_epoch", {.val_check_interval = 0.5, .check_val_every_n_epoch = std::nullopt});
  expect_refused("check_val_every_n_epoch 0 is not allowed", {.check_val_every_n_epoch = 0});
  expect_refused("check_val_every_n_epoch -1 is not allowed", {.check_val_every_n_epoch = -1});
  expect_refused("num_sanity_val_steps -2 is not allowed", {.num_sanity_val_steps = -2});
}

TEST(TrainerValues, OptimizationAndTheRest) {
  expect_refused("log_every_n_steps -1 is not allowed", {.log_every_n_steps = -1});
  expect_refused("accumulate_grad_batches 0 is not allowed", {.accumulate_grad_batches = 0});
  expect_refused("accumulate_grad_batches -2 is not allowed", {.accumulate_grad_batches = -2});
  expect_refused("gradient_clip_val", {.gradient_clip_val = kNan});
  expect_refused("gradient_clip_val", {.gradient_clip_val = kInf});
  expect_refused("did you mean \"norm\"?", {.gradient_clip_val = 1, .gradient_clip_algorithm = "norn"});
  expect_refused("reload_dataloaders_every_n_epochs -1 is not allowed", {.reload_dataloaders_every_n_epochs = -1});
}

TEST(TrainerValues, BarebonesGoesWithNothing) {
  expect_refused("enable_checkpointing", {.enable_checkpointing = true, .barebones = true});
  expect_refused("logger", {.logger = true, .barebones = true});
  expect_refused("logger", {.logger = "csv", .barebones = true});
  expect_refused("enable_progress_bar", {.enable_progress_bar = true, .barebones = true});
  expect_refused("enable_model_summary", {.enable_model_summary = true, .barebones = true});
  expect_refused("num_sanity_val_steps", {.num_sanity_val_steps = 1, .barebones = true});
  expect_refused("log_every_n_steps", {.log_every_n_steps = 1, .barebones = true});
  expect_refused("fast_dev_run", {.fast_dev_run = 1, .barebones = true});
  expect_refused("detect_anomaly", {.detect_anomaly = true, .barebones = true});
  expect_refused("profiler", {.profiler = "simple", .barebones = true});
  expect_refused("ModelCheckpoint", {.callbacks = {ModelCheckpoint()}, .barebones = true});
  expect_refused("progress bar", {.callbacks = {TrainerProgressBar()}, .barebones = true});
}

TEST(TrainerValues, DefaultsAreThoseOfLightning) {
  const auto plan = resolve_trainer(TrainerOptions{.accelerator = "cpu"}, 0);
  EXPECT_EQ(plan.max_epochs, 1000);
  EXPECT_TRUE(plan.max_epochs_is_default);
  EXPECT_EQ(plan.max_steps, -1);
  EXPECT_EQ(plan.min_epochs, 0);
  EXPECT_TRUE(plan.limit_train.is_all());
  EXPECT_EQ(plan.val_check.fraction(), 1.0);
  EXPECT_EQ(plan.check_val_every_n_epoch, 1);
  EXPECT_EQ(plan.sanity_steps, 2);
  EXPECT_EQ(plan.log_every_n_steps, 50);
  EXPECT_EQ(plan.accumulate, 1);
  EXPECT_EQ(plan.clip_val, 0);
  EXPECT_FALSE(plan.clips_value);
  EXPECT_FALSE(plan.deterministic.is_set());

  EXPECT_EQ(resolve_trainer(TrainerOptions{.accelerator = "cpu", .max_steps = 5}, 0).max_epochs, -1);
  EXPECT_EQ(resolve_trainer(TrainerOptions{.accelerator = "cpu", .max_time = "00:01:00:00"}, 0).max_epochs, -1);
  EXPECT_EQ(resolve_trainer(TrainerOptions{.accelerator = "cpu", .min_steps = 5}, 0).min_epochs, 1);
  // As in Lightning, a clip value of 0 or less is none.
  EXPECT_LE(resolve_trainer(TrainerOptions{.accelerator = "cpu", .gradient_clip_val = -1}, 0).clip_val, 0);

  const auto quick = resolve_trainer(
      TrainerOptions{.accelerator = "cpu", .fast_dev_run = 3, .max_epochs = 7, .limit_val_batches = 0}, 0);
  EXPECT_EQ(quick.max_epochs, 1);
  EXPECT_EQ(quick.max_steps, 3);
  EXPECT_EQ(quick.limit_train.count(), 3);
  EXPECT_EQ(quick.limit_val.count(), 3);
  EXPECT_EQ(quick.sanity_steps, 0);
  EXPECT_FALSE(quick.checkpoints);
}

TEST(TrainerValues, LimitAsText) {
  EXPECT_EQ(Limit("0.25").fraction(), 0.25);
  EXPECT_TRUE(Limit("0.25").is_fraction());
  EXPECT_EQ(Limit("10").count(), 10);
  EXPECT_FALSE(Limit("10").is_fraction());
  EXPECT_EQ(Limit(" 7 batches ").count(), 7);
  EXPECT_EQ(Limit(7_batches).count(), 7);
  EXPECT_TRUE(Limit("1.0").is_all());
  EXPECT_FALSE(Limit("1").is_all());
  EXPECT_TRUE(Limit("0").is_zero());
  EXPECT_TRUE(Limit("0.0").is_zero());
  EXPECT_EQ(Limit("1e-3").fraction(), 1e-3);
  for (const Limit& limit : {Limit(1), Limit(1.0), Limit(0.25), Limit(1e-5), Limit(12345678901)}) {
    const auto text = limit.to_string();
    EXPECT_EQ(Limit(text).is_fraction(), limit.is_fraction()) << text;
    EXPECT_EQ(Limit(text).fraction(), limit.fraction()) << text;
    EXPECT_EQ(Limit(text).count(), limit.count()) << text;
  }
  EXPECT_EQ(Limit(1).to_string(), "1");
  EXPECT_EQ(Limit(1.0).to_string(), "1.0");
  for (const char* text : {"", "some", "10 steps", "0.5 batches", "1.2.3", "0,5", "nan", "inf", "10%"})
    EXPECT_THAT(error_of([&] { Limit{text}; }), HasSubstr("is no limit")) << text;
}

TEST(TrainerValues, IntervalAsText) {
  using Unit = Interval::Unit;
  EXPECT_EQ(Interval("0.25").unit(), Unit::kFraction);
  EXPECT_EQ(Interval("0.25").fraction(), 0.25);
  EXPECT_EQ(Interval("1.0").unit(), Unit::kFraction);
  EXPECT_EQ(Interval("100").unit(), Unit::kBatches);
  EXPECT_EQ(Interval("100 batches").count(), 100);
  EXPECT_EQ(Interval("500 steps").unit(), Unit::kSteps);
  EXPECT_EQ(Interval("500 steps").count(), 500);
  EXPECT_EQ(Interval(500_steps).unit(), Unit::kSteps);
  EXPECT_EQ(Interval("30 min").unit(), Unit::kTime);
  EXPECT_EQ(Interval("30 min").seconds(), 1800);
  EXPECT_EQ(Interval("00:00:30:00").seconds(), 1800);
  EXPECT_EQ(Interval(90s).seconds(), 90);
  for (const Interval& interval :
       {Interval(0.5), Interval(3), Interval(3_steps), Interval(90s), Interval(1500ms), Interval(1e-6)}) {
    const auto text = interval.to_string();
    EXPECT_EQ(Interval(text).unit(), interval.unit()) << text;
    EXPECT_EQ(Interval(text).fraction(), interval.fraction()) << text;
  }
  for (const char* text : {"", "often", "0.5 steps", "10 epochs", "1:2:3", "-3 s", "nan", "5 minuets"})
    EXPECT_THAT(error_of([&] { Interval{text}; }), HasSubstr("is no interval")) << text;
}

TEST(TrainerValues, DurationAsText) {
  EXPECT_EQ(Duration("01:02:03:04").seconds(), 86400 + 2 * 3600 + 3 * 60 + 4);
  EXPECT_EQ(Duration("90 min").seconds(), 5400);
  EXPECT_EQ(Duration("90min").seconds(), 5400);
  EXPECT_EQ(Duration("1.5 h").seconds(), 5400);
  EXPECT_EQ(Duration("2 days").seconds(), 172800);
  EXPECT_EQ(Duration("1 s").seconds(), 1);
  EXPECT_EQ(Duration(1500ms).seconds(), 1.5);
  EXPECT_EQ(Duration(93784s).to_string(), "01:02:03:04");
  EXPECT_EQ(Duration(1500ms).to_string(), "1.5 s");
  for (const char* text : {"", "90", "soon", "1:2:3", "1:2:3:4:5", "00:00:-1:00", "a:b:c:d", "-5 s", "5 y",
                           ":::", "nan s", "99999999999999999999:00:00:00"})
    EXPECT_THAT(error_of([&] { Duration{text}; }), HasSubstr("is no time")) << text;
}

TEST(TrainerValues, DeterministicAsText) {
  EXPECT_FALSE(Deterministic().is_set());
  EXPECT_TRUE(Deterministic(true).is_on());
  EXPECT_TRUE(Deterministic("true").is_on());
  EXPECT_FALSE(Deterministic("true").only_warns());
  EXPECT_TRUE(Deterministic("warn").is_on());
  EXPECT_TRUE(Deterministic("warn").only_warns());
  EXPECT_TRUE(Deterministic(false).is_set());
  EXPECT_FALSE(Deterministic("false").is_on());
  EXPECT_THAT(error_of([] { Deterministic("wran"); }), HasSubstr("did you mean \"warn\"?"));
}

}  // namespace
}  // namespace levin
