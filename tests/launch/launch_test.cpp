#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"
#include "tests/launch/probes.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

/// `levin run --nproc-per-node N PROBE actions`.
Words ranks(int count, const Words& actions, const Words& flags = {}) {
  Words words{"--nproc-per-node", std::to_string(count)};
  words.insert(words.end(), flags.begin(), flags.end());
  const bool needs_levin = std::find(actions.begin(), actions.end(), "place") != actions.end();
  words.push_back(needs_levin ? self_probe() : probe());
  words.insert(words.end(), actions.begin(), actions.end());
  return levin_run(words);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// A socket that holds a port of 127.0.0.1.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), port_(free_port()) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_, 1), 0);
  }
  ~TakenPort() { ::close(fd_); }
  std::string port() const { return std::to_string(port_); }

 private:
  int fd_;
  int port_;
};

// ---- what ranks are told and what they print

TEST(Launch, RanksGetTorchrunsVariables) {
  Process child(ranks(2, {"env"}, {"--rdzv-id", "job7", "--max-restarts", "3"}),
                {"OMP_NUM_THREADS=7", "GLOBAL_RANK=5", "RANK=9"});
  EXPECT_EQ(child.wait(), 0) << child.err();
  const std::string shared =
      "ROLE_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=3 "
      "TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_USE_AGENT_STORE=True OMP_NUM_THREADS=7\n";
  EXPECT_THAT(child.out(), HasSubstr("variables RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 "
                                     "GROUP_WORLD_SIZE=1 NODE_RANK=0 ROLE_NAME=default ROLE_RANK=0 " +
                                     shared));
  EXPECT_THAT(child.out(),
              HasSubstr("[rank 1] variables RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 "
                        "GROUP_WORLD_SIZE=1 NODE_RANK=0 ROLE_NAME=default ROLE_RANK=1 " +
                        shared));
  EXPECT_EQ(child.err(), "");
}

TEST(Launch, ThreadsAreSharedAmongRanks) {
  const std::string script =
      "[ $RANK != 0 ] || echo $OMP_NUM_THREADS ${LEVIN_TERMINAL_WIDTH-none} ${TORCHELASTIC_ERROR_FILE-none}";
  Process child(levin_run({"--nproc-per-node", "64", "sh", "-c", script}),
                {"OMP_NUM_THREADS", "LEVIN_TERMINAL_WIDTH=80"});
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_EQ(child.out(), fmt::format("{} none none\n", std::max(std::thread::hardware_concurrency() / 64, 1u)));
}

TEST(Launch, RanksFindTheirPlaceInTheVariables) {
  Process child(ranks(2, {"place"}));
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.out(),
              ContainsRegex("placement torchelastic rank 0 of 2 local 0 of 2 node 0 at 127.0.0.1:[0-9]+\n"));
  EXPECT_THAT(child.out(), HasSubstr("[rank 1] placement torchelastic rank 1 of 2"));
}

TEST(Launch, RankZeroIsPassedThroughAndOthersLineByLine) {
  // Rank 0's unfinished line must arrive while it still runs; another rank's line does not land in the middle of it.
  Process child(ranks(2, {"@0:part=live", "@1:part=one", "@1:ms=50", "@1:part=two\n", "@0:ms=1500", "@0:part=rest\n"}));
  EXPECT_TRUE(child.wait_for("live"));
  EXPECT_EQ(child.out().find("rest"), std::string::npos);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.out(), HasSubstr("[rank 1] onetwo\n"));
  EXPECT_THAT(child.out(), Not(HasSubstr("live[rank")));
}

TEST(Launch, AnUnfinishedLastLineIsShown) {
  Process child(ranks(2, {"@1:part=no end"}));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), "[rank 1] no end\n");
}

TEST(Launch, ProgressBarsOfOtherRanksShowTheirLastState) {
  Process child(ranks(2, {"bar"}));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.err(), HasSubstr("\rbar 1/5\rbar 2/5\rbar 3/5\rbar 4/5\rbar 5/5\n"));
  EXPECT_THAT(child.err(), HasSubstr("[rank 1] bar 5/5\n"));
  EXPECT_THAT(child.err(), Not(HasSubstr("[rank 1] bar 4/5")));
}

