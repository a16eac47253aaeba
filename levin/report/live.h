#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "levin/report/page.h"
#include "levin/report/report.h"

namespace levin::report {

/// A report that follows its files: a run that trains writes rows, checkpoints and traces. A folder may be empty yet.
///
///     LiveReport live({"lightning_logs/version_3"});
///     if (live.refresh()) send(live.runs_json());
class LiveReport {
 public:
  explicit LiveReport(std::vector<std::filesystem::path> paths);

  /// Reads what has changed; false: nothing has. Traces are read again only when one of them has changed. What cannot
  /// be read is left as it was until it changes again: a trace may be half written.
  bool refresh();
  const LiveState& state() const { return state_; }
  /// The whole report, and the part of it without traces.
  std::string report_json() const;
  std::string runs_json() const;

 private:
  using Files = std::map<std::filesystem::path, std::pair<uintmax_t, std::filesystem::file_time_type>>;

  /// The files of the paths: traces, and all others.
  std::pair<Files, Files> look() const;
  void read_runs();

  std::vector<std::filesystem::path> paths_;
  Files traces_, others_;
  Report report_;
  LiveState state_;
};

}  // namespace levin::report
