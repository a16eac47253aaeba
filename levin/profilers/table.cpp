#include "levin/profilers/table.h"

#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

namespace levin::detail {
namespace {

constexpr size_t kCellWidth = 15;
constexpr size_t kTabWidth = 8;

std::string padded(const std::string& text, size_t width) {
  const auto count = count_characters(text);
  return count < width ? text + std::string(width - count, ' ') : text;
}

// Characters of a line on a screen, and one for its end.
size_t shown_width(std::string_view line) {
  size_t column = 0, width = 0;
  for (const char c : line) {
    if (c == '\n') {
      ++width;
    } else if (c == '\t') {
      const auto step = kTabWidth - column % kTabWidth;
      column += step;
      width += step;
    } else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) {
      ++column;
      ++width;
    }
  }
  return width;
}

}  // namespace

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

std::string five_digits(double value) {
  constexpr int kDigits = 5;
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  auto text = fmt::format("{:.{}e}", value, kDigits - 1);
  const auto e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= kDigits - 1) {  // the last digit is kept for what stands behind the point
    const auto tail = text.substr(e);
    text.resize(e);
    while (text.back() == '0') text.pop_back();
    if (text.back() == '.') text.pop_back();
    return text + tail;
  }
  text = fmt::format("{:.{}f}", value, kDigits - 1 - exponent);
  while (text.back() == '0' && text[text.size() - 2] != '.') text.pop_back();
  return text;
}

std::string ReportTable::line(const std::vector<std::string>& cells) const {
  std::string text = "\n|";
  for (size_t i = 0; i < cells.size(); ++i) text += "  " + padded(cells[i], i == 0 ? width_ : kCellWidth) + "\t|";
  return text;
}

void ReportTable::header(const std::vector<std::string>& cells) {
  const auto text = line(cells);
  rule_width_ = shown_width(text);
  rule();
  text_ += text;
  rule();
}

void ReportTable::row(const std::vector<std::string>& cells) {
  text_ += line(cells);
}

void ReportTable::rule() {
  text_ += "\n" + std::string(rule_width_, '-');
}

}  // namespace levin::detail
