#include "levin/text/unicode/pattern.h"

#include "levin/core/error.h"
#include "levin/text/unicode/regex.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom =
    " ?[^(\\s|[.,!?\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c])]+";

enum Class : uint8_t { kLetter, kNumber, kSpace, kOtherClass, kNewline };

// The class of the code point at `at`, and its bytes.
struct Seen {
  Class is = kOtherClass;
  uint32_t bytes = 0;
};

struct AsciiClasses {
  Class of[128];
  constexpr AsciiClasses() : of() {
    for (int i = 0; i < 128; ++i) {
      const bool letter = (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z');
      of[i] = letter                            ? kLetter
              : i >= '0' && i <= '9'            ? kNumber
              : i == '\n' || i == '\r'          ? kNewline
              : (i >= 9 && i <= 13) || i == ' ' ? kSpace
                                                : kOtherClass;
    }
  }
};
constexpr AsciiClasses kAscii;

inline Seen see(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {kAscii.of[byte], 1};
  const auto [point, bytes] = decode_utf8(text, at);
  const auto all = properties(point);
  if (all.is_letter()) return {kLetter, bytes};
  if (all.is_number()) return {kNumber, bytes};
  return {all.is_space() ? kSpace : kOtherClass, bytes};
}

inline bool is_space_class(Class is) {
  return is == kSpace || is == kNewline;
}

// The end of a run of one class.
inline size_t run_of(Class is, std::string_view text, size_t at) {
  while (at < text.size()) {
    const auto seen = see(text, at);
    if (seen.is != is) break;
    at += seen.bytes;
  }
  return at;
}

// Length of 's, 't, 're, 've, 'm, 'll or 'd at `at`, or 0.
template <bool kIgnoreCase>
size_t contraction(std::string_view text, size_t at) {
  if (text[at] != '\'' || at + 1 >= text.size()) return 0;
  const auto letter = [&](size_t i) {
    if (at + i >= text.size()) return '\0';
    const char c = text[at + i];
    return kIgnoreCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = letter(1), b = letter(2);
  if (kIgnoreCase && a == '\xc5' && b == '\xbf') return 3;  // the long s
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return 0;
}

// The end of white space at `at` without its last code point when something else follows: \s+(?!\S)|\s+
size_t spaces(std::string_view text, size_t at) {
  size_t last = at, end = at;
  while (end < text.size()) {
    const auto seen = see(text, end);
    if (!is_space_class(seen.is)) return last > at ? last : end;
    last = end;
    end += seen.bytes;
  }
  return end;
}

// Llama 3 and its relatives; they differ in how many digits stand together.
template <int kDigits>
size_t scan_llama3(std::string_view text, size_t at) {
  if (const auto length = contraction<true>(text, at)) return at + length;
  const auto first = see(text, at);
  if (first.is == kLetter) return run_of(kLetter, text, at + first.bytes);
  if (first.is == kNumber) {
    size_t end = at + first.bytes;
    for (int i = 1; i < kDigits && end < text.size(); ++i) {
      const auto next = see(text, end);
      if (next.is != kNumber) break;
      end += next.bytes;
    }
    return end;
  }
  const size_t after = at + first.bytes;
  if (first.is != kNewline && after < text.size() && see(text, after).is == kLetter)
    return run_of(kLetter, text, after);
  const bool blank = text[at] == ' ' && after < text.size();
  if (first.is == kOtherClass || (blank && see(text, after).is == kOtherClass)) {
    size_t end = run_of(kOtherClass, text, first.is == kOtherClass ? at : after);
    while (end < text.size() && (text[end] == '\n' || text[end] == '\r')) ++end;
    return end;
  }
  // White space: up to its last newline, if it has one.
  size_t end = at, newline = 0;
  while (end < text.size()) {
    const auto seen = see(text, end);
    if (!is_space_class(seen.is)) break;
    end += seen.bytes;
    if (seen.is == kNewline) newline = end;
  }
  return newline ? newline : spaces(text, at);
}

bool is_bloom_break(std::string_view text, size_t at, uint32_t& bytes) {
  const auto [point, length] = decode_utf8(text, at);
  bytes = length;
  switch (point) {
    case U'(':
    case U')':
    case U'|':
    case U'.':
    case U',':
    case U'!':
    case U'?':
    case 0x2026:
    case 0x3002:
    case 0xff0c:
    case 0x3001:
    case 0x0964:
    case 0x06d4:
    case 0x060c:
      return true;
    default:
      return properties(point).is_space();
  }
}

void bloom_parts(std::string_view text, std::vector<Part>& out) {
  uint32_t bytes = 0;
  size_t rest = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    if (text[at] == ' ' && at + 1 < text.size()) ++end;
    const size_t begin = end;
    while (end < text.size() && !is_bloom_break(text, end, bytes)) end += bytes;
    if (end == begin) {
      at += utf8_length(text[at]);
      continue;
    }
    if (rest < at) out.push_back({static_cast<uint32_t>(rest), static_cast<uint32_t>(at), false});
    out.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end), true});
    rest = at = end;
  }
  if (rest < text.size()) out.push_back({static_cast<uint32_t>(rest), static_cast<uint32_t>(text.size()), false});
}

}  // namespace

