// What several ranks say is shown once.
#include "levin/distributed/launcher/error_lines.h"

#include <csignal>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "tests/launch/probes.h"

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Words = std::vector<std::string>;

Words ranks(int count, const Words& actions, const Words& flags = {}) {
  Words words{"--nproc-per-node", std::to_string(count)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.push_back(probe());
  words.insert(words.end(), actions.begin(), actions.end());
  return levin_run(words);
}

/// Ranks that complain at the same time, and end when all have.
class ErrorLines : public FolderTest {
 protected:
  Words together(Words actions) const {
    actions.insert(actions.begin(), meet_("started"));
    actions.insert(actions.end() - 1, meet_("complained"));
    return actions;
  }

 private:
  const Meeting meet_;
};

TEST_F(ErrorLines, TheErrorOfAllRanksIsTheOnlyLine) {
  Process child(ranks(4, together({"complain=error: [mesh] pp 3 = 3, and there are 4 ranks", "exit=2"})));
  EXPECT_EQ(child.wait(), 2);
  EXPECT_EQ(child.err(), "[ranks 0-3] error: [mesh] pp 3 = 3, and there are 4 ranks\n");
  Process alone(ranks(1, {"complain=error: no such file", "exit=1"}));
  EXPECT_EQ(alone.wait(), 1);
  EXPECT_EQ(alone.err(), "error: no such file\n");
}

TEST_F(ErrorLines, ErrorsThatDifferAreAllShown) {
  Process child(ranks(4, together({"@0:complain=error: one", "@1:complain=error: two", "@2:complain=error: one",
                                   "@3:complain=error: three", "exit=1"})));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.err(), AllOf(HasSubstr("[ranks 0 and 2] error: one\n"), HasSubstr("[rank 1] error: two\n"),
                                 HasSubstr("[rank 3] error: three\n")));
  EXPECT_THAT(child.err(), Not(HasSubstr("\nerror: one\n")));
  // Which of them was first is still told.
  EXPECT_THAT(child.err(),
              ContainsRegex("\nlevin: the run failed: rank [0-3] \\(pid [0-9]+\\) failed first: [^\n]+\n$"));
}

TEST_F(ErrorLines, OtherOutputStaysAndKeepsItsOrder) {
  Process child(ranks(2, together({"complain=before", "say=out", "complain=error: same", "@0:complain=after 0",
                                   "@1:complain=after 1", "@1:complain=last 1", "exit=1"})));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.out(), AllOf(HasSubstr("[rank 1] out\n"), ContainsRegex("(^|\n)out\n")));
  const auto text = child.err();
  const auto error = text.find("[ranks 0 and 1] error: same\n");
  ASSERT_NE(error, std::string::npos) << text;
  for (const char* line : {"before\n", "[rank 1] before\n"}) EXPECT_LT(text.find(line), error) << line;
  for (const char* line : {"\nafter 0\n", "\n[rank 1] after 1\n[rank 1] last 1\n"}) EXPECT_GT(text.find(line), error);
  EXPECT_THAT(text, AllOf(HasSubstr("\nafter 0\n"), HasSubstr("\n[rank 1] after 1\n[rank 1] last 1\n")));
}

TEST_F(ErrorLines, ARankThatContinuesIsNotHeldBack) {
  Process child(ranks(2, {"complain=error: one of many", "complain=continues", "sleep"}));
  EXPECT_TRUE(child.wait_for("[rank 1] continues"));
  EXPECT_THAT(child.err(), HasSubstr("[ranks 0 and 1] error: one of many\n"));
  EXPECT_LT(child.seconds(), 60);
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 143);
  EXPECT_THAT(child.err(), EndsWith("levin: stopped by SIGTERM\n"));
}

TEST_F(ErrorLines, ARankThatFailsAloneIsNamed) {
  Process child(ranks(3, {"@1:complain=error: mine", "@1:exit=3", "sleep"}));
  EXPECT_EQ(child.wait(), 3);
  EXPECT_THAT(child.err(), StartsWith("[rank 1] error: mine\nlevin: rank 1 (pid "));
  EXPECT_THAT(child.err(), ContainsRegex("the run failed: rank 1 .* failed first: it ended with exit status 3: error: "
                                         "mine\n$"));
}

TEST_F(ErrorLines, ErrorsThatBlameARankNameIt) {
  Process child(ranks(3, {"@2:ms=200", "@2:kill=9", "complain=error: [all_reduce] rank 2 died", "exit=1"}));
  EXPECT_EQ(child.wait(), 137);
  EXPECT_THAT(child.err(), AllOf(HasSubstr("[ranks 0 and 1] error: [all_reduce] rank 2 died\n"),
                                 HasSubstr("the run failed: rank 2 ")));
}

TEST_F(ErrorLines, LogFilesHaveTheLineOfEachRank) {
  const auto logs = folder_ / "logs";
  Process child(ranks(2, together({"complain=error: same", "exit=1"}), {"--log-dir", logs.string(), "--tee", "3"}));
  EXPECT_EQ(child.wait(), 1);
  EXPECT_THAT(child.err(), EndsWith("[ranks 0 and 1] error: same\n"));
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(logs))
    if (entry.path().filename() == "stderr.log") {
      EXPECT_EQ(read_file(entry.path()), "error: same\n");
      ++files;
    }
  EXPECT_EQ(files, 2);
}

TEST_F(ErrorLines, OfAProgramThatStartsItsOwnRanks) {
  Words words{self_probe(), "--self", "2"};
  for (const auto& word : together({"complain=error: same", "exit=5"})) words.push_back(word);
  Process child(words);
  EXPECT_EQ(child.wait(), 5);
  EXPECT_EQ(child.err(), "[ranks 0 and 1] error: same\n");
}

}  // namespace
}  // namespace levin::testing
