#include "levin/trainer/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class T>
std::optional<T> number(std::string_view text) {
  text = trimmed(text);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

/// "12 steps" is 12 and "steps"; a number alone has no unit.
struct Amount {
  std::string_view number;
  std::string_view unit;
};
Amount split(std::string_view text) {
  text = trimmed(text);
  // from_chars also takes words: inf, nan.
  if (text.find_first_of("0123456789") > 2) return {{}, text};
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value).ptr;
  const auto at = static_cast<size_t>(end - text.data());
  return {text.substr(0, at), trimmed(text.substr(at))};
}

constexpr std::array<std::pair<std::string_view, double>, 16> kTimes{{{"s", 1},
                                                                      {"sec", 1},
                                                                      {"second", 1},
                                                                      {"seconds", 1},
                                                                      {"min", 60},
                                                                      {"minute", 60},
                                                                      {"minutes", 60},
                                                                      {"m", 60},
                                                                      {"h", 3600},
                                                                      {"hour", 3600},
                                                                      {"hours", 3600},
                                                                      {"d", 86400},
                                                                      {"day", 86400},
                                                                      {"days", 86400},
                                                                      {"w", 604800},
                                                                      {"weeks", 604800}}};

std::optional<double> seconds_of(std::string_view text) {
  if (std::count(text.begin(), text.end(), ':') == 3) {
    constexpr std::array<double, 4> kUnits{86400, 3600, 60, 1};
    double seconds = 0;
    for (size_t i = 0; i < 4; ++i) {
      const auto colon = std::min(text.find(':'), text.size());
      const auto part = number<int64_t>(text.substr(0, colon));
      if (!part || *part < 0) return {};
      seconds += static_cast<double>(*part) * kUnits[i];
      text = text.substr(std::min(colon + 1, text.size()));
    }
    return seconds;
  }
  const auto [amount, unit] = split(text);
  const auto value = number<double>(amount);
  if (!value || *value < 0) return {};
  for (const auto& [name, factor] : kTimes)
    if (name == unit) return *value * factor;
  return {};
}

}  // namespace

Limit::Limit(const char* text) : Limit(std::string_view(text)) {}
Limit::Limit(std::string_view text) {
  const auto [amount, unit] = split(text);
  if (const auto count = number<int64_t>(amount); count && (unit.empty() || unit == "batches")) {
    count_ = *count;
    return;
  }
  const auto fraction = number<double>(amount);
  LEVIN_CHECK(fraction && unit.empty(), "[trainer] \"", text,
              "\" is no limit: give a number of batches (10) or a fraction of them (0.25)");
  fraction_ = *fraction;
}

std::string Limit::to_string() const {
  if (count_) return std::to_string(*count_);
  // Always with a point: 1 is one batch, 1.0 is all of them.
  auto text = fmt::format("{}", fraction_);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

Duration::Duration(const char* text) : Duration(std::string_view(text)) {}
Duration::Duration(std::string_view text) {
  const auto seconds = seconds_of(trimmed(text));
  LEVIN_CHECK(seconds, "[trainer] \"", text,
              "\" is no time: give \"DD:HH:MM:SS\" (\"00:12:00:00\" is twelve hours) or a number with s, min, h or d "
              "(\"90 min\")");
  seconds_ = *seconds;
}
std::string Duration::to_string() const {
  const auto whole = static_cast<int64_t>(seconds_);
  if (static_cast<double>(whole) != seconds_) return fmt::format("{} s", seconds_);
  return fmt::format("{:02}:{:02}:{:02}:{:02}", whole / 86400, whole / 3600 % 24, whole / 60 % 60, whole % 60);
}

Interval::Interval(const char* text) : Interval(std::string_view(text)) {}
Interval::Interval(std::string_view text) {
  const auto [amount, unit] = split(text);
  if (const auto count = number<int64_t>(amount)) {
    if (unit.empty() || unit == "batches" || unit == "steps") {
      unit_ = unit == "steps" ? Unit::kSteps : Unit::kBatches;
      amount_ = static_cast<double>(*count);
      return;
    }
  } else if (const auto fraction = number<double>(amount); fraction && unit.empty()) {
    amount_ = *fraction;
    return;
  }
  const auto seconds = seconds_of(trimmed(text));
  LEVIN_CHECK(
      seconds, "[trainer] \"", text,
      "\" is no interval: give a fraction of an epoch (0.25), batches (100), \"500 steps\", or a time (\"30 min\", "
      "\"00:00:30:00\")");
  unit_ = Unit::kTime;
  amount_ = *seconds;
}
std::string Interval::to_string() const {
  switch (unit_) {
    case Unit::kFraction:
      return Limit(amount_).to_string();
    case Unit::kBatches:
      return std::to_string(count());
    case Unit::kSteps:
      return std::to_string(count()) + " steps";
    case Unit::kTime:
      break;
  }
  return Duration(std::chrono::duration<double>(amount_)).to_string();
}

Deterministic::Deterministic(std::string text) : mode_(std::move(text)) {
  static const std::vector<std::string> kKnown{"true", "false", "warn"};
  if (std::find(kKnown.begin(), kKnown.end(), mode_) == kKnown.end())
    fail_unknown("trainer", "deterministic", mode_, kKnown);
}

}  // namespace levin
