#include "levin/io/records/csv/csv_rows.h"

#include <algorithm>
#include <charconv>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr size_t kCsvBlock = size_t{1} << 20;
constexpr size_t kLongestRow = size_t{256} << 20;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <class T>
std::optional<T> whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int64_t> csv_integer(std::string_view cell) {
  return whole<int64_t>(trimmed(cell));
}

std::optional<double> csv_number(std::string_view cell) {
  return whole<double>(trimmed(cell));
}

bool csv_digits(std::string_view cell) {
  cell = trimmed(cell);
  if (cell.starts_with('-')) cell.remove_prefix(1);
  return !cell.empty() && cell.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<std::string> parse_csv_row(std::string_view row, char separator, const std::string& where) {
  std::vector<std::string> cells;
  size_t at = 0;
  while (true) {
    std::string cell;
    if (at < row.size() && row[at] == '"') {
      for (++at;; ++at) {
        LEVIN_CHECK(at < row.size(), "[csv] ", where, ": a quote is never closed");
        if (row[at] != '"') {
          cell.push_back(row[at]);
        } else if (at + 1 < row.size() && row[at + 1] == '"') {
          cell.push_back('"');
          ++at;
        } else {
          break;
        }
      }
      ++at;
      LEVIN_CHECK(at == row.size() || row[at] == separator, "[csv] ", where, ": text follows a closed quote in cell ",
                  cells.size() + 1);
    } else {
      const auto end = std::min(row.find(separator, at), row.size());
      cell = row.substr(at, end - at);
      at = end;
    }
    cells.push_back(std::move(cell));
    if (at >= row.size()) return cells;
    ++at;
  }
}

std::string csv_cell(std::string_view text, char separator) {
  const bool plain = text.find_first_of("\"\r\n") == std::string_view::npos &&
                     text.find(separator) == std::string_view::npos && !(text.starts_with(' ') || text.ends_with(' '));
  if (plain) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out.push_back('"');
    out.push_back(c);
  }
  return out + "\"";
}

bool CsvRows::fill() {
  const auto file_at = buffer_at_ + buffer_.size();
  if (file_at >= file_.size()) return false;
  buffer_.erase(0, at_);
  buffer_at_ += at_;
  at_ = 0;
  LEVIN_CHECK(buffer_.size() < kLongestRow, "[csv] \"", file_.path().string(), "\", row ", number_ + 1,
              " is longer than ", kLongestRow, " bytes; a quote may never be closed");
  const auto count = static_cast<size_t>(std::min<uint64_t>(kCsvBlock, file_.size() - file_at));
  const auto before = buffer_.size();
  buffer_.resize(before + count);
  file_.read(file_at, std::as_writable_bytes(std::span(buffer_).subspan(before)));
  if (file_at == 0 && buffer_.starts_with("\xef\xbb\xbf")) at_ = 3;
  return true;
}

bool CsvRows::next() {
  if (buffer_.empty() && !fill()) return false;
  while (true) {
    // A quote inside quotes is doubled, which opens and closes once more: the count of quotes tells inside from
    // outside.
    bool quoted = false;
    size_t end = at_;
    while (true) {
      for (; end < buffer_.size() && (quoted || (buffer_[end] != '\n' && buffer_[end] != '\r')); ++end)
        if (buffer_[end] == '"') quoted = !quoted;
      if (end < buffer_.size()) break;
      const auto done = end - at_;
      if (!fill()) break;
      end = at_ + done;
    }
    if (end == at_ && end == buffer_.size()) return false;
    begin_ = buffer_at_ + at_;
    row_ = std::string_view(buffer_).substr(at_, end - at_);
    at_ = std::min(end + 1, buffer_.size());
    if (row_.empty()) continue;  // also what lies between \r and \n
    ++number_;
    return true;
  }
}

}  // namespace levin::detail
