#include "levin/report/live.h"

#include <system_error>

#include "levin/core/error.h"
#include "levin/core/log.h"

namespace levin::report {

namespace fs = std::filesystem;

LiveReport::LiveReport(std::vector<fs::path> paths) : paths_(std::move(paths)) {
  LEVIN_CHECK(!paths_.empty(), "[report] name a trace or the folder of a run");
  for (const auto& path : paths_) LEVIN_CHECK(fs::exists(path), "[report] there is no \"", path.string(), "\"");
  report_.title = fs::absolute(paths_[0]).lexically_normal().filename().string();
  refresh();
}

std::pair<LiveReport::Files, LiveReport::Files> LiveReport::look() const {
  Files traces, others;
  // A file may vanish between two looks at it.
  const auto add = [](Files& files, const fs::path& path) {
    std::error_code error;
    const auto size = fs::file_size(path, error);
    const auto time = fs::last_write_time(path, error);
    if (!error) files[path] = {size, time};
  };
  for (const auto& path : paths_) {
    if (!fs::is_directory(path)) {
      add(traces, path);
      continue;
    }
    for (const auto& trace : traces_in(path)) add(traces, trace);
    std::error_code error;
    for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (!traces.contains(entry->path()) && entry->is_regular_file(error)) add(others, entry->path());
    }
  }
  return {traces, others};
}

bool LiveReport::refresh() {
  auto [traces, others] = look();
  const bool new_traces = traces != traces_, new_rows = others != others_;
  if (!new_traces && !new_rows) return false;
  traces_ = std::move(traces);
  others_ = std::move(others);
  try {
    // Without traces the whole report is read quickly; without runs, one may just have begun.
    if (new_traces || report_.traces.empty() || report_.runs.empty()) {
      auto report = make_report(paths_);
      state_.traces += new_traces;
      report_ = std::move(report);
    } else {
      read_runs();
    }
  } catch (const std::exception& error) {
    log_warning(error.what());
    return false;
  }
  ++state_.version;
  return true;
}

void LiveReport::read_runs() {
  for (auto& run : report_.runs) {
    auto now = read_run_folder(run.path);
    now.traces = std::move(run.traces);
    run = std::move(now);
  }
}

std::string LiveReport::report_json() const {
  return to_json(report_);
}

std::string LiveReport::runs_json() const {
  Report runs;
  runs.title = report_.title;
  runs.runs = report_.runs;
  return to_json(runs);
}

}  // namespace levin::report
