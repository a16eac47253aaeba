// Profilers in the Trainer: traces of its steps, and what they tell of the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/trace_span.h"
#include "levin/profilers/pytorch.h"
#include "levin/testing/capture.h"
#include "levin/testing/folder_test.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/trainer.h"
#include "tests/profilers/trace_json.h"
#include "tests/trainer/boring.h"

namespace levin {
namespace {

using namespace profilers_test;
using ::testing::HasSubstr;
using trainer_test::Boring;
using trainer_test::boring_loader;

struct TrainerProfiler : testing::FolderTest {
  TrainerOptions options(std::shared_ptr<Profiler> profiler) {
    return {.accelerator = "cpu",
            .logger = false,
            .max_epochs = 2,
            .num_sanity_val_steps = 0,
            .enable_progress_bar = false,
            .enable_model_summary = false,
            .profiler = std::move(profiler),
            .default_root_dir = folder_};
  }
};

TEST_F(TrainerProfiler, RecordsTheStepsOfFit) {
  auto profiler = std::make_shared<PyTorchProfiler>(PyTorchProfilerOptions{
      .schedule = ProfilerSchedule{.wait = 0, .warmup = 1, .active = 3}, .dirpath = folder_ / "traces"});
  auto asked = options(profiler);
  asked.callbacks = {ModelCheckpoint({.dirpath = folder_ / "checkpoints", .every_n_train_steps = 2})};
  Boring module;
  // An epoch has 3 batches: the recorded steps are batches 1, 2 of the first one and 0 of the second.
  const auto report =
      testing::captured_stdout([&] { Trainer(asked).fit(module, boring_loader(12, 4), boring_loader(4, 4)); });
  ASSERT_EQ(profiler->files().size(), 1);
  EXPECT_EQ(profiler->files()[0].parent_path(), folder_ / "traces");
  EXPECT_THAT(report, HasSubstr("FIT Profiler Report"));
  EXPECT_THAT(report, HasSubstr("ProfilerStep*"));
  EXPECT_THAT(report, HasSubstr(profiler->files()[0].string()));

  const auto trace = read_trace(profiler->files()[0]);
  const auto steps = spans(trace, "ProfilerStep#");
  ASSERT_EQ(steps.size(), 3);
  const auto first = [&](const char* name) {
    const auto found = spans(trace, name);
    EXPECT_FALSE(found.empty()) << name;
    return found.empty() ? Json(steps[0]) : found.front();
  };
  for (const auto* name :
       {"enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "[Strategy]single_device.training_step",
        "[Strategy]single_device.backward", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"})
    EXPECT_TRUE(is_inside(first(name), steps[0])) << name;
  EXPECT_TRUE(is_inside(first("save_checkpoint"), steps[0]));
  const auto validation = first("run_validation");
  for (const auto& step : steps) {
    EXPECT_FALSE(is_inside(validation, step)) << "a validation belongs to no step";
  }
  EXPECT_TRUE(spans(trace, "run_training_batch").empty());
  const auto& facts = trace["levin"];
  EXPECT_EQ(facts["strategy"], "single_device");
  EXPECT_EQ(facts["precision"], "32-true");
  EXPECT_EQ(facts["batch_size"], 4);
  EXPECT_EQ(facts["optimizer"], "SGD");
  EXPECT_EQ(facts["parameters"], 66);
}

TEST_F(TrainerProfiler, RecordsEvaluationAndSurvivesErrors) {
  struct Fails : Boring {
    StepOutput training_step(const Batch& batch, const StepInfo& at) override {
      if (at.batch_idx == 2) throw std::runtime_error("broken");
      return Boring::training_step(batch, at);
    }
  };
  const auto made = [&] {
    return std::make_shared<PyTorchProfiler>(PyTorchProfilerOptions{
        .schedule = ProfilerSchedule{.wait = 0, .warmup = 0, .active = 2, .repeat = 0}, .dirpath = folder_ / "traces"});
  };
  auto profiler = made();
  Trainer trainer(options(profiler));
  Boring module;
  testing::captured_stdout([&] { trainer.test(module, boring_loader(12, 4)); });
  ASSERT_EQ(profiler->files().size(), 2);
  EXPECT_EQ(spans(read_trace(profiler->files()[0]), "[Strategy]single_device.test_step").size(), 2);
  EXPECT_EQ(spans(read_trace(profiler->files()[1]), "ProfilerStep#").size(), 1);

  auto second = made();
  Fails fails;
  testing::captured_stdout(
      [&] { EXPECT_THROW(Trainer(options(second)).fit(fails, boring_loader(20, 4)), std::runtime_error); });
  EXPECT_EQ(second->files().size(), 2) << "what was recorded before the error is there";
  EXPECT_FALSE(TraceSpan::is_recorded());
}

}  // namespace
}  // namespace levin
