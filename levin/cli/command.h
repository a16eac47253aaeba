#pragma once

#include <string>
#include <vector>

namespace levin::cli {

/// A subcommand of the `levin` program: gets the words after its name, returns the exit status, throws Error.
using Command = int (*)(const std::vector<std::string>& words);

int run(const std::vector<std::string>& words);          // run.cpp
int new_project(const std::vector<std::string>& words);  // new.cpp

}  // namespace levin::cli
