#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/profilers/simple.h"
#include "levin/profilers/table.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using std::chrono::nanoseconds;
using testing::error_of;
constexpr nanoseconds kTotal{20'000'000'000'000};

std::string profiler_fixture(const std::string& name) {
  return read_file(std::filesystem::path(testing::source_dir()) / "tests/profilers/fixtures" / name);
}

// DURATIONS of make_fixtures.py.
void add_all(SimpleProfiler& profiler) {
  const auto add = [&](const char* name, int64_t duration, int times = 1) {
    const auto action = profiler.register_action(name);
    for (int i = 0; i < times; ++i) profiler.add(action, nanoseconds(duration));
  };
  profiler.register_action("never run");
  profiler.register_action("[LightningModule]Net.on_fit_start");  // registered first, ended later than its equal
  add("run_training_epoch", 12'345'678'901);
  add("run_training_batch", 1'500'000, 1000);
  add("[_TrainingEpochLoop].train_dataloader_next", 10);
  add("[_TrainingEpochLoop].train_dataloader_next", 20);
  add("[_TrainingEpochLoop].train_dataloader_next", 25);
  add("[Callback]Ü.on_train_start", 1'000'000'000);
  add("[LightningModule]Net.on_fit_start", 1'000'000'000);
  add("[Strategy]SingleDeviceStrategy.validation_step", 12'345'600'000'000);
  add("[Strategy]SingleDeviceStrategy.validation_step", 999'995'000'000);
  add("run_training_batch", 2'000'000, 7);
  add("run_training_epoch", 10'000'000'000);
  add("zero", 0);
}

TEST(SimpleProfiler, WritesTheTableOfLightning) {
  SimpleProfiler profiler;
  add_all(profiler);
  profiler.setup("fit");
  EXPECT_EQ(profiler.summary(kTotal), profiler_fixture("extended.txt"));

  SimpleProfiler plain({.extended = false});
  add_all(plain);
  plain.setup("fit");
  EXPECT_EQ(plain.summary(kTotal), profiler_fixture("short.txt"));

  SimpleProfiler narrow;
  narrow.add(narrow.register_action("ab"), std::chrono::seconds(5));
  EXPECT_EQ(narrow.summary(kTotal), profiler_fixture("narrow.txt"));

  SimpleProfiler empty;
  empty.register_action("never run");
  empty.setup("validate");
  EXPECT_EQ(empty.summary(), profiler_fixture("empty.txt"));
}

TEST(SimpleProfiler, FormatsNumbersAsPython) {
  std::istringstream lines(profiler_fixture("numbers.txt"));
  std::string number, text;
  int count = 0;
  for (; lines >> number >> text; ++count) EXPECT_EQ(detail::five_digits(std::strtod(number.c_str(), nullptr)), text);
  EXPECT_GT(count, 10);
}

TEST(SimpleProfiler, RefusesWrongStartsAndStops) {
  SimpleProfiler profiler;
  const auto action = profiler.register_action("step");
  EXPECT_EQ(profiler.register_action("step"), action);
  EXPECT_EQ(error_of([&] { profiler.stop(action); }), "[profiler.stop] action \"step\" was not started");
  profiler.start(action);
  EXPECT_EQ(error_of([&] { profiler.start(action); }), "[profiler.start] action \"step\" is running already");
  profiler.stop(action);
  EXPECT_THROW(profiler.stop(action), Error);
  EXPECT_EQ(error_of([&] { profiler.start(ActionId{7}); }),
            "[profiler.start] action 7 is not known; register_action() gives ids");
  EXPECT_THROW(profiler.stop(ActionId{-1}), Error);
}

TEST(SimpleProfiler, MeasuresSpans) {
  SimpleProfiler profiler({.extended = false});
  const auto outer = profiler.register_action("outer"), inner = profiler.register_action("inner");
  {
    Span span(&profiler, outer);
    for (int i = 0; i < 3; ++i) Span nested(&profiler, inner);
    profiler.stop(outer);  // by hand; the end of the span is silent
  }
  { Span nothing(nullptr, outer); }
  try {
    Span span(&profiler, outer);
    throw std::runtime_error("ends the span");
  } catch (const std::runtime_error&) {
  }
  profiler.start(outer);  // it is not running any more
  const auto report = profiler.summary();
  EXPECT_NE(report.find("outer"), std::string::npos);
  EXPECT_NE(report.find("inner"), std::string::npos);
}

TEST(Profiler, WritesToAFile) {
  const testing::TemporaryFolder folder;
  {
    SimpleProfiler profiler({.filename = "per/f:report"});
    profiler.add(profiler.register_action("step"), std::chrono::seconds(1));
    profiler.setup("fit", 3, folder.path());
    profiler.describe();
    profiler.describe();
  }
  const auto text = read_file(folder / "fit-per_f_report-3.txt");
  EXPECT_TRUE(text.starts_with("FIT Profiler Report\n"));
  EXPECT_NE(text.find("FIT Profiler Report", 10), std::string::npos);  // reports follow each other
}

TEST(Profiler, PrintsOnRankZeroAlone) {
  SimpleProfiler profiler;
  profiler.add(profiler.register_action("step"), std::chrono::seconds(1));
  for (const int rank : {0, 1}) {
    profiler.setup("fit", rank);
    const auto printed = testing::captured_stdout([&] { profiler.describe(); });
    EXPECT_EQ(printed.starts_with("FIT Profiler Report\n"), rank == 0) << printed;
  }
}

TEST(Profiler, IsMadeByName) {
  EXPECT_NE(std::dynamic_pointer_cast<SimpleProfiler>(make_profiler("simple")), nullptr);
  EXPECT_NE(error_of([] { make_profiler("advanced"); }).find("(known: simple, "), std::string::npos);
  EXPECT_NE(error_of([] { make_profiler("simpel"); }).find("did you mean \"simple\"?"), std::string::npos);
}

}  // namespace
}  // namespace levin
