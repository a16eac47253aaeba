#pragma once

// Runs of resume_probe, and what is left of them.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/testing/process.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {

std::string resume_probe();

/// The probe at work in a folder; `environment` is as Process takes it.
std::unique_ptr<Process> start_probe(const std::filesystem::path& folder, const std::vector<std::string>& flags,
                                     std::vector<std::string> environment = {});

/// "NAME=NUMBER" in the line of events that a probe prints at its end.
int64_t event_count(const std::string& out, const std::string& event);
/// metrics.csv of the run that printed this.
std::string csv_of(const std::string& out);

/// The first place where two values differ, or "".
std::string difference(const StateValue& a, const StateValue& b, const std::string& at = "");
/// The ends of two runs, in all that training depends on.
std::string final_difference(const std::filesystem::path& a, const std::filesystem::path& b);

/// Checkpoints in a folder by the time of their writing, oldest first; a damaged one fails the test.
std::vector<std::filesystem::path> whole_checkpoints(const std::filesystem::path& folder);

}  // namespace levin::testing