TEST(Launch, MuchOutputArrivesWhole) {
  Process child(ranks(2, {"lines=20000"}));
  EXPECT_EQ(child.wait(), 0);
  std::string of_zero, of_one, expected_of_zero, expected_of_one;
  std::istringstream lines(child.out());
  for (std::string line; std::getline(lines, line);) (line.starts_with("[rank 1] ") ? of_one : of_zero) += line;
  for (int i = 0; i < 20000; ++i) {
    expected_of_zero += fmt::format("line {} of rank 0", i);
    expected_of_one += fmt::format("[rank 1] line {} of rank 1", i);
  }
  // Compared without line ends: where rank 0 stops in the middle of a line for long, a line of rank 1 breaks it.
  EXPECT_TRUE(of_zero == expected_of_zero);
  EXPECT_TRUE(of_one == expected_of_one);
  EXPECT_TRUE(child.out().ends_with('\n'));
}

TEST(Launch, ASlowReaderLosesNothing) {
  Process child({"/bin/sh", "-c", fmt::format("{} run {} lines=300000 | (sleep 1; wc -l)", levin_program(), probe())});
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), "300000\n");
}

TEST(Launch, RankZeroReadsStandardInput) {
  Process child(ranks(2, {"cat"}), {}, "words for rank 0\n");
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), "words for rank 0\n");
}

TEST(Launch, NoFileOfTheLauncherReachesTheRanks) {
  Process alone({probe(), "files"});
  EXPECT_EQ(alone.wait(), 0);
  Process child(ranks(1, {"files"}));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), alone.out());
}

TEST(Launch, OnlyChosenRanksAreShown) {
  Process child(ranks(3, {"say=hello"}, {"--local-ranks-filter", "1"}));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), "[rank 1] hello\n");
}

TEST(Launch, LogFilesAsAsked) {
  const TemporaryFolder temporary;
  const auto folder = temporary / "logs";
  Process child(
      ranks(2, {"say=words", "complain=sorrow", "get=TORCHELASTIC_ERROR_FILE"},
            {"--log-dir", folder.string(), "--redirects", "0:1,1:3", "--tee", "0:2,1:2", "--rdzv-id", "night"}));
  EXPECT_EQ(child.wait(), 0) << child.err();
  fs::path run;
  for (const auto& entry : fs::directory_iterator(folder)) run = entry.path();
  EXPECT_THAT(run.filename().string(), ::testing::StartsWith("night_"));
  EXPECT_THAT(read_file(run / "attempt_0/0/stdout.log"), HasSubstr("words\n"));
  EXPECT_THAT(read_file(run / "attempt_0/0/stdout.log"), HasSubstr((run / "attempt_0/0/error.json").string()));
  EXPECT_EQ(read_file(run / "attempt_0/0/stderr.log"), "sorrow\n");
  EXPECT_THAT(read_file(run / "attempt_0/1/stdout.log"), HasSubstr("words\n"));
  EXPECT_EQ(read_file(run / "attempt_0/1/stderr.log"), "sorrow\n");
  EXPECT_EQ(child.out(), "");                                // both were redirected
  EXPECT_THAT(child.err(), HasSubstr("[rank 1] sorrow\n"));  // tee wins over the redirect
  EXPECT_EQ(count(child.err(), "sorrow\n"), 2u);
}

// ---- failures

TEST(Fault, TheFailedRankIsNamedWithItsLastLines) {
  Process child(ranks(3, {"@1:complain=before", "@1:complain=the reason", "@1:exit=3", "sleep"}));
  EXPECT_EQ(child.wait(), 3);
  EXPECT_THAT(
      child.err(),
      ContainsRegex(
          "levin: rank 1 \\(pid [0-9]+\\) ended with exit status 3; its last lines:\n    before\n    the reason\n"));
  EXPECT_LT(child.seconds(), 90);
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, OnlyTheLastTenLinesAreRepeated) {
  Words actions;
  for (int i = 0; i < 30; ++i) actions.push_back(fmt::format("@0:complain=line {}", i));
  actions.push_back("@0:exit=1");
  Process child(ranks(1, actions));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.err(),
              AllOf(HasSubstr("    line 20\n"), HasSubstr("    line 29\n"), Not(HasSubstr("    line 19\n"))));
}

