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
  text += fmt::format("  {:<12}{}\n", "completion", "words for the shell: source <(" + name + " completion bash)");
  return text + fmt::format("\n  {} fit --help   all flags\n", name);
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
    const auto program = make();
    TrainConfig config({.command = "predict", .usage = name, .options = options}, *program);
    Completion completion{
        .program = name, .train_commands = train_commands(), .other_commands = {{"completion", {"bash", "zsh"}}}};
    completion.recipes.push_back({"", config.config().fields()});
    std::fputs(completion_script(completion, rest).c_str(), stdout);
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
