#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/report/trace/trace_events.h"

/// Reading the text of one JSON value in place. Only what a trace needs: slices, numbers, strings.
namespace levin::report {

/// Goes over the members of an object or the items of a list. What is not JSON is an Error without the name of a file.
class JsonMembers {
 public:
  /// `text` begins with { or [.
  explicit JsonMembers(std::string_view text);
  /// False at the end. Of an object `key()` is what stands between the quotes.
  bool next();
  std::string_view key() const { return key_; }
  /// The text of the value, strings with their quotes.
  std::string_view value() const { return value_; }

 private:
  char peek();
  std::string_view take_string();
  std::string_view take_value();

  const char* at_;
  const char* end_;
  std::string_view key_, value_;
  bool is_object_ = false, is_first_ = true;
};

/// The text of a string value, or the value as it stands when it is none.
std::string text_of(std::string_view value);
/// Between the quotes; the value itself when it has none.
std::string_view unquoted(std::string_view value);
/// A whole number; none when it is something else (N/A, null, a fraction).
std::optional<int64_t> integer_of(std::string_view value);
std::optional<double> number_of(std::string_view value);
/// Microseconds with a fraction, exact to the nanosecond; none beyond a century and for what is no number.
std::optional<Ns> time_of(std::string_view value);

}  // namespace levin::report
