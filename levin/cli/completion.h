#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levin/config/fields.h"

namespace levin::cli {

/// What a shell can complete of a program.
struct Completion {
  struct Command {
    std::string name;
    /// Takes the fields of a recipe as flags (and the name of one, when there are any).
    bool takes_fields = false;
    /// Otherwise: the words that each argument may be, by position; an argument without words is a file.
    std::vector<std::vector<std::string>> arguments = {};
    std::vector<config::Field> flags = {};
  };
  struct Recipe {
    /// Empty: the program has one model and no recipes.
    std::string name;
    std::vector<config::Field> fields;
  };
  std::string program;
  std::vector<Command> commands = {};
  std::vector<Recipe> recipes = {};
};

/// "bash", "zsh".
const std::vector<std::string>& completion_shells();
/// How a script is loaded, for --help.
std::string completion_usage(std::string_view program);
/// A script for one of the shells. All words are in it: nothing is started while somebody types.
std::string completion_script(const Completion& completion, const std::string& shell);

}  // namespace levin::cli
