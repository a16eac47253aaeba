// What the launcher waits for when it is stopped, and whom it names last.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/process.h"
#include "tests/launch/probes.h"

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> ranks(int n, const std::vector<std::string>& actions,
                               const std::vector<std::string>& flags = {}) {
  std::vector<std::string> words{"--nproc-per-node", std::to_string(n)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(probe());
  words.insert(words.end(), actions.begin(), actions.end());
  return levin_run(words);
}

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

TEST(Stopping, WaitsForACheckpointThatIsBeingWritten) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process child(ranks(2, {"@0:save=1500", "say=up", "sleep"}, {"--stop-grace", "0.2"}));
    ASSERT_TRUE(child.wait_for("saving"));
    child.signal(signal);
    EXPECT_EQ(child.wait(), 128 + signal);
    EXPECT_THAT(child.out(), HasSubstr("saved"));
    EXPECT_THAT(child.err(),
                HasSubstr("levin: waiting for rank 0 to finish its checkpoint (Ctrl-C again to stop now)\n"));
    EXPECT_TRUE(child.all_gone());
  }
}

TEST(Stopping, DoesNotWaitAfterASecondSignal) {
  Process child(ranks(2, {"@0:save=60000", "say=up", "sleep"}, {"--stop-grace", "60"}));
  ASSERT_TRUE(child.wait_for("saving"));
  child.signal(SIGINT);
  ASSERT_TRUE(child.wait_for("to finish its checkpoint"));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 128 + SIGINT);
  EXPECT_THAT(child.out(), Not(HasSubstr("saved")));
  EXPECT_TRUE(child.all_gone());
}

TEST(Stopping, WaitsNoLongerThanItMay) {
  Process child(ranks(1, {"save=60000"}, {"--stop-grace", "0.2", "--save-grace", "0.5"}));
  ASSERT_TRUE(child.wait_for("saving"));
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 128 + SIGTERM);
  EXPECT_THAT(child.out(), Not(HasSubstr("saved")));
}

TEST(LastLine, NamesTheRankThatFailedFirst) {
  Process child(
      ranks(3, {"@1:complain=the reason", "@1:exit=3", "@0:polite", "@2:deaf", "sleep"}, {"--stop-grace", "0.5"}));
  EXPECT_EQ(child.wait(), 3);
  EXPECT_THAT(last_line(child.err()), ContainsRegex("^levin: the run failed: rank 1 \\(pid [0-9]+\\) failed first: it "
                                                    "ended with exit status 3: the reason$"));
}

TEST(LastLine, NamesARankThatSaidNothing) {
  Process silent(ranks(2, {"@1:exit=4", "sleep"}));
  EXPECT_EQ(silent.wait(), 4);
  EXPECT_THAT(last_line(silent.err()), ContainsRegex("rank 1 .* failed first: it ended with exit status 4$"));
  Process killed(ranks(2, {"@1:kill=11", "sleep"}));
  EXPECT_EQ(killed.wait(), 128 + SIGSEGV);
  EXPECT_THAT(last_line(killed.err()), ContainsRegex("rank 1 .* failed first: it was killed by SIGSEGV$"));
}

TEST(LastLine, NamesTheRankThatOthersBlame) {
  Process child(ranks(
      2, {"@0:complain=[all_reduce] rank 1 failed: boom", "@0:exit=1", "@1:ms=900", "@1:complain=boom", "@1:exit=7"}));
  EXPECT_EQ(child.wait(), 7);
  EXPECT_THAT(last_line(child.err()), ContainsRegex("rank 1 .* failed first: it ended with exit status 7: boom$"));
}

TEST(LastLine, NamesTheRankThatLeftEarly) {
  Process child(
      ranks(2, {"@1:exit=0", "@0:ms=200", "@0:complain=[barrier] rank 1 has left the group already", "@0:exit=1"}));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(last_line(child.err()),
              AllOf(ContainsRegex("rank 1 \\(pid [0-9]+\\) left first"), HasSubstr("with exit status 0")));
}

}  // namespace
}  // namespace levin::testing
