#include "levin/loggers/yaml.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "folder.h"
#include "hparams_tree.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"

namespace levin {
namespace {

TEST(Yaml, WritesTheBytesOfPyYaml) {
  EXPECT_EQ(detail::to_yaml(testing::ordinary_hparams()), testing::log_fixture("hparams.yaml"));
}

// make_fixtures.py has read these bytes with PyYAML and found the same tree.
TEST(Yaml, QuotesWhatIsNotPlain) {
  EXPECT_EQ(detail::to_yaml(testing::all_hparams()), testing::log_fixture("hparams.levin.yaml"));
}

TEST(Yaml, HoldsNoBrokenText) {
  EXPECT_EQ(detail::to_yaml({{"bad", "a\xff\xc3(\xe2\x82"}, {"t", torch::ones({2, 3})}}),
            "bad: \"a\\uFFFD\\uFFFD(\\uFFFD\\uFFFD\"\nt: 'tensor Float [2, 3]'\n");
  EXPECT_EQ(detail::to_yaml({}), "{}\n");
}

TEST(Loggers, WriteHyperparametersInOnePlace) {
  const testing::LogFolder folder;
  CsvLogger csv(folder.path, {.version = 0});
  JsonLinesLogger json(folder.path, {.version = 0});
  csv.log_hyperparams({{"lr", 0.1}, {"name", "x"}});
  csv.log_hyperparams({{"lr", 0.2}});
  EXPECT_EQ(read_file(csv.log_dir() / "hparams.yaml"), "lr: 0.2\nname: x\n");
  json.log_hyperparams({{"seed", 1}});
  EXPECT_EQ(read_file(csv.log_dir() / "hparams.yaml"), "seed: 1\n");
}

}  // namespace
}  // namespace levin
