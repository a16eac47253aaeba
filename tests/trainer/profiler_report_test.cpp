// The Trainer writes the report of what its profiler recorded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/loggers/csv.h"
#include "levin/profilers/pytorch.h"
#include "levin/testing/capture.h"
#include "levin/testing/folder_test.h"
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

TEST_F(TrainerReport, IsNotWrittenWithoutTraces) {
  Boring module;
  testing::captured_stdout([&] { Trainer(options(make_profiler("simple"))).fit(module, boring_loader(12, 4)); });
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
    EXPECT_NE(entry.path().filename(), "report.html");
}

}  // namespace
}  // namespace levin
