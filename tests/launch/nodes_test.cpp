// Several nodes on one machine: one launcher each.
#include <chrono>
#include <csignal>
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/process.h"
#include "tests/launch/probes.h"

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

struct TwoNodes {
  TwoNodes(const Words& actions, const Words& flags = {}, bool told = true, const Words& nproc = {"1", "1"}) {
    const auto port = std::to_string(free_port());
    for (int i = 0; i < 2; ++i) {
      Words words{"--nnodes", "2", "--nproc-per-node", nproc[static_cast<size_t>(i)]};
      const Words where =
          told ? Words{"--node-rank", std::to_string(i), "--master-addr", "127.0.0.1", "--master-port", port}
               : Words{"--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:" + port};
      words.insert(words.end(), where.begin(), where.end());
      words.insert(words.end(), flags.begin(), flags.end());
      words.push_back(actions.front() == "place" ? self_probe() : probe());
      words.insert(words.end(), actions.begin(), actions.end());
      nodes[i] = std::make_unique<Process>(levin_run(words));
    }
  }
  Process& operator[](int i) { return *nodes[i]; }
  std::unique_ptr<Process> nodes[2];
};

TEST(Nodes, RanksAreNumberedAcrossNodes) {
  TwoNodes run({"place"}, {}, true, {"1", "2"});
  EXPECT_EQ(run[0].wait(), 0) << run[0].err();
  EXPECT_EQ(run[1].wait(), 0) << run[1].err();
  EXPECT_THAT(run[0].out(), HasSubstr("rank 0 of 3 local 0 of 1 node 0 at 127.0.0.1:"));
  EXPECT_THAT(run[1].out(), HasSubstr("[rank 1] placement torchelastic rank 1 of 3 local 0 of 2 node 1 at 127.0.0.1:"));
  EXPECT_THAT(run[1].out(), HasSubstr("[rank 2] placement torchelastic rank 2 of 3 local 1 of 2 node 1 at 127.0.0.1:"));
}

TEST(Nodes, AgreeOnTheirRanksAtAnEndpoint) {
  TwoNodes run({"place"}, {}, false);
  EXPECT_EQ(run[0].wait(), 0) << run[0].err();
  EXPECT_EQ(run[1].wait(), 0) << run[1].err();
  const auto both = run[0].out() + run[1].out();
  EXPECT_THAT(both, AllOf(HasSubstr("rank 0 of 2 local 0 of 1 node 0"),
                          HasSubstr("[rank 1] placement torchelastic rank 1 of 2 local 0 of 1 node 1")));
}

TEST(Nodes, AFailureOnOneEndsAll) {
  TwoNodes run({"@1:complain=why", "@1:ms=300", "@1:exit=9", "sleep"});
  for (int i : {0, 1}) {
    EXPECT_EQ(run[i].wait(), 9);
    EXPECT_THAT(
        run[i].err(),
        ContainsRegex(
            "levin: rank 1 \\(node 1, [^,]+, pid [0-9]+\\) ended with exit status 9; its last lines:\n    why\n"));
    EXPECT_LT(run[i].seconds(), 90);
    EXPECT_TRUE(run[i].all_gone());
  }
}

TEST(Nodes, TheCauseIsTheSameEverywhere) {
  TwoNodes run({"@0:complain=Connection reset by peer", "@0:exit=1", "@1:ms=150", "@1:kill=9"});
  for (int i : {0, 1}) {
    EXPECT_EQ(run[i].wait(), 137);
    EXPECT_THAT(run[i].err(), ContainsRegex("levin: rank 1 \\(node 1, [^,]+, pid [0-9]+\\) was killed by SIGKILL"));
  }
}

TEST(Nodes, ARestartRestartsAll) {
  TwoNodes run({"@1:failfirst=4", "@0:get=TORCHELASTIC_RESTART_COUNT", "@0:ms=800", "@0:failfirst=0", "say=second"},
               {"--max-restarts", "1"});
  for (int i : {0, 1}) {
    EXPECT_EQ(run[i].wait(), 0) << run[i].err();
    EXPECT_THAT(run[i].err(), HasSubstr("levin: starting all ranks again (restart 1 of 1)"));
    EXPECT_THAT(run[i].out(), HasSubstr("second\n"));
  }
}

