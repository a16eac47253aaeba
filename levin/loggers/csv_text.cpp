#include "levin/loggers/csv_text.h"

#include <algorithm>

namespace levin::detail {
namespace {

void append_field(std::string& line, std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) {
    line += text;
    return;
  }
  line += '"';
  for (const char c : text) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

}  // namespace

std::string csv_line(std::span<const std::string> fields) {
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    append_field(line, fields[i]);
  }
  line += kCsvEnd;
  return line;
}

CsvTable read_csv(std::string_view text) {
  CsvTable table;
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"')
        fields.back() += c;
      else if (i + 1 < text.size() && text[i + 1] == '"')
        fields.back() += text[++i];
      else
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      if (table.columns.empty())
        table.columns = std::move(fields);
      else
        table.rows.push_back(std::move(fields));
      fields.assign(1, {});
      table.bytes = i + 1;
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return table;
}

std::string write_csv(const CsvTable& table, std::span<const std::string> columns, size_t rows) {
  std::vector<size_t> from;
  for (const auto& column : columns)
    from.push_back(
        static_cast<size_t>(std::find(table.columns.begin(), table.columns.end(), column) - table.columns.begin()));
  auto text = csv_line(columns);
  std::vector<std::string> fields(columns.size());
  for (size_t row = 0; row < std::min(rows, table.rows.size()); ++row) {
    for (size_t i = 0; i < from.size(); ++i)
      fields[i] = from[i] < table.rows[row].size() ? table.rows[row][from[i]] : std::string();
    text += csv_line(fields);
  }
  return text;
}

}  // namespace levin::detail
