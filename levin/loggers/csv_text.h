#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::detail {

/// The end of a line of CSV, as RFC 4180 and Python have it.
inline constexpr std::string_view kCsvEnd = "\r\n";

/// The fields with commas and an end of line; one with a comma, a quote or an end of line in it is quoted.
std::string csv_line(std::span<const std::string> fields);

/// A file of CSV. What follows the last whole line, which a process that died left torn, is dropped.
struct CsvTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
  /// Of the whole lines.
  size_t bytes = 0;
};
CsvTable read_csv(std::string_view text);

/// The text of a table with other columns, of which it may lack some and have more, and of its first rows only.
std::string write_csv(const CsvTable& table, std::span<const std::string> columns, size_t rows);

}  // namespace levin::detail
