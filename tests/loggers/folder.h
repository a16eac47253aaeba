#pragma once

#include <filesystem>
#include <string>

#include "levin/core/files.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::testing {

/// A folder of one test, not yet made: loggers make what they need.
struct LogFolder {
  TemporaryFolder parent;
  std::filesystem::path path = parent / "logs";
};

inline std::string log_fixture(const std::string& name) {
  return read_file(std::filesystem::path(source_dir()) / "tests/loggers/fixtures" / name);
}

/// The one event file of a folder.
inline std::filesystem::path event_file(const std::filesystem::path& folder) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) {
      if (!found.empty()) return {};
      found = entry.path();
    }
  return found;
}

}  // namespace levin::testing
