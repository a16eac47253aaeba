// The same program started directly and by `levin run`, and what happens when a rank fails.
#include <regex>

#include <gtest/gtest.h>
#include <signal.h>

#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin {
namespace {

using testing::levin_run;
using testing::Process;
using testing::ProgramResult;
using testing::run_program;
using Words = std::vector<std::string>;

const std::string kProbe = testing::test_program("ddp_probe");
const Words kOneThread{"OMP_NUM_THREADS=1"};

ProgramResult run(const Words& command) {
  return run_program(command, kOneThread);
}

// The sums that the ranks print; all must agree.
double sum_of(const ProgramResult& result, int ranks) {
  const auto text = result.text();
  EXPECT_EQ(result.status, 0) << text;
  const std::regex line("rank (\\d+) of (\\d+) node \\d+ sum ([0-9.]+)");
  double sum = 0;
  int count = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it, ++count) {
    EXPECT_EQ(std::stoi((*it)[2]), ranks);
    if (count == 0) sum = std::stod((*it)[3]);
    EXPECT_EQ(std::stod((*it)[3]), sum) << text;
  }
  EXPECT_EQ(count, ranks) << text;
  return sum;
}

TEST(Starting, ByFabricAndByLevinRunEqualsOneProcess) {
  const double one = sum_of(run({kProbe}), 1);
  EXPECT_NEAR(sum_of(run({kProbe, "--devices", "2"}), 2), one, 1e-3);
  EXPECT_NEAR(sum_of(run(levin_run({"--nproc-per-node", "2", kProbe})), 2), one, 1e-3);
  EXPECT_NEAR(sum_of(run(levin_run({"--standalone", "--nproc-per-node", "4", kProbe, "--devices", "4"})), 4), one,
              1e-3);
}

TEST(Starting, ByHandWithVariables) {
  const auto port = "MASTER_PORT=" + std::to_string(testing::free_port());
  const auto variables = [&](const std::string& rank) {
    return Words{"OMP_NUM_THREADS=1", "MASTER_ADDR=127.0.0.1", port,
                 "WORLD_SIZE=2",      "RANK=" + rank,          "LOCAL_RANK=" + rank};
  };
  Process other({kProbe, "--devices", "2"}, variables("1"));
  const auto first = run_program({kProbe, "--devices", "2"}, variables("0"));
  EXPECT_EQ(other.wait(), 0) << other.err();
  sum_of({first.status, first.out + other.out(), first.err + other.err()}, 2);
}

// Each failure: soon (within 10 seconds on a machine with nothing else to do), a non-zero status, a line that says so,
// nobody left.
void expect_failure(const Words& flags, const Words& says) {
  Words command{kProbe, "--devices", "2"};
  command.insert(command.end(), flags.begin(), flags.end());
  Process process(command, kOneThread);
  EXPECT_NE(process.wait(), 0);
  const auto text = process.out() + process.err();
  EXPECT_LT(process.seconds(), 30) << text;
  for (const auto& words : says)
    EXPECT_NE(text.find(words), std::string::npos) << "not said: " << words << "\n" << text;
  EXPECT_TRUE(process.all_gone());
}

TEST(Failing, KilledRankIsNamed) {
  expect_failure({"--fail", "1", "--how", "kill"}, {"rank 1", "SIGKILL"});
}
TEST(Failing, KilledRankZeroIsNamed) {
  expect_failure({"--fail", "0", "--how", "kill"}, {"rank 0", "SIGKILL"});
}
TEST(Failing, ExitStatusIsNamed) {
  expect_failure({"--fail", "1", "--how", "exit"}, {"rank 1", "exit status 3"});
}
TEST(Failing, ExceptionIsShown) {
  expect_failure({"--fail", "1", "--how", "throw"}, {"rank 1", "[probe] asked to fail"});
}
TEST(Failing, MismatchedShapesAreShown) {
  expect_failure({"--fail", "1", "--how", "mismatch"}, {"ranks disagree", "[4]", "[5]"});
}
TEST(Failing, UnusedParameterIsNamed) {
  expect_failure({"--fail", "1", "--how", "unused"}, {"b.weight", "find_unused_parameters"});
}
TEST(Failing, RankThatDoesNotComeIsNamed) {
  expect_failure({"--fail", "1", "--how", "sleep", "--timeout", "3"}, {"rank 1"});
}

TEST(Failing, WrongWorldSizeAndVariables) {
  auto result = run(levin_run({"--nproc-per-node", "3", kProbe, "--devices", "2"}));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.text().find("WORLD_SIZE"), std::string::npos) << result.text();
  result =
      run_program({kProbe, "--devices", "2", "--num-nodes", "2"},
                  {"OMP_NUM_THREADS=1", "RANK=0", "LOCAL_RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2", "NODE_RANK=0"});
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.text().find("MASTER_ADDR"), std::string::npos) << result.text();
  EXPECT_LT(result.seconds, 30);
}

TEST(Failing, InterruptAndTermEndEverything) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    Process process({kProbe, "--devices", "2", "--fail", "1", "--how", "sleep"}, kOneThread);
    ASSERT_TRUE(process.wait_for("rank 1 sleeps")) << process.err();
    process.signal(signal);
    const int status = process.wait();
    EXPECT_TRUE(process.all_gone()) << "signal " << signal;
    if (signal == SIGTERM) {
      EXPECT_EQ(status, 128 + SIGTERM);
    }
  }
}

}  // namespace
}  // namespace levin
