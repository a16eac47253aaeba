#include "levin/core/words.h"

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"

namespace levin {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (std::tolower(a[i - 1]) == std::tolower(b[j - 1]) ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
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

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2) + 1;
  for (const auto& candidate : known) {
    size_t distance = edit_distance(word, candidate);
    // A word that contains the other is near, however long the rest is: "fp16" is meant as "16-true".
    if (distance >= best_distance && !word.empty() && candidate.find(word) != std::string::npos) distance = best_distance - 1;
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

}  // namespace levin
