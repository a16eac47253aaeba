#include "levin/core/main.h"

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/version.h>

#include "levin/cli/command.h"
#include "levin/core/words.h"

namespace {

struct Subcommand {
  const char* name;
  levin::cli::Command command;
  const char* summary;
};

constexpr std::array kSubcommands{
    Subcommand{"run", levin::cli::run, "start a program as several ranks, on one machine or many"},
    Subcommand{"new", levin::cli::new_project, "write the files of a new project"},
};

std::string help() {
  std::string text = "Levin: train models in C++ on LibTorch.\n\nUsage: levin COMMAND ...\n\nCommands:\n";
  for (const auto& sub : kSubcommands) text += fmt::format("  {:<10}{}\n", sub.name, sub.summary);
  return text +
         "\n  levin COMMAND --help   what a command takes\n  levin --version        the version of Levin and of "
         "LibTorch\n";
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    std::fputs(help().c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? 1 : 0;
  }
  if (words[0] == "--version" || words[0] == "-V") {
    std::puts(fmt::format("levin {} (LibTorch {})", LEVIN_VERSION, TORCH_VERSION).c_str());
    return 0;
  }
  std::vector<std::string> known;
  for (const auto& sub : kSubcommands) {
    if (words[0] == sub.name) return sub.command({words.begin() + 1, words.end()});
    known.emplace_back(sub.name);
  }
  levin::fail_unknown("levin", "command", words[0], known);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return dispatch({argv + std::min(argc, 1), argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", levin::one_line(error).c_str());
    return 1;
  }
}
