#include "levin/core/main.h"

#include <array>
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

struct Subcommand {
  const char* name;
  levin::cli::Command command;
  const char* summary;
};

template <const char* name>
int train(const std::vector<std::string>& words, const levin::Args& args) {
  return levin::cli::train(name, words, args);
}
constexpr char kFit[] = "fit", kValidate[] = "validate", kTest[] = "test", kPredict[] = "predict";

constexpr std::array kSubcommands{
    Subcommand{kFit, train<kFit>, "train a model: a recipe, with config files and flags"},
    Subcommand{kValidate, train<kValidate>, "one pass over validation data"},
    Subcommand{kTest, train<kTest>, "one pass over test data"},
    Subcommand{kPredict, train<kPredict>, "what a model makes of data"},
    Subcommand{"recipes", levin::cli::list_recipes, "list the models that are ready to train"},
    Subcommand{"run", levin::cli::run, "start a program as several ranks, on one machine or many"},
    Subcommand{"pack", levin::cli::pack, "turn a data set from one format into another"},
    Subcommand{"data", levin::cli::data, "measure how fast data come: levin data bench"},
    Subcommand{"memory", levin::cli::memory, "tell how much memory a training step will take"},
    Subcommand{"new", levin::cli::new_project, "write the files of a new project"},
    Subcommand{"inspect", levin::cli::inspect, "show what is in a weight file"},
    Subcommand{"convert", levin::cli::convert, "move weights to another format or naming scheme"},
    Subcommand{"completion", levin::cli::completion, "let a shell complete all of this"},
};

std::string help() {
  std::string text = "Levin: train models in C++ on LibTorch.\n\nUsage: levin COMMAND ...\n\nCommands:\n";
  for (const auto& sub : kSubcommands) text += fmt::format("  {:<12}{}\n", sub.name, sub.summary);
  return text +
         "\n  levin COMMAND --help    what a command takes"
         "\n  levin --version         the version of Levin and of LibTorch"
         "\n  levin --cmake-prefix    the folder for CMAKE_PREFIX_PATH, with which find_package(Levin) finds this "
         "Levin\n";
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
  for (const auto& sub : kSubcommands) {
    if (words[0] == sub.name) return sub.command({words.begin() + 1, words.end()}, args);
    known.emplace_back(sub.name);
  }
  levin::fail_unknown("levin", "command", words[0], known);
}

}  // namespace

int main(int argc, char** argv) {
  int status = 0;
  const int failed = levin::run_main(argc, argv, [&](levin::Args& args) { status = dispatch(args); });
  return failed ? failed : status;
}
