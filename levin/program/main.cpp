#include "levin/core/main.h"

#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/version.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/program/command.h"
#include "levin/program/own_prefix.h"

namespace {

std::string help() {
  std::string text = "Levin: train models in C++ on LibTorch.\n\nUsage: levin COMMAND ...\n\nCommands:\n";
  for (const auto& command : levin::cli::commands()) text += fmt::format("  {:<12}{}\n", command.name, command.summary);
  return text +
         "\n  levin COMMAND --help    arguments and flags of a command\n"
         "  levin --version         print the versions of Levin and LibTorch\n"
         "  levin --cmake-prefix    print the folder for CMAKE_PREFIX_PATH\n";
}

int dispatch(const levin::Args& args) {
  const auto& values = args.values();
  const std::vector<std::string> words(values.begin() + (values.empty() ? 0 : 1), values.end());
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    std::fputs(help().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? 1 : 0;
  }
  if (words[0] == "--version" || words[0] == "-V") {
    std::puts(fmt::format("levin {} (LibTorch {})", LEVIN_VERSION, TORCH_VERSION).c_str());
    return 0;
  }
  if (words[0] == "--cmake-prefix") {
    const auto prefix = levin::cli::own_prefix();
    LEVIN_CHECK(!prefix.empty(), "[levin] this program lies in no installed Levin and in no build folder");
    std::puts(prefix.c_str());
    return 0;
  }
  std::vector<std::string> known;
  for (const auto& command : levin::cli::commands()) {
    if (words[0] == command.name) return command.run({words.begin() + 1, words.end()}, args);
    known.push_back(command.name);
  }
  levin::fail_unknown("levin", "command", words[0], known);
}

}  // namespace

int main(int argc, char** argv) {
  int status = 0;
  const int failed = levin::run_main(argc, argv, [&](levin::Args& args) { status = dispatch(args); });
  return failed ? failed : status;
}
