// What `levin fit boring` is for: to see that all works. With its defaults the loss must be seen to fall.
#include <filesystem>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;

/// The values of a column, where there are any.
std::vector<double> column_of(const std::string& csv, const std::string& name) {
  std::istringstream in(csv);
  std::vector<double> values;
  size_t wanted = std::string::npos;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    std::istringstream cells(line);
    size_t at = 0;
    const bool head = wanted == std::string::npos;
    for (std::string cell; std::getline(cells, cell, ','); ++at) {
      if (head && cell == name) wanted = at;
      if (!head && at == wanted && !cell.empty()) values.push_back(std::stod(cell));
    }
  }
  return values;
}

TEST(BoringRecipe, ReachesItsMinimumWithItsDefaults) {
  if (!fs::exists(levin_program())) GTEST_SKIP() << "the program `levin` is not built here";
  for (const char* seed : {"0", "1", "2"}) {
    const TemporaryFolder folder;
    Process child({levin_program(), "fit", "boring", "--trainer.accelerator", "cpu", "--seed", seed,
                   "--trainer.default_root_dir", folder.path().string()});
    ASSERT_EQ(child.wait(), 0) << child.err();
    fs::path metrics;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path()))
      if (entry.path().filename() == "metrics.csv") metrics = entry.path();
    const auto text = read_file(metrics);
    const auto train = column_of(text, "train_loss"), val = column_of(text, "val_loss");
    ASSERT_GE(train.size(), 5U) << text;
    ASSERT_GE(val.size(), 2U) << text;
    // The minimum is 0; the first batches are near 1.
    EXPECT_GT(train.front(), 0.05);
    EXPECT_LT(train.back(), 1e-4);
    EXPECT_LT(val.back(), 1e-4);
  }
}

}  // namespace
}  // namespace levin::testing
