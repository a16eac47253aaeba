#include "levin/loggers/csv.h"

#include <algorithm>
#include <span>

#include "levin/core/files.h"
#include "levin/loggers/csv_text.h"

namespace levin {
namespace {

constexpr const char* kMetricsFile = "metrics.csv";
constexpr const char* kStep = "step";

std::string read_whole(const std::filesystem::path& path) {
  return read_file(path, UINT64_MAX);
}

/// The fields of row N, counted from 1; empty when there are fewer.
std::string last_row(const std::string& text, std::span<const std::string> columns, int64_t rows) {
  auto table = detail::read_csv(text);
  if (rows < 1 || table.rows.size() < static_cast<size_t>(rows)) return {};
  const detail::CsvTable one{.columns = table.columns, .rows = {std::move(table.rows[static_cast<size_t>(rows) - 1])}};
  const auto lines = detail::write_csv(one, columns, 1);
  return lines.substr(lines.find(detail::kCsvEnd) + detail::kCsvEnd.size());
}

}  // namespace

CsvLogger::CsvLogger(std::filesystem::path root, LoggerOptions options)
    : FolderLogger("csv_logger", std::move(root), std::move(options)) {}

CsvLogger::~CsvLogger() {
  save_quietly();
}

// A version that was named may have a file already, whose last line may be torn.
void CsvLogger::open() {
  const auto path = log_dir() / kMetricsFile;
  std::error_code ignored;
  const auto table = std::filesystem::exists(path, ignored) ? detail::read_csv(read_whole(path)) : detail::CsvTable{};
  columns_ = table.columns;
  rows_in_file_ = static_cast<int64_t>(table.rows.size());
  if (!columns_.empty()) columns_.emplace_back(kStep);
  std::sort(columns_.begin(), columns_.end());
  columns_.erase(std::unique(columns_.begin(), columns_.end()), columns_.end());
  if (columns_ != table.columns) {  // somebody else's file
    write_file(path, detail::write_csv(table, columns_, table.rows.size()));
    file_.open(path);
  } else {
    file_.open(path, table.bytes);
  }
}

bool CsvLogger::add_columns(const detail::HeldRows& rows) {
  const auto known = columns_.size();
  if (columns_.empty()) columns_.emplace_back(kStep);
  for (const auto& name : rows.names())
    if (!std::binary_search(columns_.begin(), columns_.end(), name))
      columns_.insert(std::upper_bound(columns_.begin(), columns_.end(), name), name);
  return columns_.size() != known;
}

std::string CsvLogger::lines_of(const detail::HeldRows& rows) const {
  const auto column_of = [&](const std::string& name) {
    return static_cast<size_t>(std::lower_bound(columns_.begin(), columns_.end(), name) - columns_.begin());
  };
  std::vector<size_t> column;
  for (const auto& name : rows.names()) column.push_back(column_of(name));
  const auto step_column = column_of(kStep);

  std::string lines;
  std::vector<const detail::Number*> fields(columns_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    const detail::Number step = row.step;
    std::fill(fields.begin(), fields.end(), nullptr);
    for (const auto& cell : row.cells) fields[column[cell.name]] = &cell.value;
    fields[step_column] = &step;
    for (size_t at = 0; at < fields.size(); ++at) {
      if (at > 0) lines += ',';
      if (fields[at]) detail::append_python_number(lines, *fields[at]);
    }
    lines += detail::kCsvEnd;
  }
  return lines;
}

void CsvLogger::write_rows(const detail::HeldRows& rows) {
  if (!file_.is_open()) open();
  auto known = columns_;
  if (add_columns(rows)) {
    // The rows so far move to their new places, in a new file that replaces the old one.
    try {
      const auto path = file_.path();
      const auto table = known.empty() ? detail::CsvTable{} : detail::read_csv(read_whole(path));
      write_file(path, detail::write_csv(table, columns_, table.rows.size()) + lines_of(rows));
      file_.open(path);
    } catch (...) {
      columns_ = std::move(known);
      throw;
    }
  } else {
    file_.write(lines_of(rows));
  }
  rows_in_file_ += static_cast<int64_t>(rows.size());
}

void CsvLogger::add_position(StateDict& position) {
  std::error_code ignored;
  if (!file_.is_open() && std::filesystem::exists(log_dir() / kMetricsFile, ignored)) open();
  file_.sync();
  StateList columns(columns_.begin(), columns_.end());
  position["file_rows"] = rows_in_file_;
  position["columns"] = std::move(columns);
  if (rows_in_file_ > 0) position["last_row"] = last_row(read_whole(log_dir() / kMetricsFile), columns_, rows_in_file_);
}

bool CsvLogger::has_files(const std::filesystem::path& folder, const StateDict& position) const {
  const auto rows = position.at("file_rows").to_int();
  const auto* last = position.find("last_row");
  if (rows == 0 || !last) return true;
  std::vector<std::string> columns;
  for (const auto& column : position.at("columns").to_list()) columns.push_back(column.to_string());
  std::error_code ignored;
  const auto path = folder / kMetricsFile;
  if (!std::filesystem::exists(path, ignored)) return false;
  return last_row(read_whole(path), columns, rows) == last->to_string();
}

int64_t CsvLogger::restore(const std::filesystem::path& old, const StateDict& position) {
  const auto rows = position.at("file_rows").to_int();
  const auto from = old / kMetricsFile;
  const auto to = log_dir() / kMetricsFile;
  file_.close();
  columns_.clear();
  rows_in_file_ = 0;
  std::error_code ignored;
  if (rows == 0 || !std::filesystem::exists(from, ignored)) {
    std::filesystem::remove(to, ignored);
    if (rows > 0) warn_incomplete(from, 0, rows);
    return rows > 0 ? 0 : position.at("rows").to_int();
  }
  // Later rows may have brought columns, which go with them.
  const auto table = detail::read_csv(read_whole(from));
  for (const auto& column : position.at("columns").to_list()) columns_.push_back(column.to_string());
  rows_in_file_ = std::min(rows, static_cast<int64_t>(table.rows.size()));
  detail::make_folder(log_dir());
  write_file(to, detail::write_csv(table, columns_, static_cast<size_t>(rows)));
  file_.open(to);
  if (rows_in_file_ == rows) return position.at("rows").to_int();
  warn_incomplete(from, rows_in_file_, rows);
  return rows_in_file_;
}

}  // namespace levin
