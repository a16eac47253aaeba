// fit, validate, test and predict over the recipes; the list of recipes; completion.
#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "levin/cli/completion.h"
#include "levin/cli/train_command.h"
#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/program/command.h"
#include "levin/program/recipes.h"

namespace levin::cli {

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{
      vit_fashion_mnist(), finetune_fashion_mnist(), mlp_fashion_mnist(), autoencoder_fashion_mnist(),
      vit_cifar10(),       resnet50_cifar10(),       finetune_cifar10(),  boring()};
  return all;
}

namespace {

const Recipe& find_recipe(const std::string& operation, const std::string& where, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& recipe : recipes()) {
    if (name == recipe.name) return recipe;
    known.emplace_back(recipe.name);
  }
  fail_unknown(operation, where + "recipe", name, known);
}

/// The recipe that a config file names, with the place; nothing when none does.
std::optional<config::Node> recipe_of_files(const std::string& operation, const std::vector<std::string>& words) {
  std::optional<config::Node> found;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string path;
    if (words[i].starts_with("--config="))
      path = words[i].substr(9);
    else if ((words[i] == "--config" || words[i] == "-c") && i + 1 < words.size())
      path = words[i + 1];
    if (path.empty()) continue;
    const auto tree = config::read_yaml(path, operation);
    if (const auto* recipe = tree.find("recipe")) found = *recipe;
  }
  return found;
}

std::string list_of_recipes() {
  std::string text;
  for (const auto& recipe : recipes()) text += fmt::format("  {:<27} {}\n", recipe.name, recipe.summary);
  return text;
}

}  // namespace

int train(const std::string& command, const std::vector<std::string>& words, const Args& args) {
  const auto operation = "levin " + command;
  auto rest = words;
  std::string name;
  std::string where;
  if (!rest.empty() && !rest[0].starts_with('-')) {
    name = rest[0];
    rest.erase(rest.begin());
  } else if (const auto found = recipe_of_files(operation, rest)) {
    name = found->text;
    where = found->origin.where + ": ";
  } else if (!rest.empty() && (rest[0] == "--help" || rest[0] == "-h")) {
    fmt::print(
        "{0}: {1}\n\nUsage: {0} RECIPE [--config FILE] [--FLAG VALUE]...\n       {0} --config FILE   (with a line "
        "`recipe: NAME`)\n\nRecipes:\n{2}\n  {0} RECIPE --help   all flags of a recipe\n",
        operation, train_command_summary(command), list_of_recipes());
    return 0;
  }
  std::vector<std::string> known;
  for (const auto& recipe : recipes()) known.emplace_back(recipe.name);
  LEVIN_CHECK(!name.empty(), "[", operation, "] no recipe is named; ", operation,
              " RECIPE ..., or a config file with `recipe: NAME` (known: ", join(known), ")");
  const auto& recipe = find_recipe(operation, where, name);
  const auto program = recipe.make();
  return run_train_command({.command = command,
                            .usage = operation + " " + recipe.name,
                            .recipe = recipe.name,
                            .options = {.defaults = recipe.defaults}},
                           *program, rest, args);
}

int list_recipes(const std::vector<std::string>& words, const Args&) {
  LEVIN_CHECK(words.empty() || words[0] == "--help" || words[0] == "-h", "[levin recipes] \"", words[0],
              "\" is not expected; it takes nothing");
  fmt::print(
      "Models that are ready to train, with their data:\n{}\n  levin fit RECIPE           train one\n"
      "  levin fit RECIPE --help    what can be set\n",
      list_of_recipes());
  return 0;
}

int completion(const std::vector<std::string>& words, const Args&) {
  // The fields point into what they were made from.
  std::vector<std::unique_ptr<TrainProgram>> programs;
  std::vector<std::unique_ptr<TrainConfig>> configs;
  Completion all{
      .program = "levin",
      .train_commands = train_commands(),
      .other_commands = {{"run", {}},
                         {"pack", {}},
                         {"data", {"bench"}},
                         {"memory",
                          {"--model", "--batch", "--image-size", "--num-classes", "--strategy", "--precision",
                           "--optimizer", "--devices", "--accumulate", "--accelerator", "--checkpointing", "--offload",
                           "--ladder", "--csv", "--json", "--plot", "--timeline", "--help"}},
                         {"new", {"app"}},
                         {"inspect", {}},
                         {"convert", {}},
                         {"recipes", {"--help"}},
                         {"completion", {"bash", "zsh"}}}};
  for (const auto& recipe : recipes()) {
    programs.push_back(recipe.make());
    configs.push_back(std::make_unique<TrainConfig>(
        TrainSpec{.command = "predict", .usage = "levin", .recipe = recipe.name}, *programs.back()));
    all.recipes.push_back({recipe.name, configs.back()->config().fields()});
  }
  std::fputs(completion_script(all, words).c_str(), stdout);
  return 0;
}

}  // namespace levin::cli
