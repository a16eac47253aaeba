#include "levin/cli/completion.h"

#include <cstdio>
#include <memory>

#include "levin/cli/train_command.h"
#include "levin/program/command.h"
#include "levin/program/recipes.h"

namespace levin::cli {
namespace {

struct CompletionCommand {
  std::string shell;

  void describe(Flags& flags) {
    flags.argument("SHELL", shell, "the shell", completion_shells());
    flags.set_epilog(completion_usage("levin"));
  }

  int run() const {
    Completion all{.program = "levin"};
    for (const auto& command : commands()) {
      auto& words = all.commands.emplace_back(Completion::Command{.name = command.name});
      words.takes_fields = !command.flags;
      if (!command.flags) continue;
      const auto flags = command.flags();
      words.flags = flags.flags();
      for (const auto& argument : flags.arguments()) words.arguments.push_back(argument.words);
      if (flags.has_rest()) words.arguments.emplace_back();
    }
    // The fields point into what they were made from.
    std::vector<std::unique_ptr<TrainProgram>> programs;
    std::vector<std::unique_ptr<TrainConfig>> configs;
    for (const auto& recipe : recipes()) {
      programs.push_back(recipe.make());
      configs.push_back(std::make_unique<TrainConfig>(
          TrainSpec{.command = "predict", .usage = "levin", .recipe = recipe.name}, *programs.back()));
      all.recipes.push_back({recipe.name, configs.back()->config().fields()});
    }
    std::fputs(completion_script(all, shell).c_str(), stdout);
    return 0;
  }
};

}  // namespace

Command completion_command() {
  return make_command<CompletionCommand>("completion", "print a shell completion script, for bash or zsh");
}

}  // namespace levin::cli
