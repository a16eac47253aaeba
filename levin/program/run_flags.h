#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/distributed/launcher/launcher.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// What "auto", "cpu" and "gpu" stand for on this machine.
struct Machine {
  int cores = 1;
  int gpus = 0;
};

inline constexpr const char* kRunSummary = "start a program on several ranks, as torchrun does";

/// The flags of `levin run`, which are torchrun's.
Flags run_flags();

/// Turns the words after `levin run` into what to launch. Nothing when only the help was asked for, which is then
/// printed. Throws Error of one line for an unknown flag (with the nearest), a malformed value, or a contradiction.
std::optional<LaunchSpec> parse_run(const std::vector<std::string>& words, const Machine& machine);

/// "3", or "0:1,1:2" by local rank; 0 none, 1 stdout, 2 stderr, 3 both.
StreamChoice parse_streams(const std::string& flag, const std::string& text);

}  // namespace levin::cli
