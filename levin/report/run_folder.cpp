#include "levin/report/run_folder.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <initializer_list>
#include <span>

#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/loggers/csv_text.h"
#include "levin/report/trace/trace_reader.h"

namespace levin::report {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostRows = 4000;

std::optional<double> number_in(const std::string& cell) {
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (cell.empty() || error != std::errc() || end != cell.data() + cell.size()) return std::nullopt;
  return value;
}

// Every n-th point, and the last.
void thin_curve(Curve& curve) {
  const size_t count = curve.values.size();
  if (count <= kMostRows) return;
  const size_t every = (count + kMostRows - 1) / kMostRows;
  Curve thinned{.name = curve.name};
  for (size_t i = 0; i < count; ++i) {
    if (i % every != 0 && i + 1 != count) continue;
    thinned.steps.push_back(curve.steps[i]);
    thinned.values.push_back(curve.values[i]);
  }
  curve = std::move(thinned);
}

std::string read_text(const fs::path& path) {
  const FileReader file(path);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::vector<Curve> read_curves(const fs::path& file) {
  std::vector<Curve> curves;
  const auto table = levin::detail::read_csv(read_text(file));
  const auto& names = table.columns;
  const auto step = static_cast<size_t>(std::find(names.begin(), names.end(), "step") - names.begin());
  for (const auto& name : names) curves.push_back({.name = name});
  double row = 0;
  for (const auto& cells : table.rows) {
    const double at = step < cells.size() ? number_in(cells[step]).value_or(row) : row;
    for (size_t i = 0; i < cells.size() && i < curves.size(); ++i) {
      const auto value = number_in(cells[i]);
      if (!value || i == step) continue;
      curves[i].steps.push_back(at);
      curves[i].values.push_back(*value);
    }
    ++row;
  }
  std::erase_if(curves, [](const Curve& curve) { return curve.values.empty(); });
  for (auto& curve : curves) thin_curve(curve);
  return curves;
}

void flatten(const config::Node& node, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& out) {
  if (!node.is_map()) {
    out.emplace_back(prefix, node.to_string());
    return;
  }
  for (const auto& [name, entry] : node.entries) flatten(entry, prefix.empty() ? name : prefix + "." + name, out);
}

void read_configuration(const fs::path& folder, RunFolder& run) {
  for (const char* name : {"config.yaml", "hparams.yaml", "environment.yaml"}) {
    const auto file = folder / name;
    if (!fs::is_regular_file(file)) continue;
    auto& into = std::string_view(name) == "environment.yaml" ? run.environment : run.configuration;
    try {
      flatten(config::read_yaml(file, "report"), "", into);
    } catch (const Error& error) {
      into.emplace_back(name, error.what());  // shown in the report
    }
  }
}

std::string time_text(fs::file_time_type time) {
  const auto system = std::chrono::file_clock::to_sys(time);
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::system_clock::duration>(system));
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts)};
}

uint64_t size_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return fs::file_size(path, error);
  uint64_t sum = 0;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (at->is_regular_file(error)) sum += at->file_size(error);
  }
  return sum;
}

int64_t step_in(const std::string& name) {
  const auto at = name.find("step=");
  int64_t step = -1;
  if (at != std::string::npos) std::from_chars(name.data() + at + 5, name.data() + name.size(), step);
  return step;
}

void read_checkpoints(const fs::path& folder, RunFolder& run) {
  std::error_code error;
  const auto checkpoints = folder / "checkpoints";
  for (fs::directory_iterator at(checkpoints, error), end; !error && at != end; at.increment(error)) {
    const auto name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    run.checkpoints.push_back({.path = "checkpoints/" + name,
                               .bytes = size_of(at->path()),
                               .step = step_in(name),
                               .time = time_text(at->last_write_time(error))});
  }
  std::sort(run.checkpoints.begin(), run.checkpoints.end(), [](const SavedCheckpoint& a, const SavedCheckpoint& b) {
    return a.step != b.step ? a.step < b.step : a.path < b.path;
  });
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return name.ends_with(end); });
}

/// Whether a JSON file is a trace, whatever its name (export_chrome_trace takes any): its beginning has traceEvents, or
/// it is a list of events.
bool is_trace(const fs::path& path) {
  const auto name = path.filename().string();
  if (ends_with_any(name, {".trace.json", ".trace.json.gz", ".trace.json.zst"})) return true;
  if (!ends_with_any(name, {".json", ".json.gz", ".json.zst"})) return false;
  constexpr size_t kMost = size_t{1} << 20;
  std::string text;
  struct Enough {};
  try {
    read_blocks(path, [&](std::string_view block) {
      text.append(block.substr(0, kMost - text.size()));
      if (text.size() >= kMost) throw Enough();
    });
  } catch (const Enough&) {
  } catch (const std::exception&) {  // it is damaged: no trace that is known
    return false;
  }
  const auto at = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (at == std::string::npos) return false;
  const bool has_phases = text.find("\"ph\"") != std::string::npos;
  return text[at] == '[' ? has_phases : text[at] == '{' && text.find("\"traceEvents\"") != std::string::npos;
}

}  // namespace

RunFolder read_run_folder(const fs::path& folder) {
  auto shown_path = folder.lexically_normal();
  if (shown_path.filename().empty()) shown_path = shown_path.parent_path();
  RunFolder run{.name = shown_path.filename().string(), .path = shown_path.string()};
  if (run.name.empty() || run.name == ".") run.name = fs::absolute(shown_path).lexically_normal().filename().string();
  if (fs::is_regular_file(folder / "metrics.csv")) run.curves = read_curves(folder / "metrics.csv");
  read_configuration(folder, run);
  read_checkpoints(folder, run);
  return run;
}

std::vector<fs::path> traces_in(const fs::path& folder) {
  std::vector<fs::path> traces;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at.depth() > 3) at.pop();
    if (at == end) break;
    if (at->is_regular_file(error) && is_trace(at->path())) traces.push_back(at->path());
  }
  std::sort(traces.begin(), traces.end());
  return traces;
}

TraceName parse_trace_name(const std::string& file_name) {
  std::string stem = file_name;
  for (const std::string_view end : {".gz", ".zst", ".json", ".trace", ".pt"}) {
    if (stem.ends_with(end)) stem.erase(stem.size() - end.size());
  }
  const auto dot = stem.rfind('.');
  if (dot == std::string::npos || dot + 1 == stem.size() ||
      !std::all_of(stem.begin() + static_cast<ptrdiff_t>(dot) + 1, stem.end(),
                   [](char c) { return c >= '0' && c <= '9'; }))
    return {.worker = stem};
  return {.worker = stem.substr(0, dot), .time = stem.substr(dot + 1)};
}

}  // namespace levin::report
