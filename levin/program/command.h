#pragma once

#include <string>
#include <vector>

#include "levin/core/main.h"

namespace levin::cli {

/// A subcommand of the `levin` program: gets the words after its name and the whole command line (to start other ranks
/// with), returns the exit status, throws Error.
using Command = int (*)(const std::vector<std::string>& words, const Args& args);

int run(const std::vector<std::string>& words, const Args& args);           // run.cpp
int new_project(const std::vector<std::string>& words, const Args& args);   // new.cpp
int pack(const std::vector<std::string>& words, const Args& args);          // pack.cpp
int data(const std::vector<std::string>& words, const Args& args);          // data_bench.cpp
int list_recipes(const std::vector<std::string>& words, const Args& args);  // train.cpp
int memory(const std::vector<std::string>& words, const Args& args);        // memory.cpp
int inspect(const std::vector<std::string>& words, const Args& args);       // inspect.cpp
int convert(const std::vector<std::string>& words, const Args& args);       // convert.cpp
int completion(const std::vector<std::string>& words, const Args& args);
/// `command` is fit, validate, test or predict.
int train(const std::string& command, const std::vector<std::string>& words, const Args& args);

}  // namespace levin::cli
