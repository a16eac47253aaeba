#include "levin/distributed/rank_failure.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/distributed/failure.h"

namespace levin::detail {
namespace {

RankFailure rank(int number, ExitStatus status, std::vector<std::string> lines = {}) {
  RankFailure failure;
  failure.rank = number;
  failure.pid = 100 + number;
  failure.host = "host";
  failure.status = status;
  failure.last_lines = std::move(lines);
  return failure;
}

int cause(const std::vector<RankFailure>& failures) {
  return root_cause(failures).rank;
}

TEST(Failures, TheCauseExplainsTheOthers) {
  EXPECT_EQ(cause({rank(2, {1, 0}), rank(0, {1, 0})}), 2);              // the earliest
  EXPECT_EQ(cause({rank(2, {1, 0}), rank(0, {0, SIGKILL})}), 0);        // a sudden death
  EXPECT_EQ(cause({rank(2, {0, SIGSEGV}), rank(0, {0, SIGKILL})}), 2);  // the earliest of two
  EXPECT_EQ(cause({rank(2, {0, SIGABRT}), rank(0, {0, SIGSEGV})}), 0);  // aborts may be consequences
  EXPECT_EQ(cause({rank(2, {0, SIGABRT}), rank(0, {1, 0})}), 2);        // but need not be
  EXPECT_EQ(cause({rank(2, {1, 0}, {"x: Connection reset by peer"}), rank(0, {1, 0})}), 0);
  EXPECT_EQ(cause({rank(2, {1, 0}, {"Broken pipe"}), rank(0, {1, 0}, {"Broken pipe"})}), 2);
  EXPECT_EQ(cause({rank(2, {0, SIGKILL}), RankFailure::stopped_by(SIGTERM, 1, "host")}), -1);  // being told to stop
}

TEST(Failures, WhatAllSayIsFound) {
  const ExitStatus one{1, 0}, two{2, 0}, killed{0, SIGKILL};
  const auto common = [](const std::vector<RankFailure>& failures) { return common_error(failures); };
  EXPECT_EQ(common({rank(0, one, {"a", "error: x"}), rank(1, one, {"error: x", "b"})}), "error: x");
  EXPECT_EQ(common({rank(0, one, {"error: x"}), rank(1, one, {"error: y"})}), "");
  EXPECT_EQ(common({rank(0, one, {"error: x"}), rank(1, two, {"error: x"})}), "");
  EXPECT_EQ(common({rank(0, one, {"error: x"}), rank(1, one, {"x"})}), "");
  EXPECT_EQ(common({rank(0, one, {"error: x"}), rank(1, killed, {"error: x"})}), "");
  EXPECT_EQ(common({rank(0, one, {"error: rank 2 died"}), rank(1, one, {"error: rank 2 died"})}), "");
  EXPECT_EQ(common({rank(0, one, {"error: x"}), RankFailure::stopped_by(SIGTERM, 0, "host")}), "");
}

TEST(Failures, RanksAreListed) {
  const auto list = [](const std::vector<int>& numbers) { return rank_list(numbers); };
  EXPECT_EQ(list({3}), "rank 3");
  EXPECT_EQ(list({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(list({0, 1, 2, 3}), "ranks 0-3");
  EXPECT_EQ(list({0, 2, 3, 4, 7}), "ranks 0, 2-4 and 7");
  EXPECT_EQ(list({0, 1, 5, 6}), "ranks 0, 1, 5 and 6");
}

// Of every form that a list of ranks has.
TEST(Failures, BlameTheRanksOfALine) {
  for (const std::vector<int>& ranks : {std::vector{3}, {0, 2}, {0, 2, 3, 4, 7}, {2, 3, 4, 5}})
    EXPECT_EQ(blamed_ranks(rank(1, {1, 0}, {"error: [join] " + rank_list(ranks) + " did not arrive"})), ranks);
  EXPECT_THAT(blamed_ranks(rank(1, {1, 0}, {"ranks 0-2 died"})), ::testing::ElementsAre(0, 2));  // not itself
  EXPECT_THAT(blamed_ranks(rank(1, {1, 0}, {"ranks 5-2 died"})), ::testing::IsEmpty());
  EXPECT_LT(blamed_ranks(rank(1, {1, 0}, {"ranks 0-99999999 died"})).size(), 2'000'000u);
}

TEST(Failures, TravelAsText) {
  const auto failure = rank(3, {0, SIGKILL}, {"a \"quoted\" line", "", "not UTF-8: \xff"});
  const auto back = RankFailure::from_json(failure.to_json());
  EXPECT_EQ(back.rank, 3);
  EXPECT_EQ(back.pid, 103);
  EXPECT_EQ(back.host, "host");
  EXPECT_EQ(back.status.signal, SIGKILL);
  EXPECT_EQ(back.last_lines[0], failure.last_lines[0]);
  EXPECT_EQ(back.last_lines.size(), 3u);
  EXPECT_THROW(RankFailure::from_json("{}"), Error);
  EXPECT_THROW(RankFailure::from_json("no"), Error);
}

TEST(Failures, AreDescribedInOneLine) {
  EXPECT_EQ(describe(rank(1, {3, 0}), false), "levin: rank 1 (pid 101) ended with exit status 3");
  EXPECT_EQ(describe(rank(1, {3, 0}, {"why"}), true),
            "levin: rank 1 (node 0, host, pid 101) ended with exit status 3; its last lines:\n    why");
  EXPECT_EQ(describe(rank(1, {0, SIGKILL}), false),
            "levin: rank 1 (pid 101) was killed by SIGKILL (out of memory? the kernel log may tell)");
  EXPECT_EQ(describe(rank(1, {0, SIGSEGV}), false), "levin: rank 1 (pid 101) was killed by SIGSEGV");
  EXPECT_EQ(describe(RankFailure::stopped_by(SIGTERM, 2, "host"), false), "levin: stopped by SIGTERM");
  EXPECT_EQ(describe(RankFailure::stopped_by(SIGTERM, 2, "host"), true), "levin: node 2 (host) was stopped by SIGTERM");
}

}  // namespace
}  // namespace levin::detail