TEST(Fault, KillOfAnyRank) {
  for (const int victim : {0, 1, 2}) {
    Process child(ranks(3, {"say=up", "sleep"}));
    while (child.out().find("[rank 1] up") == std::string::npos ||
           child.out().find("[rank 2] up") == std::string::npos || child.out().find("up\n") == std::string::npos)
      ASSERT_TRUE(child.wait_for("[rank 1] up") && child.wait_for("[rank 2] up"));
    const auto pid = child.rank(victim);
    ASSERT_GT(pid, 0);
    const auto start = std::chrono::steady_clock::now();
    ::kill(pid, SIGKILL);
    EXPECT_EQ(child.wait(), 137);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_THAT(child.err(),
                HasSubstr(fmt::format("levin: rank {} (pid {}) was killed by SIGKILL (out of memory?", victim, pid)));
    EXPECT_TRUE(child.all_gone());
  }
}

TEST(Fault, TheCauseIsNamedNotTheConsequences) {
  // Rank 0 fails first, but as one does whose peer has died; rank 2 dies a moment later.
  const Meeting meet;
  Process signal(ranks(3, {meet(), "@0:exit=1", "@1:exit=1", "@2:ms=100", "@2:kill=11"}));
  EXPECT_EQ(signal.wait(), 139);
  EXPECT_THAT(signal.err(), ContainsRegex("levin: rank 2 \\(pid [0-9]+\\) was killed by SIGSEGV"));
  Process reset(ranks(2, {meet("again"), "@0:complain=Connection reset by peer", "@0:exit=1", "@1:ms=100",
                          "@1:complain=real", "@1:exit=2"}));
  EXPECT_EQ(reset.wait(), 2);
  EXPECT_THAT(reset.err(),
              ContainsRegex("levin: rank 1 \\(pid [0-9]+\\) ended with exit status 2; its last lines:\n    real"));
}

TEST(Fault, RanksThatDoNotHeedAreKilled) {
  const Meeting meet;
  Process child(ranks(2, {"@0:deaf", "say=up", meet(), "@1:exit=5", "sleep"}, {"--stop-grace", "1"}));
  EXPECT_EQ(child.wait(), 5);
  EXPECT_THAT(child.err(), HasSubstr("levin: rank 0 did not end within 1 s and was killed\n"));
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, ADeafRankIsKilledSoonByDefault) {
  const Meeting meet;
  Process child(ranks(2, {"@0:deaf", meet(), "@1:exit=5", "sleep"}));
  EXPECT_EQ(child.wait(), 5);
  EXPECT_LT(child.seconds(), 60);
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, OtherRanksMayEndInOrder) {
  const Meeting meet;
  Process child(ranks(2, {"@0:polite", meet(), "@1:exit=5", "sleep"}));
  EXPECT_EQ(child.wait(), 5);
  EXPECT_THAT(child.out(), HasSubstr("got SIGTERM\n"));
}

TEST(Fault, AStoppedRankIsEndedToo) {
  Process child(ranks(2, {"say=up", "@1:ms=1000", "@1:exit=5", "sleep"}));
  ASSERT_TRUE(child.wait_for("up"));
  if (const auto pid = child.rank(0)) ::kill(pid, SIGSTOP);
  EXPECT_EQ(child.wait(), 5);
  EXPECT_LT(child.seconds(), 90);
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, GrandchildrenGoWithAFailedRun) {
  const Meeting meet;
  Process child(ranks(2, {"fork", meet(), "@1:exit=6", "sleep"}));
  EXPECT_EQ(child.wait(), 6);
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, GrandchildrenThatHoldTheOutputDelayNothing) {
  Process child(ranks(2, {"fork", "say=bye"}));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.out(), HasSubstr("[rank 1] bye\n"));
  EXPECT_LT(child.seconds(), 90);
  EXPECT_EQ(child.descendants().size(), 2u);  // after success they are left alone
}

