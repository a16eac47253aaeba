#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "levin/testing/ranks.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/callbacks/timer.h"
#include "tests/trainer/callbacks/fake_run.h"

namespace levin {
namespace {

using levin::testing::FakeRun;
using testing::error_of;
using ::testing::HasSubstr;

struct Stopped {
  int64_t epoch;
  StoppingReason reason;
  std::string message;
};

Stopped stop_of(const EarlyStoppingOptions& options, const std::vector<double>& losses) {
  auto callback = std::make_shared<EarlyStopping>(options);
  FakeRun run({callback});
  run.fit(std::ssize(losses), 1, 1, {}, [&] { run.metrics_["val_loss"] = losses[run.current_epoch()]; });
  EXPECT_EQ(run.should_stop(), callback->stopping_reason() != StoppingReason::kNotStopped);
  EXPECT_EQ(callback->stopped_epoch(), run.should_stop() ? run.current_epoch() - 1 : 0);
  return {run.current_epoch() - 1, callback->stopping_reason(), run.stop_reason_};
}

TEST(EarlyStopping, StopsWherePatienceEnds) {
  const auto epoch = [](int64_t patience, std::vector<double> losses) {
    const auto stopped = stop_of({.monitor = "val_loss", .patience = patience}, losses);
    EXPECT_EQ(stopped.reason, StoppingReason::kPatienceExhausted);
    return stopped.epoch;
  };
  EXPECT_EQ(epoch(3, {6, 5, 5, 5, 5, 5}), 4);
  EXPECT_EQ(epoch(1, {6, 5, 4, 4, 3, 3}), 3);
  EXPECT_EQ(epoch(3, {6, 5, 6, 5, 5, 5}), 4);
  EXPECT_EQ(stop_of({.monitor = "val_loss"}, {6, 5, 4, 3, 2, 1}).reason, StoppingReason::kNotStopped);
  EXPECT_EQ(stop_of({.monitor = "val_loss", .patience = 1, .mode = "max"}, {1, 2, 1, 1}).epoch, 2);
}

TEST(EarlyStopping, StopsAtThresholds) {
  auto stopped = stop_of({.monitor = "val_loss", .stopping_threshold = 2.9}, {9, 8, 7, 6, 5, 6, 4, 3, 2, 1});
  EXPECT_EQ(stopped.epoch, 8);
  EXPECT_EQ(stopped.reason, StoppingReason::kStoppingThreshold);
  stopped = stop_of({.monitor = "val_loss", .divergence_threshold = 15.9}, {9, 4, 2, 16, 32, 64});
  EXPECT_EQ(stopped.epoch, 3);
  EXPECT_EQ(stopped.reason, StoppingReason::kDivergenceThreshold);
  EXPECT_EQ(stopped.message, "val_loss 16 is worse than the divergence threshold 15.9");
}

TEST(EarlyStopping, StopsWhenTheMetricIsNotFinite) {
  for (const double bad : {std::nan(""), double{INFINITY}, -double{INFINITY}}) {
    const auto stopped = stop_of({.monitor = "val_loss", .stopping_threshold = -1e9}, {4, 3, bad, 5, 4, 3});
    EXPECT_EQ(stopped.epoch, 2);
    EXPECT_EQ(stopped.reason, StoppingReason::kNonFiniteMetric);
  }
  EXPECT_EQ(stop_of({.monitor = "val_loss", .check_finite = false}, {4, NAN, 3}).reason, StoppingReason::kNotStopped);
}

TEST(EarlyStopping, SmallStepsAreNoImprovement) {
  EXPECT_EQ(stop_of({.monitor = "val_loss", .min_delta = 0.5, .patience = 2}, {5, 4.8, 4.6, 1}).epoch, 2);
  EXPECT_EQ(stop_of({.monitor = "val_loss", .min_delta = 0.5, .patience = 2, .mode = "max"}, {5, 5.2, 5.4, 9}).epoch,
            2);
}

TEST(EarlyStopping, LooksAfterValidationWhenItIsNotOnceAnEpoch) {
  auto callback = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss", .patience = 2});
  FakeRun run({callback});
  run.plan_.val_check = 0.25;
  run.fit(3, 8, 2, {}, [&] { run.metrics_["val_loss"] = 1; });
  EXPECT_EQ(run.global_step(), 6);
}

TEST(EarlyStopping, MissingMetrics) {
  FakeRun strict({std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_los"})});
  EXPECT_THAT(error_of([&] { strict.fit(1, 1, 1, {}, [&] { strict.metrics_["val_loss"] = 1; }); }),
              HasSubstr("[EarlyStopping] metric \"val_los\" was not logged, did you mean \"val_loss\"?"));
  FakeRun lenient({std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_los", .strict = false})});
  lenient.fit(5, 1, 1);
  EXPECT_FALSE(lenient.should_stop());
  EXPECT_THAT(error_of([] { EarlyStopping({}); }), HasSubstr("monitor is empty"));
  EXPECT_THAT(error_of([] { EarlyStopping({.monitor = "x", .mode = "maxi"}); }), HasSubstr("did you mean \"max\"?"));
}

TEST(EarlyStopping, ResumesFromItsState) {
  EarlyStopping first({.monitor = "val_loss"});
  auto shared = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "val_loss", .patience = 3});
  FakeRun run({shared});
  run.fit(3, 1, 1, {}, [&] { run.metrics_["val_loss"] = 1; });
  EXPECT_EQ(shared->wait_count(), 2);
  EarlyStopping second({.monitor = "val_loss", .patience = 7});
  second.load_state_dict(shared->state_dict());
  EXPECT_EQ(second.wait_count(), 2);
  EXPECT_EQ(second.best_score(), 1);
  // A fit that starts again forgets.
  shared->setup(run, "fit");
  EXPECT_EQ(shared->wait_count(), 0);
}

TEST(EarlyStopping, DoesNothingInAFastDevRun) {
  FakeRun run({std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "missing"})});
  run.plan_.fast_dev_run = 1;
  run.fit(1, 1, 1);
  EXPECT_FALSE(run.should_stop());
}

TEST(Timer, EndsTheRun) {
  double now = 0;
  auto timer =
      std::make_shared<Timer>(TimerOptions{.duration = std::chrono::seconds(10), .clock = [&] { return now; }});
  FakeRun run({timer});
  run.fit(2, 8, 0, [&] { now += 3; });
  EXPECT_EQ(run.global_step(), 4);
  EXPECT_EQ(timer->time_elapsed(), 12);
  EXPECT_EQ(timer->time_remaining(), -2);
  EXPECT_EQ(run.lines_, (std::vector<std::string>{"Timer: the time is over after 0:12"}));
}

TEST(Timer, LooksOnceAnEpochWhenAsked) {
  double now = 0;
  auto timer = std::make_shared<Timer>(TimerOptions{
      .duration = std::chrono::seconds(10), .interval = "epoch", .verbose = false, .clock = [&] { return now; }});
  FakeRun run({timer});
  run.fit(3, 8, 0, [&] { now += 3; });
  EXPECT_EQ(run.global_step(), 8);
  EXPECT_TRUE(run.lines_.empty());
}

TEST(Timer, AZeroDurationStopsBeforeTheFirstStep) {
  FakeRun run({std::make_shared<Timer>(TimerOptions{.duration = std::chrono::seconds(0)})});
  run.fit(3, 8, 0);
  EXPECT_EQ(run.global_step(), 0);
}

TEST(Timer, CountsOnInAResumedRun) {
  double now = 0;
  const TimerOptions options{.duration = std::chrono::seconds(10), .clock = [&] { return now; }};
  auto first = std::make_shared<Timer>(options);
  FakeRun run({first});
  run.fit(
      1, 2, 1, [&] { now += 3; }, [&] { now += 1; });
  EXPECT_EQ(first->time_elapsed(), 8);
  EXPECT_EQ(first->time_elapsed(Stage::kValidate), 2);
  auto second = std::make_shared<Timer>(options);
  FakeRun more({second});
  more.each(&Callback::setup, more, std::string_view("fit"));
  second->load_state_dict(first->state_dict());
  now += 100;  // the time between two runs does not count
  more.each(&Callback::on_fit_start, more);
  more.each(&Callback::on_train_start, more);
  EXPECT_FALSE(more.should_stop());
  now += 3;
  more.each(&Callback::on_train_batch_end, more, StepOutput(), AnyBatch(), 0);
  EXPECT_TRUE(more.should_stop());
}

TEST(Timer, RefusesWordsItDoesNotKnow) {
  EXPECT_THAT(error_of([] { Timer({.interval = "steps"}); }), HasSubstr("did you mean \"step\"?"));
}

TEST(GradientAccumulationScheduler, KnowsTheEpochs) {
  GradientAccumulationScheduler late({.scheduling = {{1, 2}, {3, 4}}});
  std::vector<int64_t> k;
  for (int64_t epoch = 0; epoch < 5; ++epoch) k.push_back(late.accumulate_grad_batches(epoch));
  EXPECT_EQ(k, (std::vector<int64_t>{1, 2, 2, 4, 4}));
  GradientAccumulationScheduler one({.scheduling = {{4, 2}}});
  EXPECT_EQ(one.accumulate_grad_batches(3), 1);
  EXPECT_EQ(one.accumulate_grad_batches(4), 2);
}

TEST(GradientAccumulationScheduler, CountsTheSteps) {
  GradientAccumulationScheduler late({.scheduling = {{1, 2}, {3, 4}}});
  EXPECT_EQ(late.stepping_batches(0, 7), 0);
  EXPECT_EQ(late.stepping_batches(1, 7), 7);
  EXPECT_EQ(late.stepping_batches(3, 7), 7 + 4 + 4);
  EXPECT_EQ(late.stepping_batches(6, 7), 7 + 4 + 4 + 3 * 2);
  EXPECT_EQ(GradientAccumulationScheduler({.scheduling = {{0, 8}}}).stepping_batches(2, 7), 2);
}

TEST(GradientAccumulationScheduler, Refuses) {
  EXPECT_THAT(error_of([] { GradientAccumulationScheduler({.scheduling = {}}); }), HasSubstr("is empty"));
  EXPECT_THAT(error_of([] { GradientAccumulationScheduler({.scheduling = {{-1, 2}}}); }), HasSubstr("epoch -1"));
  EXPECT_THAT(error_of([] {
                GradientAccumulationScheduler({.scheduling = {{0, 0}}});
              }),
              HasSubstr("0 batches from epoch 0 on"));
}

}  // namespace
}  // namespace levin
