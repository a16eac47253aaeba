#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace levin::cli {

/// Reads the words of a command into the options that were added to `app`, whose name is that of the command ("levin
/// pack"). False when only the help was asked for, which is then printed. An unknown flag is an Error with the nearest,
/// as is a word too many.
bool parse_flags(CLI::App& app, const std::vector<std::string>& words);

}  // namespace levin::cli
