// Whole runs under every sharding strategy: the losses of one process, and checkpoints that resume under any strategy.
#include <filesystem>
#include <map>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

class ShardingRun : public testing::FolderTest {
 protected:
  /// All that the program says, started in the test's folder.
  std::string run(const std::string& flags, bool succeeds = true) const {
    const auto command =
        fmt::format("cd '{}' && exec '{}' {}", folder_.string(), testing::test_program("sharding_probe"), flags);
    const auto result = testing::run_program({"/bin/sh", "-c", command}, {"OMP_NUM_THREADS=1"});
    EXPECT_EQ(result.status == 0, succeeds) << flags << "\n" << result.text();
    return result.text();
  }
  /// The losses by step.
  std::map<int, double> train(const std::string& flags) const {
    const auto text = run(flags);
    const std::regex line("step (\\d+) loss ([-0-9.e]+)");
    std::map<int, double> losses;
    for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it)
      losses[std::stoi((*it)[1])] = std::stod((*it)[2]);
    return losses;
  }
  static void expect_near(const std::map<int, double>& ours, const std::map<int, double>& wanted, size_t count,
                          const std::string& what, double tolerance = 2e-5) {
    EXPECT_EQ(ours.size(), count) << what;
    for (const auto& [step, loss] : ours) EXPECT_NEAR(loss, wanted.at(step), tolerance) << what << " step " << step;
  }
};

TEST_F(ShardingRun, EqualsOneProcessAndResumesUnderAnyStrategy) {
  const auto wanted = train("--clip 0.5 --save one");
  ASSERT_EQ(wanted.size(), 8u);
  expect_near(train("--clip 0.5 --strategy stage_1 --devices 2"), wanted, 8, "stage 1");
  expect_near(train("--clip 0.5 --strategy stage_2 --devices 4 --meta"), wanted, 8, "stage 2");
  expect_near(train("--clip 0.5 --strategy fsdp --devices 4 --to 4 --meta --save four"), wanted, 4, "fsdp");
  for (const char* other :
       {"--strategy single_device --devices 1", "--strategy stage_2 --devices 2", "--strategy fsdp --devices 3",
        "--strategy ddp --devices 2", "--strategy stage_3 --devices 3 --meta", "--strategy fsdp --devices 4"})
    expect_near(train(std::string("--clip 0.5 --load four ") + other), wanted, 4, other);
  // What one process saved resumes when it is sharded.
  train("--clip 0.5 --to 4 --save whole");
  expect_near(train("--clip 0.5 --strategy fsdp --devices 3 --load whole"), wanted, 4, "from one process");
}

TEST_F(ShardingRun, ResumesInFloat8ToTheBit) {
  for (const std::string strategy : {"ddp", "fsdp", "stage_2"}) {
    const auto flags = "--precision fp8-mixed --width 32 --devices 2 --strategy " + strategy + " ";
    const auto whole = train(flags + "--save-at 4 --save at_4_" + strategy);
    const auto resumed = train(flags + "--load at_4_" + strategy);
    ASSERT_EQ(resumed.size(), 4u) << strategy;
    for (const auto& [step, loss] : resumed) EXPECT_EQ(loss, whole.at(step)) << strategy << " step " << step;
    EXPECT_NE(read_file(folder_ / ("at_4_" + strategy) / "state.json").find("fp8_histories"), std::string::npos);
    // Another number of ranks takes the largest numbers of all.
    EXPECT_EQ(train("--precision fp8-mixed --width 32 --devices 1 --load at_4_" + strategy).size(), 4u);
  }
}

TEST_F(ShardingRun, WritesWhatOneProcessWrites) {
  train("--strategy fsdp --devices 4 --to 4 --full --save call");
  train("--strategy fsdp --devices 3 --to 4 --load call --type full --save fsdp");
  train("--strategy stage_2 --devices 2 --to 4 --load call --type full --save zero");
  train("--strategy single_device --to 4 --load call --save one");
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
    for (const char* folder : {"call", "fsdp", "zero"})
      EXPECT_EQ(read_file(folder_ / folder / name), read_file(folder_ / "one" / name)) << folder << " " << name;
}

TEST_F(ShardingRun, StepsInBackwardAsAfterIt) {
  const auto wanted = train("");
  expect_near(train("--strategy fsdp_in_backward --devices 1"), wanted, 8, "one");
  expect_near(train("--strategy fsdp_in_backward --devices 3 --meta"), wanted, 8, "three");
}

TEST_F(ShardingRun, EightBitStatesResumeExactlyAndUnderAnyStrategy) {
  constexpr double kCodes = 2e-2;  // the losses go from 80 to 19
  const std::string lean = "--optimizer AdamW8bit --width 90 ";
  const auto alone = train(lean);
  const auto wanted = train(lean + "--strategy fsdp --devices 2 --save-at 4 --save two");
  expect_near(wanted, alone, 8, "two", kCodes);
  expect_near(train(lean + "--strategy fsdp --devices 2 --load two"), wanted, 4, "again", 0);
  expect_near(train(lean + "--strategy stage_3 --devices 3 --load two"), wanted, 4, "three", kCodes);
  expect_near(train(lean + "--load two"), wanted, 4, "one", kCodes);
  const auto host = lean + "--strategy fsdp_offload --devices 2 --precision bf16-mixed ";
  const auto offloaded = train(host + "--save-at 4 --save host");
  expect_near(train(host + "--load host"), offloaded, 4, "in host memory", 0);
}

TEST_F(ShardingRun, AnOptimizerThatNeedsFullParametersIsRefused) {
  const auto text = run("--optimizer Adafactor --strategy fsdp --devices 2", /*succeeds=*/false);
  EXPECT_NE(text.find("[fsdp] Adafactor steps by figures of full parameters"), std::string::npos) << text;
  EXPECT_EQ(train("--optimizer Adafactor --strategy fsdp --devices 1").size(), 8u);
}

}  // namespace
}  // namespace levin
