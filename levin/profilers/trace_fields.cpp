#include "levin/profilers/trace_fields.h"

#include <charconv>

#include <fmt/format.h>

namespace levin::detail {

std::string_view trace_field(std::string_view line, std::string_view name) {
  const auto key = fmt::format("\"{}\": ", name);
  const auto at = line.find(key);
  if (at == std::string_view::npos) return {};
  auto rest = line.substr(at + key.size());
  if (rest.starts_with('"')) return rest.substr(1, rest.find('"', 1) - 1);
  return rest.substr(0, rest.find_first_of(",}"));
}

double trace_number(std::string_view text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

int64_t trace_time(std::string_view text) {
  int64_t microseconds = 0, decimals = 0;
  const char* end = text.data() + text.size();
  const auto point = std::from_chars(text.data(), end, microseconds).ptr;
  int64_t worth = 100;
  for (const char* at = point + 1; at < end && *at >= '0' && *at <= '9' && worth > 0; ++at, worth /= 10)
    decimals += (*at - '0') * worth;
  return microseconds * 1000 + decimals;
}

}  // namespace levin::detail
