#include "levin/loggers/json.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

nlohmann::ordered_json convert(const StateValue& value) {
  return std::visit(
      [](const auto& v) -> nlohmann::ordered_json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, Tensor>) {
          return concat("tensor ", c10::toString(v.scalar_type()), " ", v.sizes());
        } else if constexpr (std::is_same_v<T, StateList>) {
          auto list = nlohmann::ordered_json::array();
          for (const auto& element : v) list.push_back(convert(element));
          return list;
        } else if constexpr (std::is_same_v<T, StateDict>) {
          auto dict = nlohmann::ordered_json::object();
          for (const auto& [name, element] : v) dict[name] = convert(element);
          return dict;
        } else {
          return v;
        }
      },
      value.variant());
}

}  // namespace

std::string to_json(const StateDict& values) {
  return convert(StateValue(values)).dump(2) + "\n";
}

std::string json_number(double value) {
  if (std::isfinite(value)) return fmt::format("{}", value);
  return std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"";
}

std::string json_string(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace levin::detail
