#include <filesystem>

#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"

namespace levin {
namespace {

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("levin loggers ü " + std::to_string(getpid()));
  Folder() { std::filesystem::remove_all(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};

TEST(CsvLogger, RewritesTheHeaderWhenMetricsAreAdded) {
  const Folder folder;
  CsvLogger logger(folder.path, {.flush_every_n_rows = 2});
  logger.log_metrics({{"loss", 0.5}}, 0);
  logger.log_metrics({{"loss", torch::tensor(0.25)}}, 1);
  logger.log_metrics({{"acc,top\"1\"", 1.0}, {"loss", 0.125}}, 2);
  logger.log_metrics({{"loss", NAN}});
  logger.finalize("success");
  EXPECT_EQ(logger.log_dir(), folder.path / "levin_logs" / "version_0");
  EXPECT_EQ(read_file(logger.log_dir() / "metrics.csv"),
            "\"acc,top\"\"1\"\"\",loss,step\n,0.5,0\n,0.25,1\n1,0.125,2\n,nan,3\n");
  EXPECT_EQ(CsvLogger(folder.path).log_dir().filename(), "version_1");
  {
    CsvLogger again(folder.path, {.version = 0});
    again.log_metrics({{"loss", 2.0}, {"new", 1.0}}, 9);
  }
  EXPECT_EQ(read_file(logger.log_dir() / "metrics.csv"),
            "\"acc,top\"\"1\"\"\",loss,new,step\n,0.5,,0\n,0.25,,1\n1,0.125,,2\n,nan,,3\n,2,1,9\n");
  logger.log_hyperparams({{"lr", 0.1}, {"name", "x"}});
  EXPECT_NE(read_file(logger.log_dir() / "hparams.json").find("\"lr\": 0.1"), std::string::npos);
}

TEST(JsonLinesLogger, WritesOneObjectARow) {
  const Folder folder;
  JsonLinesLogger logger(folder.path, {.version = 7});
  logger.log_metrics({{"loss", 0.5}, {"a \"b\"", INFINITY}}, 4);
  logger.save();
  EXPECT_EQ(read_file(folder.path / "levin_logs" / "version_7" / "metrics.jsonl"),
            "{\"step\": 4, \"loss\": 0.5, \"a \\\"b\\\"\": \"inf\"}\n");
  EXPECT_THROW(logger.log_metrics({{"x", torch::ones({2})}}), Error);
}

TEST(Loggers, RefuseToLeaveTheirFolder) {
  EXPECT_THROW(CsvLogger("/tmp", {.name = "../x"}), Error);
}

}  // namespace
}  // namespace levin
