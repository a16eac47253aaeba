#pragma once

#include <string>
#include <utility>
#include <vector>

#include "levin/config/fields.h"

namespace levin::cli {

/// What a shell can complete of a program.
struct Completion {
  struct Recipe {
    /// Empty: the program has one model and no recipes.
    std::string name;
    std::vector<config::Field> fields;
  };
  std::string program;
  /// Commands that take flags (and a recipe, when there are any).
  std::vector<std::string> train_commands;
  /// Others, with the words that may follow; none: files.
  std::vector<std::pair<std::string, std::vector<std::string>>> other_commands;
  std::vector<Recipe> recipes;
};

/// A script for the shell that `words` names, "bash" or "zsh". All words are in it: nothing is started while somebody
/// types.
std::string completion_script(const Completion& completion, const std::vector<std::string>& words);

}  // namespace levin::cli
