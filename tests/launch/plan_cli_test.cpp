// levin plan, from outside.
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
using ::testing::StartsWith;

struct Answer {
  int status;
  std::string out, err;
};
Answer ask(std::vector<std::string> words) {
  words.insert(words.begin(), {levin_program(), "plan"});
  Process child(words);
  const int status = child.wait();
  return {status, child.out(), child.err()};
}

TEST(PlanCli, PrintsPlansAndDraws) {
  TemporaryFolder folder;
  const auto file = folder.path() / "plan.svg";
  const auto answer = ask({"--model", "gpt3-175b", "--gpus", "1024", "--memory", "80GB", "--gpu", "a100", "--top", "3",
                           "--svg", file.string()});
  ASSERT_EQ(answer.status, 0) << answer.err;
  EXPECT_THAT(answer.out, StartsWith("gpt3-175b: 175B parameters, 96 layers, width 12288, 2048 tokens a sample\n"));
  EXPECT_THAT(answer.out, HasSubstr("levin::Fabric fabric("));
  std::ifstream in(file);
  const std::string svg{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(svg, StartsWith("<svg"));
}

TEST(PlanCli, PrintsJson) {
  const auto answer = ask({"--model", "llama-3-70b", "--gpus", "64", "--link", "400Gb", "--sequence", "4096",
                           "--tokens-per-batch", "1048576", "--json"});
  ASSERT_EQ(answer.status, 0) << answer.err;
  const auto json = nlohmann::json::parse(answer.out);
  EXPECT_EQ(json["sequence"], 4096);
  EXPECT_EQ(json["tokens_per_batch"], 1048576);
  EXPECT_EQ(json["plans"].size(), 5u);
}

TEST(PlanCli, MemoryMayHaveDecimals) {
  const auto memory = [](const std::string& words) {
    const auto answer = ask({"--model", "gpt2", "--gpus", "1", "--memory", words, "--json"});
    return answer.status == 0 ? nlohmann::json::parse(answer.out)["memory"].get<double>() : -1;
  };
  EXPECT_EQ(memory("7.3GB"), 7.3e9);
  EXPECT_EQ(memory("0.5GiB"), -1);  // too little for any plan
  EXPECT_EQ(memory("15.5GiB"), 15.5 * (1 << 30));
  for (const auto* wrong : {"7.3", "7.3.1GB", "-7GB", "1e3GB", "nanGB", ".GB", "99999999999GB"})
    EXPECT_THAT(ask({"--model", "gpt2", "--memory", wrong}).err, HasSubstr("is not a number of bytes (5GB, 7.3GB"))
        << wrong;
}

TEST(PlanCli, RefusesInOneLine) {
  for (const auto& [words, line] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "name a model: levin plan --model gpt3-175b"},
           {{"--model", "gpt3-176b"}, "did you mean \"gpt3-175b\"?"},
           {{"--model", "gpt2", "--gpus", "0"}, "--gpus 0 is not allowed"},
           {{"--model", "gpt3-175b", "--gpus", "4", "--memory", "4GB"}, "does not fit on 4 GPUs of 4.00 GB"},
           {{"--model", "gpt2", "--link", "fast"}, "is no bandwidth"},
           {{"--model", "gpt2", "--svg", "plan.txt"}, "must end with .svg or .png"}}) {
    const auto answer = ask(words);
    EXPECT_NE(answer.status, 0);
    EXPECT_THAT(answer.err, HasSubstr(line));
    EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1) << answer.err;
  }
}

}  // namespace
}  // namespace levin::testing
