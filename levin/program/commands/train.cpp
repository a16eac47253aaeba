// fit, validate, test and predict over the recipes; the list of recipes.
#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "levin/cli/train_command.h"
#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/program/command.h"
#include "levin/program/recipes.h"

namespace levin::cli {

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

/// What a command line runs: the recipe, and the words after its name.
struct NamedRecipe {
  const Recipe& recipe;
  std::vector<std::string> rest;
};

NamedRecipe name_recipe(const std::string& operation, std::vector<std::string> words) {
  if (!words.empty() && !words[0].starts_with('-')) {
    const auto& recipe = find_recipe(operation, "", words[0]);
    words.erase(words.begin());
    return {recipe, std::move(words)};
  }
  if (const auto found = recipe_of_files(operation, words))
    return {find_recipe(operation, found->origin.where + ": ", found->text), std::move(words)};
  std::vector<std::string> known;
  for (const auto& recipe : recipes()) known.emplace_back(recipe.name);
  throw Error(fmt::format("[{0}] no recipe is named; {0} RECIPE ..., or a config file with `recipe: NAME` (known: {1})",
                          operation, join(known)));
}

int train(const std::string& command, const std::vector<std::string>& words, const Args& args) {
  const auto operation = "levin " + command;
  const bool asks_help = !words.empty() && (words[0] == "--help" || words[0] == "-h");
  if (asks_help && !recipe_of_files(operation, words)) {
    fmt::print(
        "{0}: {1}\n\nUsage: {0} RECIPE [--config FILE] [--FLAG VALUE]...\n       {0} --config FILE   (with a line "
        "`recipe: NAME`)\n\nExample: {0} boring --trainer.accelerator cpu\n\n"
        "Recipes (a model with its data and settings):\n{2}\n  {0} RECIPE --help   list the flags of a recipe\n",
        operation, train_command_summary(command), list_of_recipes());
    return 0;
  }
  const auto [recipe, rest] = name_recipe(operation, words);
  const auto program = recipe.make();
  return run_train_command({.command = command,
                            .usage = operation + " " + recipe.name,
                            .recipe = recipe.name,
                            .options = {.defaults = recipe.defaults}},
                           *program, rest, args);
}

Command train_command(const std::string& name) {
  return {.name = name,
          .summary = std::string(train_command_summary(name)),
          .run = [name](const std::vector<std::string>& words, const Args& args) { return train(name, words, args); }};
}

struct ListRecipes {
  void describe(Flags&) {}
  int run() const {
    fmt::print(
        "Recipes: ready models with their data and hyperparameters\n{}\n"
        "  levin fit RECIPE           train it\n"
        "  levin fit RECIPE --help    list its flags\n",
        list_of_recipes());
    return 0;
  }
};

}  // namespace

Command fit_command() {
  return train_command("fit");
}
Command validate_command() {
  return train_command("validate");
}
Command test_command() {
  return train_command("test");
}
Command predict_command() {
  return train_command("predict");
}
Command recipes_command() {
  return make_command<ListRecipes>("recipes", "list the recipes: ready models with their data");
}

}  // namespace levin::cli
