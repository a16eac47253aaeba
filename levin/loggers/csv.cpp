#include "levin/loggers/csv.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/loggers/json.h"

namespace levin {
namespace {

// Names with a comma or a quote are quoted, as in RFC 4180.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"') result += '"';
    result += c;
  }
  return result + "\"";
}

// The fields of a line that csv_field() and numbers made.
std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields(1);
  bool inside = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && inside && i + 1 < line.size() && line[i + 1] == '"')
      fields.back() += line[++i];
    else if (c == '"')
      inside = !inside;
    else if (c == ',' && !inside)
      fields.emplace_back();
    else
      fields.back() += c;
  }
  return fields;
}

}  // namespace

CsvLogger::CsvLogger(std::filesystem::path root, LoggerOptions options)
    : folder_(detail::version_folder(root, options.name, options.version)),
      options_(std::move(options)),
      columns_{"step"} {
  LEVIN_CHECK(options_.flush_every_n_rows >= 1, "[csv_logger] flush_every_n_rows ", options_.flush_every_n_rows,
              " must be 1 or more");
}

CsvLogger::~CsvLogger() {
  try {
    save();
  } catch (...) {  // a destructor has nobody to tell; save() and finalize() do
  }
}

void CsvLogger::log_metrics(const Metrics& metrics, std::optional<int64_t> step) {
  Row row;
  row["step"] = static_cast<double>(step.value_or(rows_));
  for (const auto& [name, value] : metrics) row[name] = detail::metric_value(name, value);
  ++rows_;
  held_.push_back(std::move(row));
  if (static_cast<int64_t>(held_.size()) >= options_.flush_every_n_rows) save();
}

void CsvLogger::log_hyperparams(const StateDict& values) {
  std::filesystem::create_directories(folder_);
  write_file(folder_ / "hparams.json", detail::to_json(values));
}

std::string CsvLogger::line_of(const Row& row) const {
  std::string line;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (i > 0) line += ',';
    if (const auto found = row.find(columns_[i]); found != row.end()) line += fmt::format("{}", found->second);
  }
  return line + "\n";
}

void CsvLogger::save() {
  if (held_.empty()) return;
  std::filesystem::create_directories(folder_);
  const auto path = folder_ / "metrics.csv";
  if (!header_is_written_ && std::filesystem::exists(path)) {  // a version that was named goes on
    std::istringstream old(read_file(path));
    std::string line;
    std::getline(old, line);
    columns_ = split(line);
    header_is_written_ = true;
  }
  const auto known = columns_;
  for (const auto& row : held_)
    for (const auto& [name, value] : row)
      if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) columns_.push_back(name);
  std::sort(columns_.begin(), columns_.end());

  std::string lines;
  for (const auto& row : held_) lines += line_of(row);
  if (header_is_written_ && columns_ == known) {
    std::ofstream file(path, std::ios::app);
    file << lines << std::flush;
    LEVIN_CHECK(file.good(), "[csv_logger] cannot write \"", path.string(), "\"");
  } else {
    // New columns: the rows so far move to their new places, in a new file that replaces the old one.
    std::string whole;
    for (size_t i = 0; i < columns_.size(); ++i) whole += (i > 0 ? "," : "") + csv_field(columns_[i]);
    whole += "\n";
    if (header_is_written_) {
      std::istringstream old(read_file(path));
      std::string line;
      std::getline(old, line);
      while (std::getline(old, line)) {
        const auto fields = split(line);
        for (size_t i = 0; i < columns_.size(); ++i) {
          if (i > 0) whole += ',';
          const auto at = std::find(known.begin(), known.end(), columns_[i]) - known.begin();
          if (at < static_cast<int64_t>(fields.size())) whole += fields[static_cast<size_t>(at)];
        }
        whole += "\n";
      }
    }
    write_file(path, whole + lines);
    header_is_written_ = true;
  }
  held_.clear();
}

void CsvLogger::finalize(const std::string&) {
  save();
}

}  // namespace levin
