#include "levin/core/words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"

namespace levin {
namespace {

bool same_letter(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// Insertions, deletions, replacements and swaps of neighbours ("cdua" is one step from "cuda").
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> steps(a.size() + 1, std::vector<size_t>(b.size() + 1));
  auto same = [&](size_t i, size_t j) { return same_letter(a[i], b[j]); };
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        steps[i][j] = i + j;
        continue;
      }
      steps[i][j] =
          std::min({steps[i - 1][j] + 1, steps[i][j - 1] + 1, steps[i - 1][j - 1] + (same(i - 1, j - 1) ? 0 : 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1))
        steps[i][j] = std::min(steps[i][j], steps[i - 2][j - 2] + 1);
    }
  return steps[a.size()][b.size()];
}

// Bytes of the UTF-8 character at `at`; 0 when there is none, or one that a terminal would obey.
size_t printable_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(at + i < text.size() ? text[at + i] : 0); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= ' ' && first != 0x7f ? 1 : 0;
  const size_t count = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (first < 0xc2 || count == 0) return 0;
  for (size_t i = 1; i < count; ++i)
    if ((byte(i) & 0xc0u) != 0x80) return 0;
  const unsigned second = byte(1);
  const bool is_control = first == 0xc2 && second < 0xa0;
  const bool is_overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_no_character = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  return is_control || is_overlong || is_no_character ? 0 : count;
}

std::string scaled(double value, double step, std::span<const char* const> units) {
  size_t unit = 0;
  while (value >= step && unit + 1 < units.size()) {
    value /= step;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  return fmt::format("{:.{}f}{}", value, value < 10 ? 2 : value < 100 ? 1 : 0, units[unit]);
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, same_letter);
}

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2) + 1;
  for (const auto& candidate : known) {
    size_t distance = edit_distance(word, candidate);
    // A word that contains the other is near, however long the rest is: "fp16" is meant as "16-true".
    if (distance >= best_distance && !word.empty() && candidate.find(word) != std::string::npos)
      distance = best_distance - 1;
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string join(std::span<const std::string> words, std::string_view separator) {
  return fmt::format("{}", fmt::join(words, separator));
}

std::string printable(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t count = printable_bytes(text, at);
    result += count > 0 ? text.substr(at, count) : "?";
    at += std::max<size_t>(count, 1);
  }
  return result;
}

std::string shown(std::string_view text) {
  constexpr size_t kLimit = 200;
  if (text.size() <= kLimit) return printable(text);
  size_t end = kLimit;
  while (end > kLimit - 4 && (text[end] & 0xc0) == 0x80) --end;
  return printable(text.substr(0, end)) + "...";
}

void fail_unknown(std::string_view operation, std::string_view option, std::string_view value,
                  std::span<const std::string> known) {
  const auto nearest = nearest_word(value, known);
  const auto hint = nearest.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", nearest);
  throw Error(fmt::format("[{}] {} \"{}\" is not known{} (known: {})", operation, option, value, hint, join(known)));
}

std::string format_bytes(double bytes) {
  static constexpr std::array units{" B", " kB", " MB", " GB", " TB", " PB"};
  return scaled(bytes, 1000, units);
}

std::string format_count(double count) {
  static constexpr std::array units{"", "k", "M", "B", "T"};
  return scaled(count, 1000, units);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<int64_t>(seconds + 0.5);
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

size_t utf8_character(std::string_view text, size_t at, size_t& broken) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned lead = byte(0);
  broken = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const unsigned low = lead == 0xe0 ? 0xa0u : lead == 0xf0 ? 0x90u : 0x80u;
  const unsigned high = lead == 0xed ? 0x9fu : lead == 0xf4 ? 0x8fu : 0xbfu;
  for (size_t i = 1; i < length; ++i) {
    const unsigned next = byte(i);
    if (next < (i == 1 ? low : 0x80u) || next > (i == 1 ? high : 0xbfu)) return 0;
    broken = i + 1;
  }
  return length;
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0, broken = 0;
  while (at < text.size()) {
    uint64_t block;
    if (text.size() - at >= 8 && (std::memcpy(&block, text.data() + at, 8), (block & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const size_t bytes = utf8_character(text, at, broken);
    if (bytes == 0) return at;
    at += bytes;
  }
  return at;
}

void check_utf8_line(std::string_view line, std::string_view where) {
  const auto valid = valid_utf8_prefix(line);
  LEVIN_CHECK(valid == line.size(), where, " is not UTF-8 (byte ", valid + 1,
              " of the line); convert it, for example by iconv -f LATIN1 -t UTF-8");
}

void check_utf8(std::string_view text, std::string_view where) {
  const auto valid = valid_utf8_prefix(text);
  if (valid == text.size()) return;
  const auto before = text.substr(0, valid);
  const auto begin = before.rfind('\n') + 1;  // npos + 1 is 0
  check_utf8_line(text.substr(begin, text.find('\n', valid) - begin),
                  detail::concat(where, ", line ", 1 + std::ranges::count(before, '\n')));
}

}  // namespace levin
