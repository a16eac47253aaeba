#include <cstdio>

#include <gtest/gtest.h>

#include "folder.h"
#include "levin/core/error.h"
#include "levin/loggers/console.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"
#include "levin/loggers/tensorboard.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;
using testing::LogFolder;

TEST(JsonLinesLogger, WritesOneObjectARow) {
  const LogFolder folder;
  JsonLinesLogger logger(folder.path, {.version = 7});
  logger.log_metrics({{"loss", 0.5}, {"a \"b\"", INFINITY}, {"epoch", 2}, {"loss", 0.75}}, 4);
  logger.log_metrics({{"flag", torch::tensor(true)}, {"n", torch::tensor(3)}, {"step", 9}});
  logger.save();
  EXPECT_EQ(read_file(folder.path / "levin_logs" / "version_7" / "metrics.jsonl"),
            "{\"step\": 4, \"loss\": 0.75, \"a \\\"b\\\"\": \"inf\", \"epoch\": 2}\n"
            "{\"step\": 1, \"flag\": true, \"n\": 3}\n");
}

TEST(Loggers, RefuseWhatIsNotANumber) {
  const LogFolder folder;
  CsvLogger logger(folder.path);
  EXPECT_THROW(logger.log_metrics({{"x", torch::ones({2})}}), Error);
  EXPECT_THROW(logger.log_metrics({{"x", at::Tensor()}}), Error);
  EXPECT_THROW(logger.log_metrics({{"x", torch::zeros({}, torch::kComplexFloat)}}), Error);
  logger.log_metrics({{"x", torch::ones({1, 1})}});
  logger.save();
  EXPECT_EQ(read_file(logger.log_dir() / "metrics.csv"), "step,x\r\n0,1.0\r\n");
}

TEST(Loggers, RefuseToLeaveTheirFolder) {
  EXPECT_THROW(CsvLogger("/tmp", {.name = "../x"}), Error);
  EXPECT_THROW(CsvLogger("/tmp", {.name = "/x"}), Error);
  EXPECT_THROW(CsvLogger("/tmp", {.flush_every_n_rows = 0}), Error);
  EXPECT_THROW(TensorBoardLogger("/tmp", {.version = -1}), Error);
}

TEST(Loggers, TouchNoDiskBeforeTheFirstWrite) {
  const LogFolder folder;
  {
    CsvLogger csv(folder.path);
    JsonLinesLogger json(folder.path);
    TensorBoardLogger board(folder.path);
    csv.log_metrics({{"loss", 1.0}});
    EXPECT_EQ(csv.log_dir(), folder.path / "levin_logs" / "version_0");
    EXPECT_EQ(board.log_dir(), csv.log_dir());
    board.save();
    board.finalize("success");
    EXPECT_FALSE(std::filesystem::exists(folder.path));
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path / "levin_logs" / "version_0" / "metrics.csv"));
}

TEST(Loggers, KeepTheirVersionAndShareOne) {
  const LogFolder folder;
  EXPECT_EQ(next_version(folder.path), 0);
  for (const char* name : {"version_4", "version_11", "version_12x", "other", "version_"})
    std::filesystem::create_directories(folder.path / "levin_logs" / name);
  write_file(folder.path / "levin_logs" / "version_20", "a file");
  EXPECT_EQ(next_version(folder.path), 12);
  EXPECT_EQ(next_version(folder.path, "elsewhere"), 0);

  const auto version = next_version(folder.path);
  CsvLogger csv(folder.path, {.version = version});
  TensorBoardLogger board(folder.path, {.version = version});
  CsvLogger later(folder.path);
  EXPECT_EQ(later.log_dir().filename(), "version_12");  // chosen now, kept when others take it
  csv.log_metrics({{"loss", 1.0}});
  csv.save();
  board.log_metrics({{"loss", 1.0}});
  board.save();
  EXPECT_EQ(csv.log_dir(), board.log_dir());
  EXPECT_FALSE(testing::event_file(csv.log_dir()).empty());
  EXPECT_EQ(later.log_dir().filename(), "version_12");
  EXPECT_EQ(CsvLogger(folder.path).log_dir().filename(), "version_13");
  EXPECT_EQ(CsvLogger(folder.path, {.name = ""}).log_dir(), folder.path / "version_0");
}

TEST(Loggers, ReadDeviceValuesWhenRowsAreWritten) {
  const LogFolder folder;
  CsvLogger logger(folder.path);
  // A tensor without storage stands for a device: whoever reads it fails.
  logger.log_metrics({{"loss", at::empty({}, at::kMeta)}}, 0);
  EXPECT_ANY_THROW(logger.save());
  EXPECT_FALSE(std::filesystem::exists(folder.path));
}

TEST(Loggers, TakeTheLastValueOfANameThatStandsTwice) {
  const LogFolder folder;
  CsvLogger logger(folder.path);
  logger.log_metrics({{"loss", at::empty({}, at::kMeta)}, {"acc", 1.0}, {"loss", 0.5}}, 0);
  logger.save();
  EXPECT_EQ(read_file(logger.log_dir() / "metrics.csv"), "acc,loss,step\r\n1.0,0.5,0\r\n");
}

TEST(Loggers, WriteRowsThatWereHeldTooLong) {
  const LogFolder folder;
  JsonLinesLogger logger(folder.path, {.flush_every_seconds = 0});
  logger.log_metrics({{"loss", 1.0}});
  EXPECT_EQ(read_file(logger.log_dir() / "metrics.jsonl"), "{\"step\": 0, \"loss\": 1}\n");
}

TEST(Loggers, NameTheFileThatCannotBeWritten) {
  const LogFolder folder;
  write_file(folder.path, "in the way");
  CsvLogger logger(folder.path);
  logger.log_metrics({{"loss", 1.0}});
  EXPECT_NE(error_of([&] { logger.save(); }).find("cannot make the folder"), std::string::npos);
}

class Console : public ::testing::Test {
 protected:
  ~Console() override { std::fclose(file_); }

  std::string printed() {
    std::string text(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file_), text.size());
    return text;
  }

  std::FILE* file_ = std::tmpfile();
};

TEST_F(Console, PrintsLines) {
  ConsoleLogger logger(file_);
  logger.log_metrics({{"loss", 0.5}}, 123);
  logger.log_metrics({{"loss", 0.5}, {"epoch", 0}});
  logger.set_totals(10, 0);
  logger.log_metrics({{"loss", 0.5}, {"epoch", 1}}, 5);
  logger.set_totals(10, 2812);
  logger.log_metrics({{"loss", torch::tensor(2.39719)}, {"epoch", 0}}, 0);
  logger.log_metrics({{"epoch", 3.0}, {"train_loss", 12.0}, {"lr", 5e-5}, {"count", 7}, {"bad", -NAN}}, 2812 * 3 + 50);
  logger.log_metrics({{"loss", 0.0}}, 2812);
  logger.log_text("sample", "Once upon a time");
  EXPECT_EQ(printed(),
            "Step 00123 | Loss: 0.5000\n"
            "Epoch: 0001 | Step 00001 | Loss: 0.5000\n"
            "Epoch: 0002/0010 | Step 00005 | Loss: 0.5000\n"
            "Epoch: 0001/0010 | Batch 0000/2812 | Loss: 2.3972\n"
            "Epoch: 0004/0010 | Batch 0050/2812 | Train_loss: 12.0000 | Lr: 5e-05 | Count: 7 | Bad: nan\n"
            "Epoch: 0002/0010 | Batch 0000/2812 | Loss: 0.0000\n"
            "Sample: Once upon a time\n");
}

}  // namespace
}  // namespace levin
