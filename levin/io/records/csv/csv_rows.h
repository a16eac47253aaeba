#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/io/records/plain_file.h"
#include "levin/io/records/records.h"

namespace levin::detail {

/// One row of a CSV file (RFC 4180): cells between commas (or another sign), those in quotes may hold commas, ends of
/// lines and doubled quotes. `where` stands in the errors.
std::vector<std::string> parse_csv_row(std::string_view row, char separator, const std::string& where);

/// A cell as it must stand in a file: in quotes when it has to be.
std::string csv_cell(std::string_view text, char separator);

/// The whole of a cell as a number, blanks around it aside; nothing when it is none.
std::optional<int64_t> csv_integer(std::string_view cell);
std::optional<double> csv_number(std::string_view cell);
/// Whether a cell is written as a whole number, of any size.
bool csv_digits(std::string_view cell);

/// The writer, in csv_write.cpp.
std::unique_ptr<RecordWriter> create_csv(const std::filesystem::path& path, const RecordWriterOptions& options);

/// Goes through the rows of a file from the first to the last, without the ends of their lines (\n, \r\n or \r). Blank
/// lines and a byte-order mark are passed over.
class CsvRows {
 public:
  explicit CsvRows(const PlainFile& file) : file_(file) {}

  /// False at the end.
  bool next();
  std::string_view row() const { return row_; }
  /// Where the row lies in the file.
  uint64_t begin() const { return begin_; }
  /// Of the row, from 1, blank lines not counted.
  int64_t number() const { return number_; }

 private:
  bool fill();

  const PlainFile& file_;
  std::string buffer_;
  size_t at_ = 0;           // in the buffer
  uint64_t buffer_at_ = 0;  // of the buffer, in the file
  std::string_view row_;
  uint64_t begin_ = 0;
  int64_t number_ = 0;
};

}  // namespace levin::detail
