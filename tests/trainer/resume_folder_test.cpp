// A resumed run writes where it wrote before; a new one has a version of its own.
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"
#include "levin/testing/capture.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

namespace fs = std::filesystem;

struct Logged : Net {
  Logged() { save_hyperparameters({{"lr", 0.1}}); }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    const auto out = Net::training_step(batch, at);
    log("loss", out.loss, {.on_step = true, .on_epoch = true});
    return out;
  }
};

TrainerOptions options(const fs::path& root, int64_t epochs, int64_t steps = -1, const char* logger = nullptr) {
  auto o = quiet({}, epochs, root);
  o.logger = LoggerChoice();
  if (logger) o.logger = logger;
  o.max_steps = steps;
  o.log_every_n_steps = 1;
  o.enable_checkpointing = true;
  o.callbacks = {ModelCheckpoint({.save_last = true})};
  return o;
}

std::vector<std::string> versions(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root / "levin_logs")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string rows(const fs::path& root, int version = 0) {
  return read_file(root / "levin_logs" / ("version_" + std::to_string(version)) / "metrics.csv");
}

size_t event_files(const fs::path& root) {
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator(root / "levin_logs/version_0"))
    count += entry.path().filename().string().starts_with("events.out") ? 1 : 0;
  return count;
}

using Names = std::vector<std::string>;

void fit(const TrainerOptions& o, const std::string& ckpt = {}) {
  Logged net;
  Trainer(o).fit(net, loader(16, 4), {}, {.ckpt_path = ckpt});
}

TEST(ResumeFolder, ResumesInTheSameVersion) {
  const TemporaryFolder whole, parts;
  fit(options(whole.path(), 3));
  for (const int64_t steps : {3, 6, 9, -1}) fit(options(parts.path(), 3, steps), "last");
  EXPECT_EQ(versions(parts.path()), Names{"version_0"});
  EXPECT_EQ(rows(parts.path()), rows(whole.path()));
  EXPECT_EQ(event_files(parts.path()), 1u);
  EXPECT_TRUE(fs::exists(parts.path() / "levin_logs/version_0/hparams.yaml"));
  // The checkpoints are one collection.
  EXPECT_TRUE(fs::exists(parts.path() / "levin_logs/version_0/checkpoints/last.ckpt"));
}

TEST(ResumeFolder, SoDoLinesOfJson) {
  const TemporaryFolder whole, parts;
  fit(options(whole.path(), 3, -1, "json"));
  for (const int64_t steps : {5, -1}) fit(options(parts.path(), 3, steps, "json"), "last");
  EXPECT_EQ(versions(parts.path()), Names{"version_0"});
  EXPECT_EQ(read_file(parts.path() / "levin_logs/version_0/metrics.jsonl"),
            read_file(whole.path() / "levin_logs/version_0/metrics.jsonl"));
}

TEST(ResumeFolder, RowsAfterTheCheckpointAreReplaced) {
  const TemporaryFolder folder;
  auto first = options(folder.path(), 3);
  first.callbacks.push_back(SaveAt(folder.path() / "at_5", 5));
  fit(first);
  const auto before = rows(folder.path());
  fit(options(folder.path(), 3), (folder.path() / "at_5").string());
  EXPECT_EQ(versions(folder.path()), Names{"version_0"});
  EXPECT_EQ(rows(folder.path()), before);
}

TEST(ResumeFolder, AFinishedRunStaysAsItIs) {
  const TemporaryFolder folder;
  fit(options(folder.path(), 2));
  const auto before = rows(folder.path());
  for (int i = 0; i < 2; ++i) fit(options(folder.path(), 2), "last");
  EXPECT_EQ(versions(folder.path()), Names{"version_0"});
  EXPECT_EQ(rows(folder.path()), before);
  EXPECT_EQ(event_files(folder.path()), 1u);
}

TEST(ResumeFolder, ANewFitHasANewVersion) {
  const TemporaryFolder folder;
  fit(options(folder.path(), 1));
  fit(options(folder.path(), 1));
  EXPECT_EQ(versions(folder.path()), (Names{"version_0", "version_1"}));
}

TEST(ResumeFolder, ALogThatIsGoneIsSaidOnceAndStartsAgain) {
  const TemporaryFolder folder;
  auto first = options(folder.path(), 2);
  first.callbacks.push_back(SaveAt(folder.path() / "moved", 5));
  fit(first);
  fs::remove_all(folder.path() / "levin_logs/version_0");
  fs::create_directories(folder.path() / "levin_logs/version_3");
  const auto text =
      testing::captured_stderr([&] { fit(options(folder.path(), 2), (folder.path() / "moved").string()); });
  EXPECT_EQ(versions(folder.path()), (Names{"version_3", "version_4"}));
  const auto at = text.find("the checkpoint's log is not in");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.find("is gone"), std::string::npos) << text;
  EXPECT_EQ(text.find("the checkpoint's log is not in", at + 1), std::string::npos) << text;
}

TEST(ResumeFolder, TheLogOfAnotherRunIsLeftAlone) {
  for (const char* logger : {"csv", "json", "tensorboard,csv"}) {
    const TemporaryFolder folder;
    auto first = options(folder.path(), 2, -1, logger);
    first.callbacks.push_back(SaveAt(folder.path() / "moved", 5));
    fit(first);
    fs::remove_all(folder.path() / "levin_logs/version_0");
    auto other = options(folder.path(), 3, -1, logger);
    {
      Logged net;
      net.lr = 0.03;
      Trainer(other).fit(net, loader(16, 4));
    }
    const auto file =
        folder.path() / "levin_logs/version_0" / (std::string(logger) == "json" ? "metrics.jsonl" : "metrics.csv");
    const auto before = read_file(file);
    fit(options(folder.path(), 2, -1, logger), (folder.path() / "moved").string());
    EXPECT_EQ(read_file(file), before) << logger;
    EXPECT_EQ(versions(folder.path()), (Names{"version_0", "version_1"})) << logger;
  }
}

TEST(ResumeFolder, AnotherRootOrAVersionByNumberIsKept) {
  const TemporaryFolder folder, other;
  fit(options(folder.path(), 2, 5));
  const auto last = (folder.path() / "levin_logs/version_0/checkpoints/last.ckpt").string();
  const auto before = rows(folder.path());
  fit(options(other.path(), 2), last);
  EXPECT_EQ(rows(folder.path()), before);
  const auto whole = rows(other.path());  // rows of before are carried over
  EXPECT_GT(whole.size(), before.size());

  auto numbered = options(folder.path(), 2);
  numbered.logger = std::make_shared<CsvLogger>(folder.path(), LoggerOptions{.version = 7});
  fit(numbered, last);
  EXPECT_EQ(rows(folder.path()), before);
}

}  // namespace
}  // namespace levin::tuning_test
