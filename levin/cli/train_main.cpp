#include "levin/cli/train_main.h"

#include <cstdio>
#include <exception>
#include <filesystem>

#include <fmt/format.h>

#include "levin/cli/completion.h"
#include "levin/cli/train_command.h"
#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

std::string help(const std::string& name) {
  std::string text = fmt::format("Usage: {} COMMAND [--config FILE] [--FLAG VALUE]...\n\nCommands:\n", name);
  for (const auto& command : train_commands())
    text += fmt::format("  {:<12}{}\n", command, train_command_summary(command));
  text += fmt::format("  {:<12}{}\n", "completion", "print a shell completion script: bash or zsh");
  return text + fmt::format("\n  {} fit --help   list all flags\n", name);
}

void print_completion(const std::string& name, const std::vector<std::string>& words, const TrainMainOptions& options,
                      TrainProgram& program) {
  const auto operation = name + " completion";
  LEVIN_CHECK(!words.empty(), "[", operation, "] name a shell: bash or zsh, as in: source <(", operation, " bash)");
  if (words[0] == "--help" || words[0] == "-h") {
    fmt::print("{0}: print a shell completion script\n\nUsage: {0} bash|zsh\n\n{1}", operation, completion_usage(name));
    return;
  }
  TrainConfig config({.command = "predict", .usage = name, .options = options}, program);
  Completion completion{.program = name};
  for (const auto& command : train_commands()) completion.commands.push_back({.name = command, .takes_fields = true});
  completion.commands.push_back({.name = "completion", .arguments = {completion_shells()}});
  completion.recipes.push_back({"", config.config().fields()});
  std::fputs(completion_script(completion, words[0]).c_str(), stdout);
}

int dispatch(const Args& args, const TrainMainOptions& options,
             const std::function<std::unique_ptr<TrainProgram>()>& make) {
  const auto& values = args.values();
  const auto name = std::filesystem::path(values.empty() ? "app" : values[0]).filename().string();
  const std::vector<std::string> words(values.begin() + (values.empty() ? 0 : 1), values.end());
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    std::fputs(help(name).c_str(), words.empty() ? stderr : stdout);
    return words.empty() ? 1 : 0;
  }
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  for (const auto& command : train_commands()) {
    if (words[0] != command) continue;
    const auto program = make();
    return run_train_command({.command = command, .usage = name + " " + command, .options = options}, *program, rest,
                             args);
  }
  if (words[0] == "completion") {
    print_completion(name, rest, options, *make());
    return 0;
  }
  auto known = train_commands();
  known.emplace_back("completion");
  fail_unknown(name, "command", words[0], known);
}

}  // namespace

int train_main(int argc, char** argv, const TrainMainOptions& options,
               const std::function<std::unique_ptr<TrainProgram>()>& make) noexcept {
  int status = 0;
  const int failed = run_main(argc, argv, [&](Args& args) { status = dispatch(args, options, make); });
  return failed ? failed : status;
}

}  // namespace levin::cli
