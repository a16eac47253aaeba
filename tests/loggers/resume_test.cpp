#include <chrono>
#include <csignal>
#include <functional>
#include <memory>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "event_reader.h"
#include "folder.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"
#include "levin/loggers/tensorboard.h"
#include "levin/testing/capture.h"

namespace levin {
namespace {

using testing::LogFolder;

// A run that logs steps and takes a position, as a checkpoint does, every 10.
struct LoggedRun {
  std::shared_ptr<Logger> logger;
  double* clock;
  std::vector<StateDict> positions = {};

  void log_start() const { logger->log_hyperparams({{"lr", 0.1}, {"name", "x"}}); }

  void log_steps(int64_t from, int64_t to) {
    for (auto step = from; step < to; ++step) {
      if (step % 10 == 0) positions.push_back(logger->position());
      *clock = 1000 + static_cast<double>(step);
      Metrics metrics{{"loss", 1.0 / static_cast<double>(step + 1)}, {"epoch", step / 10}};
      if (step >= 4) metrics.emplace_back("acc", torch::tensor(0.5));
      if (step >= 23) metrics.emplace_back("late", step);
      if (step >= 27) metrics.emplace_back("another", 2.0);
      logger->log_metrics(metrics);
      if (step % 9 == 0) logger->log_text("sample", "text of step " + std::to_string(step), step);
    }
  }
};

struct Kind {
  std::string name;
  std::function<std::shared_ptr<Logger>(const std::filesystem::path&, LoggerOptions, std::function<double()>)> make;
  std::function<std::filesystem::path(const std::filesystem::path& folder)> file;
  std::string torn;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

std::vector<Kind> kinds() {
  const auto fixed = [](const char* name) {
    return [name](const std::filesystem::path& folder) { return folder / name; };
  };
  return {
      {"csv", [](const auto& root, auto options, auto) { return std::make_shared<CsvLogger>(root, options); },
       fixed("metrics.csv"), "0.5,1,0.0"},
      {"json", [](const auto& root, auto options, auto) { return std::make_shared<JsonLinesLogger>(root, options); },
       fixed("metrics.jsonl"), "{\"step\": 1"},
      {"board",
       [](const auto& root, auto options, auto clock) {
         return std::make_shared<TensorBoardLogger>(root, options, TensorBoardOptions{.clock = clock});
       },
       [](const auto& folder) { return testing::event_file(folder); }, std::string("\x20\0\0\0\0\0\0\0torn", 12)}};
}

class Resume : public ::testing::TestWithParam<Kind> {
 protected:
  LoggedRun run(const std::filesystem::path& root, std::optional<int64_t> version = {}, int64_t every = 8) {
    return {GetParam().make(root, {.version = version, .flush_every_n_rows = every}, [this] { return clock_; }),
            &clock_};
  }
  std::string content(const std::filesystem::path& folder) const {
    const auto file = GetParam().file(folder);
    return !file.empty() && std::filesystem::exists(file) ? read_file(file) : "nothing";
  }
  // The file of a run of 40 steps that was never stopped.
  std::string uninterrupted() {
    const LogFolder folder;
    clock_ = 1000;
    auto whole = run(folder.path);
    whole.log_start();
    whole.log_steps(0, 40);
    whole.logger->finalize("success");
    return content(whole.logger->log_dir());
  }
  // A run in version_0 that died behind step 33, in the middle of a write. Its positions.
  std::vector<StateDict> killed(const std::filesystem::path& root) {
    clock_ = 1000;
    auto first = run(root);
    first.log_start();
    first.log_steps(0, 33);
    first.logger->save();
    const auto file = GetParam().file(first.logger->log_dir());
    write_file(file, read_file(file) + GetParam().torn);
    return first.positions;
  }

