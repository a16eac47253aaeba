// The program `levin`, run as a user would.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace levin {
namespace {

struct Outcome {
  int status = -1;
  std::string text;
};

Outcome levin_program(const std::string& arguments) {
  const std::string command = "'" LEVIN_BINARY_DIR "/bin/levin' " + arguments + " 2>&1";
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) outcome.text.append(buffer.data(), n);
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}

TEST(Cli, HelpAndVersion) {
  const auto help = levin_program("--help");
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.text.find("run"), std::string::npos);
  EXPECT_NE(help.text.find("new"), std::string::npos);
  EXPECT_NE(levin_program("--version").text.find("0.1.0"), std::string::npos);
}

TEST(Cli, UnknownWordsGetOneLineWithTheNearest) {
  const auto outcome = levin_program("rnu");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.text.find("did you mean \"run\""), std::string::npos) << outcome.text;
  EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
}

TEST(Cli, NewAppWritesAProjectOnce) {
  const auto folder = std::filesystem::temp_directory_path() / ("levin new " + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  const auto first = levin_program("new app '" + folder.string() + "'");
  EXPECT_EQ(first.status, 0) << first.text;
  EXPECT_TRUE(std::filesystem::exists(folder / "CMakeLists.txt"));
  EXPECT_TRUE(std::filesystem::exists(folder / "main.cpp"));
  EXPECT_NE(levin_program("new app '" + folder.string() + "'").status, 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace levin
