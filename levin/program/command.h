#pragma once

#include <functional>
#include <string>
#include <vector>

#include "levin/core/main.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// A subcommand of the program `levin`: a file in commands/ and a row in commands.cpp. `levin --help`, the help of the
/// command and shell completion are made from it.
struct Command {
  std::string name;
  /// One line: what it does.
  std::string summary;
  /// Runs it with the words after its name; `args` is the whole command line, to start other ranks with. Returns the
  /// exit status, throws Error.
  std::function<int(const std::vector<std::string>& words, const Args& args)> run;
  /// What it takes, for completion. Empty for a command that takes a recipe and its fields.
  std::function<Flags()> flags = {};
};

/// A command of a struct whose members are the values of its flags: `void describe(Flags& flags)` binds them, `int
/// run()` does the work, or `int run(const Args& args)` where it starts other ranks.
///
///     struct Doctor {
///       bool json = false;
///       void describe(Flags& flags) { flags.flag("json", json, "print JSON"); }
///       int run();
///     };
///     Command doctor_command() { return make_command<Doctor>("doctor", "check that this machine can train"); }
template <class T>
Command make_command(const std::string& name, const std::string& summary) {
  const auto make_flags = [=](T& values) {
    Flags flags("levin " + name, summary);
    values.describe(flags);
    return flags;
  };
  Command command{.name = name, .summary = summary};
  command.run = [=](const std::vector<std::string>& words, [[maybe_unused]] const Args& args) {
    T values;
    if (!make_flags(values).parse(words)) return 0;
    if constexpr (requires { values.run(args); })
      return values.run(args);
    else
      return values.run();
  };
  command.flags = [=] {
    static T values;  // the fields point into it
    return make_flags(values);
  };
  return command;
}

/// All commands, in the order of `levin --help`.
const std::vector<Command>& commands();

}  // namespace levin::cli