  double clock_ = 1000;
};

TEST_P(Resume, InTheSameFolderGivesTheFileOfARunThatNeverStopped) {
  const auto expected = uninterrupted();
  for (const size_t position : {0, 1, 2, 3}) {
    const LogFolder folder;
    const auto positions = killed(folder.path);
    auto second = run(folder.path, 0, 3);
    if (position == 0) second.log_start();  // nothing was logged at that position, or it was
    second.logger->resume(positions.at(position));
    second.log_start();
    second.log_steps(static_cast<int64_t>(position) * 10, 40);
    second.logger->finalize("success");
    EXPECT_EQ(content(second.logger->log_dir()), expected) << position;
  }
}

TEST_P(Resume, InANewFolderCopiesTheRows) {
  const auto expected = uninterrupted();
  const LogFolder folder;
  const auto positions = killed(folder.path);
  const auto old_content = content(folder.path / "levin_logs" / "version_0");
  auto second = run(folder.path);
  second.log_start();  // in front of the rows that come
  second.logger->resume(positions.at(2));
  second.log_start();
  second.log_steps(20, 40);
  second.logger->finalize("success");
  EXPECT_EQ(second.logger->log_dir().filename(), "version_1");
  EXPECT_EQ(content(second.logger->log_dir()), expected);
  EXPECT_EQ(read_file(second.logger->log_dir() / "hparams.yaml"), "lr: 0.1\nname: x\n");
  EXPECT_EQ(content(folder.path / "levin_logs" / "version_0"), old_content);

  // And once more, from the copy.
  auto third = run(folder.path);
  third.logger->resume(second.positions.at(1));
  third.log_steps(30, 40);
  third.logger->save();
  EXPECT_EQ(third.logger->log_dir().filename(), "version_2");
  EXPECT_EQ(content(third.logger->log_dir()), expected);
  EXPECT_EQ(read_file(third.logger->log_dir() / "hparams.yaml"), "lr: 0.1\nname: x\n");
}

TEST_P(Resume, AfterAKillGivesTheFileOfARunThatNeverStopped) {
  const auto expected = uninterrupted();
  const LogFolder folder;
  const auto position = killed(folder.path).at(2);
  const auto child = ::fork();
  if (child == 0) {  // continues until it is killed, in the middle of whatever it writes
    ::alarm(30);
    auto second = run(folder.path, 0, 1);
    second.logger->resume(position);
    for (int64_t step = 20;; ++step)
      second.logger->log_metrics({{"loss", 0.1}, {"column " + std::to_string(step / 50 % 100), step}});
  }
  const auto file = folder.path / "levin_logs" / "version_0";
  const auto start = std::chrono::steady_clock::now();
  std::error_code ignored;
  uintmax_t size = 0;
  while (size < 60000 && std::chrono::steady_clock::now() - start < std::chrono::seconds(20)) {
    size = std::filesystem::file_size(GetParam().file(file), ignored);
    if (ignored) size = 0;
  }
  EXPECT_GE(size, 60000U) << "it was not yet writing";
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  auto third = run(folder.path, 0);
  third.logger->resume(position);
  third.log_steps(20, 40);
  third.logger->save();
  EXPECT_EQ(content(file), expected);
}

TEST_P(Resume, InTheSameProcessDropsWhatCameLater) {
  const auto expected = uninterrupted();
  const LogFolder folder;
  clock_ = 1000;
  auto only = run(folder.path);
  only.log_start();
  only.log_steps(0, 35);
  const auto position = only.positions.at(1);
  only.logger->resume(position);
  only.log_steps(10, 40);
  only.logger->save();
  EXPECT_EQ(content(only.logger->log_dir()), expected);
}

TEST_P(Resume, StartsEmptyWhenTheOldFilesAreGone) {
  const LogFolder folder;
  const auto positions = killed(folder.path);
  std::filesystem::remove_all(folder.path / "levin_logs" / "version_0");
  auto second = run(folder.path, 5);
  second.log_start();
  const auto line = testing::captured_stderr([&] { second.logger->resume(positions.at(2)); });
  EXPECT_NE(line.find("is gone: this one starts empty"), std::string::npos) << line;
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  clock_ = 1000;
  second.log_start();
  second.log_steps(0, 40);
  second.logger->save();
  EXPECT_EQ(content(second.logger->log_dir()), uninterrupted());
}

TEST_P(Resume, KeepsWhatIsThereOfADamagedLog) {
  const LogFolder folder;
  const auto positions = killed(folder.path);
  const auto file = GetParam().file(folder.path / "levin_logs" / "version_0");
  const auto whole = read_file(file);
  write_file(file, whole.substr(0, whole.size() / 5));
  auto second = run(folder.path, 0);
  const auto line = testing::captured_stderr([&] { second.logger->resume(positions.at(2)); });
  EXPECT_NE(line.find("has only"), std::string::npos) << line;
  const auto kept = content(folder.path / "levin_logs" / "version_0");
  EXPECT_GT(kept.size(), 0);
  second.log_steps(20, 22);
  second.logger->save();
  const auto now = content(folder.path / "levin_logs" / "version_0");
  EXPECT_TRUE(now.starts_with(kept));
  EXPECT_GT(now.size(), kept.size());
  if (GetParam().name == "board") {
    EXPECT_NO_THROW(testing::read_records(now));
  }
}

TEST_P(Resume, IgnoresThePositionOfAnotherLogger) {
  const LogFolder folder;
  auto logger = run(folder.path).logger;
  const auto line = testing::captured_stderr([&] {
    logger->resume({{"logger", "other_logger"}, {"folder", "/nowhere"}, {"rows", 3}});
  });
  EXPECT_NE(line.find("other_logger"), std::string::npos) << line;
  logger->resume({});
  EXPECT_FALSE(std::filesystem::exists(folder.path));
}

INSTANTIATE_TEST_SUITE_P(Loggers, Resume, ::testing::ValuesIn(kinds()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace levin
