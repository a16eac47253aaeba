// The same program started by itself and by `levin run`, and what happens when a rank fails.
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/testing/paths.h"

namespace levin {
namespace {

const std::string kProbe = levin::testing::binary_dir() + "/bin/tests/ddp_probe";
const std::string kLevin = levin::testing::binary_dir() + "/bin/levin";

struct Outcome {
  int status = -1;
  double seconds = 0;
  std::string text;
};

Outcome shell(const std::string& command) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  FILE* pipe = popen(("OMP_NUM_THREADS=1 timeout 120 " + command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) outcome.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

// The sums that the ranks print; all must agree.
double sum_of(const Outcome& outcome, int ranks) {
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const std::regex line("rank (\\d+) of (\\d+) node \\d+ sum ([0-9.]+)");
  double sum = 0;
  int count = 0;
  for (std::sregex_iterator it(outcome.text.begin(), outcome.text.end(), line), end; it != end; ++it, ++count) {
    EXPECT_EQ(std::stoi((*it)[2]), ranks);
    if (count == 0) sum = std::stod((*it)[3]);
    EXPECT_EQ(std::stod((*it)[3]), sum) << outcome.text;
  }
  EXPECT_EQ(count, ranks) << outcome.text;
  return sum;
}

// Processes that still run the probe.
int left_over() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path() / "exe", error) == std::filesystem::canonical(kProbe)) ++count;
  }
  return count;
}

TEST(Starting, ByItselfAndByLevinRunEqualsOneProcess) {
  const double one = sum_of(shell(kProbe), 1);
  EXPECT_NEAR(sum_of(shell(kProbe + " --devices 2"), 2), one, 1e-3);
  EXPECT_NEAR(sum_of(shell(kLevin + " run --nproc-per-node 2 " + kProbe), 2), one, 1e-3);
  EXPECT_NEAR(sum_of(shell(kLevin + " run --standalone --nproc-per-node 4 " + kProbe + " --devices 4"), 4), one, 1e-3);
}

TEST(Starting, ByHandWithVariables) {
  const std::string common =
      "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(20000 + getpid() % 20000) + " WORLD_SIZE=2 ";
  const auto both = shell("bash -c '" + common + "RANK=1 LOCAL_RANK=1 " + kProbe + " --devices 2 & " + common +
                          "RANK=0 LOCAL_RANK=0 " + kProbe + " --devices 2; wait'");
  sum_of(both, 2);
}

// Each failure: soon (within 10 seconds on a machine with nothing else to do), a non-zero status, a line that says so,
// nobody left.
void expect_failure(const std::string& arguments, const std::vector<std::string>& says) {
  const auto outcome = shell(kProbe + " --devices 2 " + arguments);
  EXPECT_NE(outcome.status, 0) << outcome.text;
  EXPECT_LT(outcome.seconds, 30) << outcome.text;
  for (const auto& words : says)
    EXPECT_NE(outcome.text.find(words), std::string::npos) << "not said: " << words << "\n" << outcome.text;
  EXPECT_EQ(left_over(), 0);
}

TEST(Failing, KilledRankIsNamed) {
  expect_failure("--fail 1 --how kill", {"rank 1", "SIGKILL"});
}
TEST(Failing, KilledRankZeroIsNamed) {
  expect_failure("--fail 0 --how kill", {"rank 0", "SIGKILL"});
}
TEST(Failing, ExitStatusIsNamed) {
  expect_failure("--fail 1 --how exit", {"rank 1", "exit status 3"});
}
TEST(Failing, ExceptionIsShown) {
  expect_failure("--fail 1 --how throw", {"rank 1", "[probe] asked to fail"});
}
TEST(Failing, MismatchedShapesAreShown) {
  expect_failure("--fail 1 --how mismatch", {"ranks disagree", "[4]", "[5]"});
}
TEST(Failing, UnusedParameterIsNamed) {
  expect_failure("--fail 1 --how unused", {"b.weight", "find_unused_parameters"});
}
TEST(Failing, RankThatDoesNotComeIsNamed) {
  expect_failure("--fail 1 --how sleep --timeout 3", {"rank 1"});
}

TEST(Failing, WrongWorldSizeAndVariables) {
  auto outcome = shell(kLevin + " run --nproc-per-node 3 " + kProbe + " --devices 2");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.text.find("WORLD_SIZE"), std::string::npos) << outcome.text;
  outcome = shell("env RANK=0 LOCAL_RANK=0 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 NODE_RANK=0 " + kProbe +
                  " --devices 2 --num-nodes 2");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.text.find("MASTER_ADDR"), std::string::npos) << outcome.text;
  EXPECT_LT(outcome.seconds, 30);
}

TEST(Failing, InterruptAndTermEndEverything) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(1);
      execl(kProbe.c_str(), kProbe.c_str(), "--devices", "2", "--fail", "1", "--how", "sleep", nullptr);
      _exit(127);
    }
    for (int i = 0; i < 1200 && left_over() < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto start = std::chrono::steady_clock::now();
    kill(child, signal);
    int status = 0;
    waitpid(child, &status, 0);
    for (int i = 0; i < 1000 && left_over() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(left_over(), 0) << "signal " << signal;
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 30);
    if (signal == SIGTERM) {
      EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
    }
  }
}

}  // namespace
}  // namespace levin
