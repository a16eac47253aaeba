#include "levin/report/json_text.h"

#include <charconv>
#include <cmath>

#include "levin/core/error.h"

namespace levin::report {
namespace {

[[noreturn]] void fail_text(const char* what) {
  throw Error(what);
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

// The four digits after \u; a code that cannot be is '?'.
uint32_t hex_at(std::string_view text, size_t at) {
  uint32_t code = '?';
  if (at + 4 > text.size()) return code;
  const auto* from = text.data() + at;
  const auto [end, error] = std::from_chars(from, from + 4, code, 16);
  return error == std::errc() && end == from + 4 ? code : '?';
}

// `at` is that of the u; moves to the last character of the code.
void append_code(std::string& out, std::string_view text, size_t& at) {
  uint32_t code = hex_at(text, at + 1);
  at = std::min(at + 4, text.size() - 1);
  const bool pair =
      code >= 0xd800 && code < 0xdc00 && at + 6 < text.size() && text[at + 1] == '\\' && text[at + 2] == 'u';
  if (pair) {
    const uint32_t low = hex_at(text, at + 3);
    if (low >= 0xdc00 && low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      at += 6;
    }
  }
  append_utf8(out, code >= 0xd800 && code < 0xe000 ? '?' : code);
}

bool is_quoted(std::string_view value) {
  return value.size() >= 2 && value.front() == '"' && value.back() == '"';
}

}  // namespace

JsonMembers::JsonMembers(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {
  if (text.empty() || (text[0] != '{' && text[0] != '[')) fail_text("neither an object nor a list");
  is_object_ = *at_++ == '{';
}

char JsonMembers::peek() {
  while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  if (at_ == end_) fail_text("it ends too early");
  return *at_;
}

std::string_view JsonMembers::take_string() {
  const char* const from = ++at_;
  while (at_ != end_ && *at_ != '"') at_ += *at_ == '\\' && at_ + 1 != end_ ? 2 : 1;
  if (at_ == end_) fail_text("a string has no end");
  const char* const to = at_++;
  return {from, static_cast<size_t>(to - from)};
}

std::string_view JsonMembers::take_value() {
  const char first = peek();
  const char* const from = at_;
  if (first == '"') {
    take_string();
  } else if (first == '{' || first == '[') {
    int depth = 0;
    do {
      if (at_ == end_) fail_text("a bracket has no end");
      const char c = *at_;
      if (c == '"') {
        take_string();
        continue;
      }
      depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
      ++at_;
    } while (depth > 0);
  } else {
    // Numbers and words; also what is no JSON but written by profilers (N/A, nan, inf).
    while (at_ != end_ && *at_ != ',' && *at_ != '}' && *at_ != ']' && *at_ != ' ' && *at_ != '\n') ++at_;
    if (at_ == from) fail_text("a value is missing");
  }
  return {from, static_cast<size_t>(at_ - from)};
}

bool JsonMembers::next() {
  char c = peek();
  if (c == (is_object_ ? '}' : ']')) return false;
  if (!is_first_) {
    if (c != ',') fail_text("a comma is missing");
    ++at_;
    c = peek();
  }
  is_first_ = false;
  if (is_object_) {
    if (c != '"') fail_text("a key is missing");
    key_ = take_string();
    if (peek() != ':') fail_text("a colon is missing");
    ++at_;
  }
  value_ = take_value();
  return true;
}

std::string_view unquoted(std::string_view value) {
  return is_quoted(value) ? value.substr(1, value.size() - 2) : value;
}

std::string text_of(std::string_view value) {
  if (!is_quoted(value)) return std::string(value);
  const auto text = unquoted(value);
  if (text.find('\\') == std::string_view::npos) return std::string(text);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    switch (const char c = text[++i]) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case 'b':
        out += '\b';
        break;
      case 'f':
        out += '\f';
        break;
      case 'u':
        append_code(out, text, i);
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::optional<int64_t> integer_of(std::string_view value) {
  value = unquoted(value);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  return number;
}

std::optional<double> number_of(std::string_view value) {
  value = unquoted(value);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) return std::nullopt;
  return number;
}

std::optional<Ns> time_of(std::string_view value) {
  value = unquoted(value);
  // The usual form: up to 16 digits, a point, up to 3 digits.
  constexpr int64_t kMost = int64_t{3155760000} * 1'000'000;  // microseconds of a century
  int64_t whole = 0, fraction = 0;
  size_t at = 0, digits = 0;
  while (at < value.size() && at < 17 && value[at] >= '0' && value[at] <= '9') whole = whole * 10 + (value[at++] - '0');
  const bool has_digits = at > 0;
  if (at < value.size() && value[at] == '.') {
    ++at;
    for (; at < value.size() && value[at] >= '0' && value[at] <= '9'; ++at) {
      if (digits < 3) {
        fraction = fraction * 10 + (value[at] - '0');
        ++digits;
      }
    }
  }
  if (has_digits && at == value.size()) {
    for (; digits < 3; ++digits) fraction *= 10;
    if (whole > kMost) return std::nullopt;
    return whole * 1000 + fraction;
  }
  const auto number = number_of(value);
  if (!number || std::abs(*number) > static_cast<double>(kMost)) return std::nullopt;
  return static_cast<Ns>(std::llround(*number * 1000));
}

}  // namespace levin::report
