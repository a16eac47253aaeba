#pragma once

#include <atomic>
#include <filesystem>
#include <string>

#include <unistd.h>

#include "levin/core/files.h"
#include "levin/testing/paths.h"

namespace levin::testing {

/// A folder of one test, gone afterwards. It is not made: loggers make what they need.
struct LogFolder {
  std::filesystem::path path;
  LogFolder() {
    static std::atomic<int> count{0};
    path = std::filesystem::temp_directory_path() /
           ("levin loggers ü " + std::to_string(getpid()) + "-" + std::to_string(count++));
    std::filesystem::remove_all(path);
  }
  ~LogFolder() { std::filesystem::remove_all(path); }
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
