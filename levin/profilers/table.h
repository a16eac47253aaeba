#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin::detail {

/// Characters of a UTF-8 text.
size_t count_characters(std::string_view text);

/// Five significant digits, with at least one behind the point: 0.012346, 12.0, 1.2346e+05.
std::string five_digits(double value);

/// Lines between pipes, cells padded and ended by tabs, and dashed rules as wide as the header on a screen. Every line
/// begins with its end-of-line.
class ReportTable {
 public:
  /// `width` is that of the first column.
  explicit ReportTable(size_t width) : width_(width) {}

  void header(const std::vector<std::string>& cells);
  void row(const std::vector<std::string>& cells);
  void rule();
  const std::string& text() const { return text_; }

 private:
  std::string line(const std::vector<std::string>& cells) const;

  size_t width_;
  size_t rule_width_ = 0;
  std::string text_;
};

}  // namespace levin::detail