TEST(Fault, KillOfTheLauncherLeavesNothing) {
  Process child(ranks(3, {"deaf", "say=up", "sleep"}));
  ASSERT_TRUE(child.wait_for("[rank 1] up") && child.wait_for("[rank 2] up"));
  EXPECT_EQ(child.descendants().size(), 3u);
  child.signal(SIGKILL);
  EXPECT_EQ(child.wait(), 137);
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, SignalsEndTheRunInOrder) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    Process child(ranks(2, {"say=up", "sleep"}));
    ASSERT_TRUE(child.wait_for("[rank 1] up"));
    child.signal(signal);
    EXPECT_EQ(child.wait(), 128 + signal);
    EXPECT_EQ(child.err(), fmt::format("levin: stopped by SIG{}\n", ::sigabbrev_np(signal)));
    EXPECT_LT(child.seconds(), 90);
    EXPECT_TRUE(child.all_gone());
  }
}

TEST(Fault, RanksGetTheSignalAndTimeToEnd) {
  const Meeting meet;
  Process child(ranks(2, {"polite", meet(), "say=up", "sleep"}));
  ASSERT_TRUE(child.wait_for("[rank 1] up"));
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 143);
  EXPECT_THAT(child.out(), AllOf(HasSubstr("\ngot SIGTERM\n"), HasSubstr("[rank 1] got SIGTERM\n")));
}

TEST(Fault, ASecondInterruptKillsAtOnce) {
  Process child(ranks(2, {"deaf", "say=up", "sleep"}, {"--stop-grace", "300"}));
  ASSERT_TRUE(child.wait_for("[rank 1] up"));
  child.signal(SIGINT);
  ASSERT_TRUE(child.wait_for("stopped by SIGINT"));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_LT(child.seconds(), 90);
  EXPECT_TRUE(child.all_gone());
}

TEST(Fault, ARestartCanSucceed) {
  Process child(ranks(2, {"@1:failfirst=4", "@0:failfirst=0", "say=second", "get=TORCHELASTIC_RESTART_COUNT"},
                      {"--max-restarts", "2"}));
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.err(), AllOf(HasSubstr("ended with exit status 4"),
                                 HasSubstr("levin: starting all ranks again (restart 1 of 2)\n")));
  EXPECT_THAT(child.out(), AllOf(HasSubstr("TORCHELASTIC_RESTART_COUNT=1\n"), HasSubstr("[rank 1] second\n")));
}

TEST(Fault, EveryAttemptHasAStoreOfItsOwn) {
  Process child(ranks(1, {"get=MASTER_PORT", "exit=1"}, {"--max-restarts", "1"}));
  EXPECT_EQ(child.wait(), 1);
  std::set<std::string> ports;
  std::istringstream lines(child.out());
  for (std::string line; std::getline(lines, line);) ports.insert(line);
  EXPECT_EQ(ports.size(), 2u) << child.out();
}

TEST(Fault, RestartsRunOut) {
  Process child(ranks(2, {"@1:exit=7", "sleep"}, {"--max-restarts", "2"}));
  EXPECT_EQ(child.wait(), 7);
  // Once for each attempt, and once more in the last line, which says how the run ended.
  EXPECT_EQ(count(child.err(), "ended with exit status 7"), 4u);
  EXPECT_EQ(count(child.err(), "the run failed: rank 1"), 1u);
  EXPECT_EQ(count(child.err(), "starting all ranks again"), 2u);
}

TEST(Fault, AReaderThatGoesAwayEndsTheRun) {
  Process child({"/bin/sh", "-c", fmt::format("{} run {} lines=200000 sleep | head -1", levin_program(), probe())});
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(child.out(), "line 0 of rank 0\n");
  EXPECT_LT(child.seconds(), 90);
  EXPECT_THAT(child.err(), HasSubstr("was killed by SIGPIPE"));
  EXPECT_TRUE(child.all_gone());
}

