#include "levin/loggers/json.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace levin::detail {

std::string json_number(const Number& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? "true" : "false";
  const auto real = std::get<double>(value);
  if (std::isfinite(real)) return fmt::format("{}", real);
  return std::isnan(real) ? "\"nan\"" : real > 0 ? "\"inf\"" : "\"-inf\"";
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace levin::detail