size_t scan_gpt2(std::string_view text, size_t at) {
  if (const auto length = contraction<false>(text, at)) return at + length;
  auto first = see(text, at);
  size_t begin = at;
  if (text[at] == ' ' && at + 1 < text.size()) {
    const auto next = see(text, at + 1);
    if (!is_space_class(next.is)) {
      first = next;
      begin = at + 1;
    }
  }
  if (is_space_class(first.is)) return spaces(text, at);
  return run_of(first.is, text, begin + first.bytes);
}

Pattern Pattern::string(std::string content) {
  Pattern made;
  made.content_ = std::move(content);
  return made;
}

Pattern Pattern::regex(std::string_view expression) {
  Pattern made;
  if (expression == kGpt2)
    made.scanner_ = scan_gpt2;
  else if (expression == kLlama3)
    made.scanner_ = scan_llama3<3>;
  else if (expression == kQwen2)
    made.scanner_ = scan_llama3<1>;
  else if (expression == kBloom)
    made.is_bloom_ = true;
  else
    return engine(expression);
  return made;
}

Pattern Pattern::engine(std::string_view expression) {
  Pattern made;
  made.regex_ = std::make_shared<const detail::Regex>(expression);
  return made;
}

void Pattern::parts(std::string_view text, std::vector<Part>& out) const {
  if (text.empty()) return;
  if (is_bloom_) return bloom_parts(text, out);
  const auto add = [&](size_t begin, size_t end, bool is_match) {
    out.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), is_match});
  };
  if (scanner_) {
    for (size_t at = 0; at < text.size();) {
      const auto end = scanner_(text, at);
      add(at, end, true);
      at = end;
    }
    return;
  }
  size_t rest = 0;
  if (!regex_) {
    if (!content_.empty()) {
      for (size_t at = text.find(content_); at != text.npos; at = text.find(content_, rest)) {
        if (rest < at) add(rest, at, false);
        rest = at + content_.size();
        add(at, rest, true);
      }
    }
  } else {
    auto budget = detail::Regex::budget(text);
    size_t begin = 0, end = 0, from = 0;
    bool any = false;
    while (from <= text.size() && regex_->find(text, from, begin, end, budget)) {
      if (begin == end && any && begin == rest) {  // an empty match at the end of the last one
        if (begin >= text.size()) break;
        from = begin + utf8_length(text[begin]);
        continue;
      }
      if (rest < begin) add(rest, begin, false);
      add(begin, end, true);
      rest = end;
      any = true;
      from = end;
      if (begin == end) {
        if (end >= text.size()) break;
        from = end + utf8_length(text[end]);
      }
    }
  }
  if (rest < text.size()) add(rest, text.size(), false);
}

}  // namespace levin::text
