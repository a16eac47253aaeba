#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::report {

/// A metric over the steps of a run. NaN stands for what is no finite number.
struct Curve {
  std::string name;
  std::vector<double> steps, values;
};

struct SavedCheckpoint {
  std::string path;
  uint64_t bytes = 0;
  int64_t step = -1;
  std::string time;
};

/// What the folder of a run has besides traces.
struct RunFolder {
  std::string name, path;
  std::vector<Curve> curves;
  std::vector<std::pair<std::string, std::string>> configuration, environment;
  std::vector<SavedCheckpoint> checkpoints;
  /// Places in the traces of the report.
  std::vector<size_t> traces;

  bool is_empty() const { return curves.empty() && configuration.empty() && checkpoints.empty(); }
};

RunFolder read_run_folder(const std::filesystem::path& folder);

/// Traces in a folder and those below it, sorted by path: `*.pt.trace.json`, `*.trace.json`, with `.gz` or `.zst`.
std::vector<std::filesystem::path> traces_in(const std::filesystem::path& folder);

/// What the name of a trace says: `<worker>.<time>.pt.trace.json`.
struct TraceName {
  std::string worker;
  /// Digits; empty when the name has none.
  std::string time;
};
TraceName parse_trace_name(const std::string& file_name);

}  // namespace levin::report
