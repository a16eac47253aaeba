#include "levin/data/text/json_lines.h"

#include <algorithm>
#include <span>

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/records/plain_file.h"

namespace levin::detail {

struct JsonObject::Value {
  std::shared_ptr<const nlohmann::json> root;
  const nlohmann::json* object;
};

namespace {

constexpr int kDeepestJson = 64;

/// Every level of JSON is a call when it is deleted.
void check_depth(std::string_view line, const std::string& where) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      LEVIN_CHECK(++depth <= kDeepestJson, "[data] ", where, ": JSON is nested more than ", kDeepestJson, " deep");
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

const nlohmann::json& value_at(const JsonObject& of, const nlohmann::json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) {
    auto known = of.keys();
    for (auto& name : known) name = shown(name);
    fail(concat("[data] ", of.where(), " has no \"", key, "\"", known.empty() ? "" : "; it has ", join(known)));
  }
  return *found;
}

}  // namespace

bool JsonObject::has(const std::string& key) const {
  return value_->object->contains(key);
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : value_->object->items()) names.push_back(name);
  return names;
}

std::string JsonObject::text(const std::string& key) const {
  const auto& value = value_at(*this, *value_->object, key);
  LEVIN_CHECK(value.is_string(), "[data] ", where_, ": \"", key, "\" is not a text");
  return value.get<std::string>();
}

std::string JsonObject::word(const std::string& key) const {
  const auto& value = value_at(*this, *value_->object, key);
  if (value.is_number_integer()) return value.dump();
  LEVIN_CHECK(value.is_string(), "[data] ", where_, ": \"", key, "\" is neither a text nor a whole number");
  return value.get<std::string>();
}

std::vector<JsonObject> JsonObject::objects(const std::string& key) const {
  const auto& list = value_at(*this, *value_->object, key);
  LEVIN_CHECK(list.is_array(), "[data] ", where_, ": \"", key, "\" is not a list");
  std::vector<JsonObject> items;
  for (const auto& item : list) {
    LEVIN_CHECK(item.is_object(), "[data] ", where_, ": \"", key, "\" has an entry that is no object");
    items.emplace_back(std::make_shared<const Value>(Value{value_->root, &item}), where_);
  }
  return items;
}

std::string plain_text(const std::filesystem::path& path) {
  const PlainFile file(path);
  std::string text(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  check_utf8(text, concat("[data] \"", path.string(), "\""));
  return text;
}

bool has_ending(const std::filesystem::path& path, std::initializer_list<std::string_view> endings) {
  auto name = path.filename().string();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view end) { return name.ends_with(end); });
}

void each_json_line(const std::filesystem::path& path, const std::function<void(const JsonObject& object)>& take) {
  const auto content = plain_text(path);
  size_t begin = content.starts_with("\xef\xbb\xbf") ? 3 : 0;
  for (int64_t number = 1; begin < content.size(); ++number) {
    const auto end = std::min(content.find('\n', begin), content.size());
    const auto line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto where = concat("\"", path.string(), "\", line ", number);
    check_depth(line, where);
    const auto parsed =
        std::make_shared<const nlohmann::json>(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    LEVIN_CHECK(parsed->is_object(), "[data] ", where, " is not a JSON object");
    take(JsonObject(std::make_shared<const JsonObject::Value>(JsonObject::Value{parsed, parsed.get()}), where));
  }
}

}  // namespace levin::detail
