#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "levin/text/jinja/jinja.h"

/// What filters and methods do with texts, as Python does it.
namespace levin::text::jinja {

/// The text of an argument; an Error names `what` needs it.
const std::string& text_of(const Value& value, const char* what);
/// A number of times; -1 when it is not given.
int64_t count_of(const Arguments& arguments, size_t position, const char* name);

std::string upper_text(const std::string& text);
std::string lower_text(const std::string& text);
std::string capitalize_text(const std::string& text);
std::string title_text(const std::string& text);
/// Without `characters` at its ends, or without white space when that is None.
std::string stripped(const std::string& text, const Value& characters, bool left, bool right);
/// The first `most` occurrences replaced, or all of them when that is negative.
std::string replaced(Interpreter& interpreter, const std::string& text, const std::string& from, const std::string& to,
                     int64_t most);
/// At a separator, or at white space when that is None.
List split_text(Interpreter& interpreter, const std::string& text, const Value& separator, int64_t most,
                bool from_right);

template <class Do>
Value method(Do&& work) {
  return Value::function(std::forward<Do>(work));
}

}  // namespace levin::text::jinja