// ---- what cannot be started

TEST(Refused, OneLineNamesTheProblem) {
  const TakenPort taken;
  const std::vector<std::pair<Words, std::string>> cases{
      {{"/nowhere/program"}, "error: [launch] program \"/nowhere/program\" is not found\n"},
      {{"no_such_program"}, "error: [launch] program \"no_such_program\" is not found in PATH\n"},
      {{"/etc/passwd"}, "error: [launch] program \"/etc/passwd\" is not executable (chmod +x?)\n"},
      {{"/tmp"}, "error: [launch] program \"/tmp\" is a folder\n"},
      {{"--nproc-per-node", "0", "true"}, "error: [levin run] --nproc-per-node 0 is out of range"},
      {{"--nnodes", "2", "--node-rank", "1", "true"}, "MASTER_ADDR"},
      {{"--master-port", taken.port(), "true"}, "port " + taken.port() + " of address 127.0.0.1 is in use"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", taken.port(), "true"},
       "port " + taken.port() + " of address 127.0.0.1 is in use"},
      {{"--nnodes", "2", "--node-rank", "0", "--master-addr", "192.0.2.1", "true"},
       "192.0.2.1 is not one of this machine"},
  };
  for (const auto& [words, line] : cases) {
    Process child(levin_run(words));
    EXPECT_EQ(child.wait(), 1);
    EXPECT_THAT(child.err(), AllOf(::testing::StartsWith("error: ["), HasSubstr(line)));
    EXPECT_EQ(count(child.err(), "\n"), 1u) << child.err();
    EXPECT_LT(child.seconds(), 90);
  }
}

TEST(Refused, AFileThatCannotRunIsReported) {
  const TemporaryFolder folder;
  const auto path = (folder / "not_a_program").string();
  write_file(path, "no program\n");
  fs::permissions(path, fs::perms::owner_all);
  Process child(levin_run({path}));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.err(), HasSubstr("cannot be started: Exec format error"));
}

// ---- programs that start their own ranks

TEST(LaunchSelf, RunsTheProgramAgainAsRanks) {
  Process child({self_probe(), "--self", "2", "say=hello there", "place"});
  EXPECT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.out(), AllOf(HasSubstr("[rank 1] hello there\n"), HasSubstr("rank 0 of 2"),
                                 HasSubstr("[rank 1] placement torchelastic rank 1 of 2")));
}

TEST(LaunchSelf, FailsLikeTheLauncher) {
  Process child({self_probe(), "--self", "2", "@1:kill=9", "sleep"});
  EXPECT_EQ(child.wait(), 137);
  EXPECT_THAT(child.err(), ContainsRegex("levin: rank 1 \\(pid [0-9]+\\) was killed by SIGKILL"));
  EXPECT_TRUE(child.all_gone());
  Process killed({self_probe(), "--self", "2", "say=up", "sleep"});
  ASSERT_TRUE(killed.wait_for("[rank 1] up"));
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.wait(), 137);
  EXPECT_TRUE(killed.all_gone());
}

TEST(LaunchSelf, WrongWorldsAreRefused) {
  Process world({self_probe(), "--self", "2", "place"}, {"WORLD_SIZE=4"});
  EXPECT_EQ(world.wait(), 1);
  EXPECT_THAT(world.err(), HasSubstr("WORLD_SIZE=4, but devices x num_nodes = 2 x 1 = 2"));
  Process nested(ranks(3, {"--self", "2", "place"}));
  EXPECT_EQ(nested.wait(), 1);
  EXPECT_THAT(nested.err(), HasSubstr("WORLD_SIZE=3, but devices x num_nodes = 2 x 1 = 2"));
  Process address({self_probe(), "--self", "2", "--nodes", "2", "place"},
                  {"NODE_RANK=0", "MASTER_PORT=29500", "MASTER_ADDR"});
  EXPECT_EQ(address.wait(), 1);
  EXPECT_THAT(address.err(), HasSubstr("MASTER_ADDR is not set"));
}

}  // namespace
}  // namespace levin::testing