TEST(Nodes, ASignalToOneStopsAll) {
  for (const int told : {0, 1}) {
    TwoNodes run({"say=up", "sleep"});
    ASSERT_TRUE(run[0].wait_for("up"));
    ASSERT_TRUE(run[1].wait_for("up"));
    run[told].signal(SIGTERM);
    for (int i : {0, 1}) {
      EXPECT_EQ(run[i].wait(), 143);
      EXPECT_THAT(run[i].err(),
                  ContainsRegex(fmt::format("levin: node {} \\([^)]+\\) was stopped by SIGTERM\n", told)));
      EXPECT_LT(run[i].seconds(), 90);
      EXPECT_TRUE(run[i].all_gone());
    }
  }
}

TEST(Nodes, TheDeathOfTheFirstLauncherIsNoticed) {
  TwoNodes run({"say=up", "sleep"});
  ASSERT_TRUE(run[0].wait_for("up"));
  ASSERT_TRUE(run[1].wait_for("up"));
  run[0].signal(SIGKILL);
  EXPECT_EQ(run[0].wait(), 137);
  EXPECT_EQ(run[1].wait(), 1);
  // The last line of a run that failed says how it ended.
  EXPECT_THAT(run[1].err(), ::testing::MatchesRegex("levin: node 0 [^\n]+ does not answer any more[^\n]+\n"
                                                    "levin: the run failed: node 0 [^\n]+ was lost\n"));
  EXPECT_LT(run[1].seconds(), 90);
  EXPECT_TRUE(run[0].all_gone());
  EXPECT_TRUE(run[1].all_gone());
}

TEST(Nodes, TheDeathOfAnotherLauncherIsNamedWhenItsPeersFail) {
  // Rank 0 fails as one does whose peer has died.
  TwoNodes run({"say=up", "@0:ms=1500", "@0:complain=Connection reset by peer", "@0:exit=1", "sleep"},
               {"--stop-grace", "1"});
  ASSERT_TRUE(run[1].wait_for("up"));
  run[1].signal(SIGKILL);
  EXPECT_EQ(run[1].wait(), 137);
  EXPECT_EQ(run[0].wait(), 1);
  EXPECT_THAT(run[0].err(), ContainsRegex("levin: node 1 \\([^)]+\\) did not say how it ended"));
  EXPECT_LT(run[0].seconds(), 90);
  EXPECT_TRUE(run[1].all_gone());
}

TEST(Nodes, AMissingNodeIsNamed) {
  const auto port = std::to_string(free_port());
  const Words common{"--nnodes",      "2",  "--master-addr", "127.0.0.1",
                     "--master-port", port, "--rdzv-conf",   "join_timeout=1"};
  for (const char* node : {"0", "1"}) {
    Words words = common;
    words.insert(words.end(), {"--node-rank", node, "true"});
    Process child(levin_run(words));
    EXPECT_EQ(child.wait(), 1);
    EXPECT_LT(child.seconds(), 90);
    if (std::string(node) == "0") {
      EXPECT_THAT(child.err(), HasSubstr("node 1 of 2 did not join the run at 127.0.0.1 port " + port + " within 1 s"));
    } else {
      EXPECT_THAT(child.err(), AllOf(HasSubstr("127.0.0.1"), HasSubstr(port), HasSubstr("did not answer")));
    }
  }
}

TEST(Nodes, ASignalWhileWaitingEndsTheWait) {
  const auto port = std::to_string(free_port());
  Process child(
      levin_run({"--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", port, "true"}));
  ASSERT_TRUE(child.wait_for("waiting for node 1 of 2 to join"));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_THAT(child.err(), HasSubstr("stopped by SIGINT while waiting"));
}

TEST(Nodes, ContradictionsAreRefused) {
  const auto port = std::to_string(free_port());
  const Words where{"--master-addr", "127.0.0.1", "--master-port", port, "--rdzv-conf", "join_timeout=8"};
  const auto start = [&](const Words& flags) {
    Words words = where;
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back("true");
    return std::make_unique<Process>(levin_run(words));
  };
  auto first = start({"--nnodes", "3", "--node-rank", "0"});
  auto second = start({"--nnodes", "3", "--node-rank", "1"});
  ASSERT_TRUE(second->wait_for("waiting for node 2 of 3"));
  auto twin = start({"--nnodes", "3", "--node-rank", "1"});
  EXPECT_EQ(twin->wait(), 1);
  EXPECT_THAT(twin->err(), HasSubstr("--node-rank 1 was given to two nodes"));
  auto other = start({"--nnodes", "4", "--node-rank", "2"});
  EXPECT_EQ(other->wait(), 1);
  EXPECT_THAT(other->err(), HasSubstr("node 0 was started with --nnodes 3, this one with --nnodes 4"));
}

}  // namespace
}  // namespace levin::testing
