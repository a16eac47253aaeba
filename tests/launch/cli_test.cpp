// The levin program itself.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
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
using ::testing::HasSubstr;

const std::string kLevin = levin_program();

TEST(Cli, SaysItsVersionAndItsCommands) {
  Process version({kLevin, "--version"});
  EXPECT_EQ(version.wait(), 0);
  EXPECT_THAT(version.out(), ::testing::MatchesRegex("levin [0-9.]+ \\(LibTorch [0-9.]+\\)\n"));
  Process help({kLevin, "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(), AllOf(HasSubstr("\n  run  "), HasSubstr("\n  new  ")));
  Process nothing({kLevin});
  EXPECT_EQ(nothing.wait(), 1);
  EXPECT_THAT(nothing.err(), HasSubstr("Usage: levin COMMAND"));
}

TEST(Cli, AnUnknownCommandIsToldTheNearest) {
  Process child({kLevin, "rnu"});
  EXPECT_EQ(child.wait(), 1);
  EXPECT_EQ(
      child.err(),
      "error: [levin] command \"rnu\" is not known; did you mean \"run\"? (known: fit, validate, test, predict, "
      "recipes, run, pack, data, memory, pipeline, plan, new, inspect, convert, score, generate, serve, tokenize, "
      "report, completion)\n");
}

TEST(Cli, NewWritesAProjectOnce) {
  const TemporaryFolder temporary;
  const auto folder = temporary / "deep" / "deep app";
  Process first({kLevin, "new", "app", folder.string()});
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_THAT(first.out(), AllOf(HasSubstr("cmake --build"), HasSubstr("/build/app")));
  EXPECT_THAT(read_file(folder / "CMakeLists.txt"),
              AllOf(HasSubstr("find_package(Levin REQUIRED)"), HasSubstr("Levin::levin")));
  const auto text = read_file(folder / "main.cpp");
  EXPECT_THAT(text, AllOf(HasSubstr("levin::Fabric"), HasSubstr("fabric.launch(args)")));
  Process second({kLevin, "new", "app", folder.string()});
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.err(), HasSubstr("CMakeLists.txt\" is there already"));
  EXPECT_EQ(read_file(folder / "main.cpp"), text);
}

TEST(Cli, NewRefusesWhatItDoesNotKnow) {
  for (const auto& [words, line] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{kLevin, "new"}, "known: app"},
           {{kLevin, "new", "apps"}, "\"apps\" stands where \"app\" must (levin new app"},
           {{kLevin, "new", "app", "--force"}, "\"--force\" is not known"},
           {{kLevin, "new", "app", "a", "b"}, "\"b\" is one word too many"},
           {{kLevin, "new", "app", "/proc/no"}, "cannot be made"}}) {
    Process child(words);
    EXPECT_EQ(child.wait(), 1);
    EXPECT_THAT(child.err(), AllOf(::testing::StartsWith("error: [levin new] "), HasSubstr(line)));
  }
}

TEST(Cli, RankZeroLearnsTheWidthOfTheTerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  char name[64];
  ASSERT_EQ(::ptsname_r(terminal, name, sizeof(name)), 0);
  const int slave = ::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
  const winsize size{.ws_row = 24, .ws_col = 123, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  Process child(
      {"/bin/sh", "-c",
       fmt::format("exec {} run --nproc-per-node 2 {} get=LEVIN_TERMINAL_WIDTH 2>{}", kLevin, probe(), name)});
  EXPECT_EQ(child.wait(), 0);
  EXPECT_THAT(child.out(), AllOf(::testing::ContainsRegex("(^|\n)LEVIN_TERMINAL_WIDTH=123\n"),
                                 HasSubstr("[rank 1] LEVIN_TERMINAL_WIDTH=(none)\n")));
  ::close(slave);
  ::close(terminal);
}

}  // namespace
}  // namespace levin::testing
