#include "levin/models/language/model_config.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"

namespace levin::models {

struct detail::ConfigJson {
  nlohmann::ordered_json value;
};

namespace {

constexpr uint64_t kLongestConfig = uint64_t{16} << 20;

std::string shown_value(const nlohmann::ordered_json& value) {
  return shown(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

/// Null when the key is absent, or null itself.
const nlohmann::ordered_json* find_value(const detail::ConfigJson& json, std::string_view key) {
  const auto found = json.value.find(key);
  return found == json.value.end() || found->is_null() ? nullptr : &*found;
}

/// A folder of PEFT has weights too, but no config.
void check_is_no_adapter(const std::filesystem::path& config) {
  const auto folder = config.parent_path(), adapter = folder / "adapter_config.json";
  if (std::filesystem::exists(config) || !std::filesystem::is_regular_file(adapter)) return;
  const auto json = nlohmann::ordered_json::parse(read_file(adapter, kLongestConfig), nullptr, false);
  const auto found = json.find("base_model_name_or_path");
  throw Error(levin::detail::concat("[open_model] \"", folder.string(),
                                    "\" holds adapters of PEFT, not a model: name the folder of its base model",
                                    found != json.end() && found->is_string() ? " " + shown_value(*found) : ""));
}

}  // namespace

ModelConfig ModelConfig::read(const std::filesystem::path& file) {
  check_is_no_adapter(file);
  LEVIN_CHECK(std::filesystem::is_regular_file(file), "[open_model] \"", file.string(),
              "\" is not there: a model folder needs a config.json");
  return ModelConfig(read_file(file, kLongestConfig), file.string());
}

ModelConfig::ModelConfig(std::string_view text, std::string where) : where_(std::move(where)) {
  auto parsed = nlohmann::ordered_json::parse(text, nullptr, false);
  LEVIN_CHECK(parsed.is_object(), "[open_model] \"", where_, "\" is not a JSON object");
  json_ = std::make_shared<detail::ConfigJson>(std::move(parsed));
}

void ModelConfig::fail(std::string_view key, const std::string& why) const {
  throw Error(fmt::format("[open_model] \"{}\": {}{} {}", where_, path_, key, why));
}

bool ModelConfig::has(std::string_view key) const {
  return find_value(*json_, key) != nullptr;
}

bool ModelConfig::is_null(std::string_view key) const {
  const auto found = json_->value.find(key);
  return found != json_->value.end() && found->is_null();
}

bool ModelConfig::is_object(std::string_view key) const {
  const auto* value = find_value(*json_, key);
  return value && value->is_object();
}

bool ModelConfig::is_list(std::string_view key) const {
  const auto* value = find_value(*json_, key);
  return value && value->is_array();
}

int64_t ModelConfig::integer(std::string_view key, int64_t least, int64_t most, int64_t usual) const {
  const auto* value = find_value(*json_, key);
  if (!value) return usual;
  if (!value->is_number_integer()) fail(key, fmt::format("{} is not an integer", shown_value(*value)));
  const bool huge = value->is_number_unsigned() &&
                    value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (huge || value->get<int64_t>() < least || value->get<int64_t>() > most)
    fail(key, fmt::format("{} is not allowed ({} to {})", shown_value(*value), least, most));
  return value->get<int64_t>();
}

int64_t ModelConfig::count(std::initializer_list<const char*> keys, int64_t most, int64_t usual) const {
  const char* first = nullptr;
  int64_t result = usual;
  for (const char* key : keys) {
    if (!has(key)) continue;
    const auto value = integer(key, 1, most, usual);
    if (first && value != result) fail(key, fmt::format("{} and {} {} do not agree", value, first, result));
    if (!first) first = key, result = value;
  }
  return result;
}

int64_t ModelConfig::count(std::initializer_list<const char*> keys, int64_t most) const {
  const auto result = count(keys, most, 0);
  if (result == 0) fail(*keys.begin(), "is missing");
  return result;
}

double ModelConfig::number(std::initializer_list<const char*> keys, double usual, double least, double most) const {
  for (const char* key : keys) {
    const auto* value = find_value(*json_, key);
    if (!value) continue;
    if (!value->is_number()) fail(key, fmt::format("{} is not a number", shown_value(*value)));
    const auto found = value->get<double>();
    if (!std::isfinite(found) || found < least || found > most)
      fail(key, fmt::format("{} is not allowed", shown_value(*value)));
    return found;
  }
  return usual;
}

double ModelConfig::fraction(std::string_view key, double usual) const {
  return number({std::string(key).c_str()}, usual, 0, 1);
}

bool ModelConfig::flag(std::string_view key, bool usual) const {
  const auto* value = find_value(*json_, key);
  if (!value) return usual;
  if (!value->is_boolean()) fail(key, fmt::format("{} is not true or false", shown_value(*value)));
  return value->get<bool>();
}

std::string ModelConfig::text(std::string_view key, std::string_view usual) const {
  const auto* value = find_value(*json_, key);
  if (!value) return std::string(usual);
  if (!value->is_string()) fail(key, fmt::format("{} is not a text", shown_value(*value)));
  return value->get<std::string>();
}

std::vector<std::string> ModelConfig::texts(std::string_view key) const {
  const auto* value = find_value(*json_, key);
  if (!value) return {};
  std::vector<std::string> result;
  const bool all =
      value->is_array() && std::all_of(value->begin(), value->end(), [](const auto& item) { return item.is_string(); });
  if (!all) fail(key, fmt::format("{} is not a list of texts", shown_value(*value)));
  for (const auto& item : *value) result.push_back(item.get<std::string>());
  return result;
}

std::vector<int64_t> ModelConfig::integers(std::string_view key, int64_t least, int64_t most) const {
  const auto* value = find_value(*json_, key);
  if (!value) return {};
  std::vector<int64_t> result;
  const bool all = value->is_array() && std::all_of(value->begin(), value->end(), [&](const auto& item) {
                     return item.is_number_integer() && item >= least && item <= most;
                   });
  if (!all) fail(key, fmt::format("{} is not a list of integers from {} to {}", shown_value(*value), least, most));
  for (const auto& item : *value) result.push_back(item.get<int64_t>());
  return result;
}

ModelConfig ModelConfig::object(std::string_view key) const {
  ModelConfig result;
  result.where_ = where_;
  result.path_ = fmt::format("{}{}.", path_, key);
  const auto* value = find_value(*json_, key);
  if (value && !value->is_object()) fail(key, fmt::format("{} is not an object", shown_value(*value)));
  result.json_ = std::make_shared<detail::ConfigJson>(value ? *value : nlohmann::ordered_json::object());
  return result;
}

int64_t ModelConfig::size(std::string_view key) const {
  const auto* value = find_value(*json_, key);
  return value ? static_cast<int64_t>(value->size()) : 0;
}

void ModelConfig::refuse_unless(std::string_view key, bool value, std::string_view why) const {
  if (flag(key, value) != value) fail(key, fmt::format("{} is not supported: {}", !value, why));
}

std::string ModelConfig::with(const std::vector<std::pair<std::string, std::string>>& changes) const {
  auto copy = json_->value;
  for (const auto& [key, value] : changes)
    if (value.empty())
      copy.erase(key);
    else
      copy[key] = nlohmann::ordered_json::parse(value);
  return copy.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace levin::models
