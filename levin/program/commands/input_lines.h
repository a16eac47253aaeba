#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::cli {

/// Lines of a file of rows, or of the standard input ("-"), without the end of the line. `where` names a line in
/// errors:
/// "[levin score] rows.txt:3". A file that cannot be read or has no line, and a
/// line that is not UTF-8, is an Error.
void read_input_lines(const std::string& command, const std::string& file,
                      const std::function<void(const std::string& line, const std::string& where)>& take);

/// All of a file, or of the standard input ("-"); an Error where it cannot be read or is empty.
std::string whole_input(const std::string& command, const std::string& file);

/// A line that is a JSON object. Fields that are not as they must be are Errors that name the line.
class JsonLine {
 public:
  /// None: a line that does not begin with { is a text. What begins so and is no object is an Error that shows the
  /// `example`.
  static std::optional<JsonLine> of(const std::string& line, std::string where, const char* example);

  bool has(const char* key) const;
  const std::string& text(const char* key) const;
  /// "ids": a list of integers that is not empty.
  std::vector<int64_t> ids() const;
  /// "messages": role and content of each; not empty.
  std::vector<std::pair<std::string, std::string>> messages() const;

 private:
  struct Parsed;

  std::shared_ptr<const Parsed> parsed_;
  std::string where_;
};

}  // namespace levin::cli
