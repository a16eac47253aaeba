#include "levin/loggers/json_lines.h"

#include <algorithm>

#include "levin/core/files.h"
#include "levin/loggers/json.h"

namespace levin {
namespace {

constexpr const char* kLinesFile = "metrics.jsonl";

// The bytes of a file that are whole lines: the last one may be torn.
uint64_t sound_bytes(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? detail::whole_lines(read_file(path, UINT64_MAX)) : 0;
}

/// The last line of the first bytes of a file; of a shorter one that of the whole file.
std::string last_line(const std::filesystem::path& path, uint64_t bytes) {
  auto text = read_file(path, UINT64_MAX).substr(0, bytes);
  text.resize(detail::whole_lines(text));
  if (text.empty()) return text;
  const auto before = text.size() < 2 ? std::string::npos : text.rfind('\n', text.size() - 2);
  return before == std::string::npos ? text : text.substr(before + 1);
}

}  // namespace

JsonLinesLogger::JsonLinesLogger(std::filesystem::path root, LoggerOptions options)
    : FolderLogger("json_lines_logger", std::move(root), std::move(options)) {}

JsonLinesLogger::~JsonLinesLogger() {
  save_quietly();
}

void JsonLinesLogger::write_rows(const detail::HeldRows& rows) {
  if (!file_.is_open()) {
    const auto path = log_dir() / kLinesFile;
    file_.open(path, sound_bytes(path));
  }
  std::vector<std::string> keys;
  for (const auto& name : rows.names()) keys.push_back(", " + detail::json_string(name) + ": ");
  std::string lines;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = rows.row(i);
    lines += "{\"step\": " + std::to_string(row.step);
    for (const auto& cell : row.cells)
      if (rows.names()[cell.name] != "step") lines += keys[cell.name] + detail::json_number(cell.value);
    lines += "}\n";
  }
  file_.write(lines);
}

void JsonLinesLogger::add_position(StateDict& position) {
  file_.sync();
  position["bytes"] = file_.is_open() ? file_.size() : sound_bytes(log_dir() / kLinesFile);
  if (const auto bytes = position.at("bytes").to_int(); bytes > 0)
    position["last_row"] = last_line(log_dir() / kLinesFile, static_cast<uint64_t>(bytes));
}

bool JsonLinesLogger::has_files(const std::filesystem::path& folder, const StateDict& position) const {
  const auto bytes = static_cast<uint64_t>(position.at("bytes").to_int());
  const auto* last = position.find("last_row");
  if (bytes == 0 || !last) return true;
  std::error_code ignored;
  const auto path = folder / kLinesFile;
  if (!std::filesystem::exists(path, ignored)) return false;
  return std::filesystem::file_size(path, ignored) >= bytes && last_line(path, bytes) == last->to_string();
}

int64_t JsonLinesLogger::restore(const std::filesystem::path& old, const StateDict& position) {
  const auto bytes = static_cast<uint64_t>(position.at("bytes").to_int());
  const auto rows = position.at("rows").to_int();
  const auto from = old / kLinesFile;
  const auto to = log_dir() / kLinesFile;
  file_.close();
  std::error_code ignored;
  if (bytes == 0 || !std::filesystem::exists(from, ignored)) {
    std::filesystem::remove(to, ignored);
    if (bytes > 0) warn_incomplete(from, 0, rows);
    return bytes > 0 ? 0 : rows;
  }
  if (detail::take_prefix(from, to, bytes) == bytes) {
    file_.open(to);
    return rows;
  }
  const auto sound = read_file(to, UINT64_MAX).substr(0, sound_bytes(to));
  file_.open(to, sound.size());
  const auto found = std::count(sound.begin(), sound.end(), '\n');
  warn_incomplete(from, found, rows);
  return found;
}

}  // namespace levin
