#include "levin/loggers/csv.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "folder.h"
#include "levin/loggers/csv_text.h"
#include "levin/loggers/numbers.h"

namespace levin {
namespace {

using testing::LogFolder;

MetricValue metric(const std::string& kind, const std::string& text) {
  if (kind == "int") return int64_t{std::stoll(text)};
  const double value = std::strtod(text.c_str(), nullptr);
  if (kind == "float") return value;
  static const std::map<std::string, at::ScalarType> kTypes{
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},    {"uint8", at::kByte},     {"bool", at::kBool}};
  return at::scalar_tensor(value, at::kFloat).to(kTypes.at(kind));  // Python's literals are float32 as well
}

// The file is the one that Lightning's CSVLogger wrote for these rows, whenever they are written.
TEST(CsvLogger, WritesTheBytesOfLightning) {
  const auto rows = nlohmann::json::parse(testing::log_fixture("rows.json"));
  for (const int64_t every : {1, 7, 50, 1000}) {
    const LogFolder folder;
    CsvLogger logger(folder.path, {.flush_every_n_rows = every});
    for (const auto& row : rows) {
      Metrics metrics;
      for (const auto& entry : row[1])
        metrics.emplace_back(entry[0].get<std::string>(),
                             metric(entry[1].get<std::string>(), entry[2].get<std::string>()));
      logger.log_metrics(metrics, row[0].get<int64_t>());
    }
    logger.finalize("success");
    EXPECT_EQ(read_file(logger.log_dir() / "metrics.csv"), testing::log_fixture("metrics.csv")) << every;
  }
}

TEST(CsvLogger, AppendsUntilAColumnIsAdded) {
  const LogFolder folder;
  CsvLogger logger(folder.path, {.flush_every_n_rows = 1});
  const auto path = logger.log_dir() / "metrics.csv";
  const auto inode = [&] {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_ino;
  };
  logger.log_metrics({{"loss", 0.5}}, 0);
  // A second name keeps the first file, so that its number is not given away again.
  std::filesystem::create_hard_link(path, logger.log_dir() / "first");
  const auto first = inode();
  for (int step = 1; step < 5; ++step) logger.log_metrics({{"loss", 0.25}}, step);
  EXPECT_EQ(inode(), first);
  logger.log_metrics({{"acc", 1}, {"loss", NAN}}, 5);
  EXPECT_NE(inode(), first);
  EXPECT_EQ(read_file(path), "acc,loss,step\r\n,0.5,0\r\n,0.25,1\r\n,0.25,2\r\n,0.25,3\r\n,0.25,4\r\n1,nan,5\r\n");
}

TEST(CsvLogger, ResumesAVersionThatWasNamed) {
  const LogFolder folder;
  const auto path = folder.path / "levin_logs" / "version_0" / "metrics.csv";
  {
    CsvLogger logger(folder.path);
    logger.log_metrics({{"acc,top\"1\"", 1.0}, {"loss", 0.5}}, 0);
  }
  write_file(path, read_file(path) + "0.2,");  // its writer died in the middle of a line
  {
    CsvLogger again(folder.path, {.version = 0});
    again.log_metrics({{"loss", 2.0}}, 9);
  }
  EXPECT_EQ(read_file(path), "\"acc,top\"\"1\"\"\",loss,step\r\n1.0,0.5,0\r\n,2.0,9\r\n");
  write_file(path, "step,loss\n1,2\n3,4\n");  // not one of ours: other order, other ends of line
  {
    CsvLogger again(folder.path, {.version = 0});
    again.log_metrics({{"loss", 2.0}}, 9);
  }
  EXPECT_EQ(read_file(path), "loss,step\r\n2,1\r\n4,3\r\n2.0,9\r\n");
}

TEST(CsvText, ReadsWhatItWrites) {
  const std::vector<std::string> columns{"a", "b,\"c\"", "d\r\ne", ""};
  const detail::CsvTable table{columns, {{"1", "", "x,y", "\""}, {"", "", "", "2"}}};
  const auto text = detail::write_csv(table, columns, 9);
  const auto read = detail::read_csv(text + "torn,\"li");
  EXPECT_EQ(read.columns, columns);
  EXPECT_EQ(read.rows, table.rows);
  EXPECT_EQ(read.bytes, text.size());
  EXPECT_EQ(detail::write_csv(table, std::vector<std::string>{"z", "a"}, 1), "z,a\r\n,1\r\n");
}

TEST(Numbers, LookLikePython) {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{1.0, "1.0"},
                                                                               {1e-5, "1e-05"},
                                                                               {0.1, "0.1"},
                                                                               {1e16, "1e+16"},
                                                                               {-NAN, "nan"},
                                                                               {-INFINITY, "-inf"},
                                                                               {1e15, "1000000000000000.0"}})
    EXPECT_EQ(detail::python_float(value), text);
}

}  // namespace
}  // namespace levin
