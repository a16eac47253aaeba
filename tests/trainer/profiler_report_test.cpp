// The Trainer writes the report of what its profiler recorded.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/loggers/csv.h"
#include "levin/profilers/pytorch.h"
#include "levin/report/report.h"
#include "levin/testing/capture.h"
#include "levin/testing/folder_test.h"
#include "levin/trainer/callbacks/memory_report.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"

namespace levin {
namespace {

using ::testing::HasSubstr;
using trainer_test::Boring;
using trainer_test::boring_loader;

struct TrainerReport : testing::FolderTest {
  TrainerOptions options(std::shared_ptr<Profiler> profiler) {
    return {.accelerator = "cpu",
            .logger = std::make_shared<CsvLogger>(folder_ / "logs"),
            .max_epochs = 2,
            .num_sanity_val_steps = 0,
            .enable_progress_bar = false,
            .enable_model_summary = false,
            .profiler = std::move(profiler),
            .default_root_dir = folder_};
  }
};

TEST_F(TrainerReport, IsBesideTheTraces) {
  auto profiler = std::make_shared<PyTorchProfiler>(
      PyTorchProfilerOptions{.schedule = ProfilerSchedule{.wait = 0, .warmup = 1, .active = 2}});
  Boring module;
  std::string said;
  testing::captured_stdout(
      [&] { said = testing::captured_stderr([&] { Trainer(options(profiler)).fit(module, boring_loader(12, 4)); }); });
  ASSERT_EQ(profiler->files().size(), 1u);
  const auto page = profiler->files()[0].parent_path() / "report.html";
  ASSERT_TRUE(std::filesystem::exists(page));
  EXPECT_THAT(said, HasSubstr(page.string()));
  const auto text = read_file(page);
  EXPECT_THAT(text, HasSubstr("ProfilerStep#"));
  EXPECT_THAT(text, HasSubstr("\"average_us\""));
}

struct Predicted : Boring, PredictsMemory {
  TrainingStep make_step() const override {
    auto linear = std::make_shared<torch::nn::LinearImpl>(32, 2);
    return {linear, [linear](const Batch& batch) { return linear->forward(batch["x"]); },
            [](const Tensor& y, const Batch&) { return at::mse_loss(y, at::ones_like(y)); }};
  }
};

TEST_F(TrainerReport, HasThePredictedMemoryOfAModelThatPredictsIt) {
  for (const bool predicts : {true, false}) {
    auto profiler = std::make_shared<PyTorchProfiler>(
        PyTorchProfilerOptions{.schedule = ProfilerSchedule{.wait = 1, .warmup = 1, .active = 2},
                               .profile_memory = true,
                               .dirpath = folder_ / (predicts ? "predicted" : "not")});
    Predicted predicted;
    Boring other;
    testing::captured_stdout([&] {
      Trainer(options(profiler)).fit(predicts ? static_cast<Boring&>(predicted) : other, boring_loader(24, 4));
    });
    ASSERT_EQ(profiler->files().size(), 1u);
    const auto report = report::make_report(profiler->files());
    const auto& trace = report.traces.at(0).events;
    if (!predicts) {
      EXPECT_EQ(trace.predicted_peak, -1);
      continue;
    }
    std::map<std::string, int64_t> parts(trace.predicted_parts.begin(), trace.predicted_parts.end());
    constexpr int64_t kBytes = 4 * (32 * 2 + 2);
    EXPECT_EQ(parts.at("parameters"), kBytes);
    EXPECT_EQ(parts.at("gradients"), kBytes);
    // The batch is there too: four rows.
    EXPECT_GE(trace.predicted_peak, 2 * kBytes + 4 * 4 * 32);
    EXPECT_LT(trace.predicted_peak, 16 * kBytes);
  }
}

TEST_F(TrainerReport, IsNotWrittenWithoutTraces) {
  Boring module;
  testing::captured_stdout([&] { Trainer(options(make_profiler("simple"))).fit(module, boring_loader(12, 4)); });
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
    EXPECT_NE(entry.path().filename(), "report.html");
}

}  // namespace
}  // namespace levin
