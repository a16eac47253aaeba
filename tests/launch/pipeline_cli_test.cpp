// levin pipeline: schedules drawn and compared, from outside.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Answer {
  int status;
  std::string out, err;
};
Answer ask(std::vector<std::string> words, const std::vector<std::string>& environment = {}) {
  words.insert(words.begin(), {levin_program(), "pipeline"});
  Process child(words, environment);
  const int status = child.wait();
  return {status, child.out(), child.err()};
}

TEST(PipelineCli, DrawsAScheduleInCharacters) {
  const auto answer = ask({"--stages", "2", "--microbatches", "3", "--schedule", "1f1b"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(answer.out,
            "1f1b: 2 ranks, 3 micro-batches\n"
            "forward 1, backward of the input 1, of the weights 1, transfer 0\n"
            "\n"
            "rank 0 F0F1. . B0--F2B1--. B2--\n"
            "rank 1 . F0B0--F1B1--F2B2--. .\n"
            "F forward  B backward  . idle\n"
            "\n"
            "total        12\n"
            "bubble       3, 25.0 % of the time; formula (p-1)(F+B) = 3\n"
            "activations  2, 1 micro-batches at most, by rank\n"
            "sends        3 a rank at most\n");
}

TEST(PipelineCli, ATerminalGetsColours) {
  const std::vector<std::string> words{"--stages", "2", "--microbatches", "3", "--schedule", "1f1b"};
  EXPECT_THAT(ask(words, {"LEVIN_TERMINAL_WIDTH=80", "NO_COLOR"}).out,
              HasSubstr("rank 0 \x1b[48;2;37;99;235m\x1b[38;2;255;255;255m0 \x1b[0m"));
  // 12 cells of 2 characters behind 7: a narrow terminal gets them in two rows.
  EXPECT_THAT(ask(words, {"LEVIN_TERMINAL_WIDTH=20", "NO_COLOR=1"}).out,
              HasSubstr("rank 0 F0F1. . B0--\nrank 1 . F0B0--F1B1\n\nrank 0 F2B1--. B2--\nrank 1 --F2B2--. .\n"));
}

TEST(PipelineCli, ComparesSchedules) {
  const auto answer = ask({"--stages", "4", "--microbatches", "9", "--backward-weight", "0.5"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out,
              HasSubstr("gpipe             1       30      7.5    25.0 %            9     18  (p-1)(F+B) = 7.5\n"));
  EXPECT_THAT(answer.out,
              HasSubstr("zb1p              1       27      4.5    16.7 %            4     18  (p-1)(F+I-W) = 4.5\n"));
  EXPECT_THAT(answer.out, HasSubstr("  0 if F=I=W\n"));
  // One that cannot take the numbers is left out, with the reason.
  EXPECT_THAT(answer.out,
              HasSubstr("left out: [pipeline] schedule \"interleaved\" with 4 ranks runs 9 micro-batches in 2"));
}

TEST(PipelineCli, WritesJsonAndAPicture) {
  TemporaryFolder folder;
  const auto path = folder.path() / "zbv.svg";
  const auto answer = ask({"--stages=2", "--microbatches=3", "--schedule=zbv", "--json", "--svg", path.string()});
  ASSERT_EQ(answer.status, 0) << answer.err;
  const auto json = nlohmann::json::parse(answer.out);
  EXPECT_EQ(json["bubble"], 0);
  EXPECT_EQ(json["formula_bubble"], 0);
  EXPECT_EQ(json["peak_activations"], (std::vector{4, 4}));
  EXPECT_EQ(json["timeline"][0]["stages"], (std::vector{0, 3}));
  EXPECT_EQ(json["timeline"][0]["actions"][1]["action"], "0SEND_F0");
  EXPECT_EQ(json["timeline"][0]["actions"][1]["peer"], 1);
  std::ifstream file(path);
  const std::string svg(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(svg, StartsWith("<svg"));
  for (const char* text : {"zbv: 2 ranks, 3 micro-batches, 2 chunks", ">weight gradient, chunk 1<", ">holds 4<"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(PipelineCli, BadInputIsOneLine) {
  const auto error = [](const std::vector<std::string>& words) {
    const auto answer = ask(words);
    EXPECT_EQ(answer.status, 1);
    EXPECT_EQ(answer.out, "");
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
    return answer.err;
  };
  EXPECT_THAT(error({"--schedule", "zpv"}), HasSubstr("did you mean \"zbv\"?"));
  EXPECT_THAT(error({"--stages", "1024", "--microbatches", "65536"}), HasSubstr("are 402653184 actions, more than"));
  EXPECT_THAT(error({"--schedule", "interleaved", "--microbatches", "9"}), HasSubstr("9 % 2 = 1"));
  EXPECT_THAT(error({"--svg", "x.svg"}), HasSubstr("--svg draws one schedule: name it"));
}

}  // namespace
}  // namespace levin::testing
