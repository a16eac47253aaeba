#include "levin/program/commands/input_lines.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

const std::string& text_in(const nlohmann::json& json, const char* key, const std::string& where) {
  LEVIN_CHECK(json.contains(key) && json[key].is_string(), where, ": \"", key, "\" is not a text");
  return json[key].get_ref<const std::string&>();
}

}  // namespace

void read_input_lines(const std::string& command, const std::string& file,
                      const std::function<void(const std::string& line, const std::string& where)>& take) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file);
    LEVIN_CHECK(stream && !std::filesystem::is_directory(file), "[", command, "] cannot read \"", file, "\"");
  }
  std::istream& source = file == "-" ? std::cin : stream;
  std::string line;
  int64_t number = 0;
  while (std::getline(source, line)) {
    if (line.ends_with('\r')) line.pop_back();
    const auto where = fmt::format("[{}] {}:{}", command, file, ++number);
    check_utf8_line(line, where);
    take(line, where);
  }
  LEVIN_CHECK(number > 0, "[", command, "] \"", file, "\" has no lines");
}

std::string whole_input(const std::string& command, const std::string& file) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file, std::ios::binary);
    LEVIN_CHECK(stream && !std::filesystem::is_directory(file), "[", command, "] cannot read \"", file, "\"");
  }
  std::istream& source = file == "-" ? std::cin : stream;
  std::string text((std::istreambuf_iterator<char>(source)), {});
  LEVIN_CHECK(!text.empty(), "[", command, "] \"", file, "\" is empty");
  return text;
}

struct JsonLine::Parsed {
  nlohmann::json json;
};

std::optional<JsonLine> JsonLine::of(const std::string& line, std::string where, const char* example) {
  const auto first = line.find_first_not_of(" \t");
  if (first == std::string::npos || line[first] != '{') return std::nullopt;
  auto json = nlohmann::json::parse(line, nullptr, false);
  LEVIN_CHECK(json.is_object(), where, " is not a JSON object such as ", example);
  JsonLine result;
  result.parsed_ = std::make_shared<const Parsed>(Parsed{std::move(json)});
  result.where_ = std::move(where);
  return result;
}

bool JsonLine::has(const char* key) const {
  return parsed_->json.contains(key);
}

const std::string& JsonLine::text(const char* key) const {
  return text_in(parsed_->json, key, where_);
}

std::vector<int64_t> JsonLine::ids() const {
  const auto& json = parsed_->json;
  LEVIN_CHECK(json.contains("ids") && json["ids"].is_array() && !json["ids"].empty(), where_,
              " needs \"ids\", a list of integers");
  std::vector<int64_t> ids;
  for (const auto& id : json["ids"]) {
    LEVIN_CHECK(id.is_number_integer(), where_, ": ",
                shown(id.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)), " is not an integer");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::vector<std::pair<std::string, std::string>> JsonLine::messages() const {
  const auto& json = parsed_->json;
  LEVIN_CHECK(json.contains("messages") && json["messages"].is_array() && !json["messages"].empty(), where_,
              ": \"messages\" is not a list");
  // What a chat template would be given besides; without it the text would be another one.
  const auto refuse = [&](const std::string& key, const nlohmann::json& value) {
    LEVIN_CHECK(value.is_null() || value.empty() || value == "", where_, ": \"", shown(key),
                "\" is not passed to chat templates; leave it out, or give the text as \"prompt\"");
  };
  for (const char* key : {"tools", "documents"})
    if (json.contains(key)) refuse(key, json[key]);
  for (const auto& [key, usual] : {std::pair{"add_generation_prompt", true}, {"continue_final_message", false}})
    if (json.contains(key) && json[key] != usual) refuse(key, json[key]);
  std::vector<std::pair<std::string, std::string>> messages;
  for (const auto& each : json["messages"]) {
    LEVIN_CHECK(each.is_object(), where_, ": a message is not an object with \"role\" and \"content\"");
    for (const auto& [key, value] : each.items())
      if (key != "role" && key != "content") refuse(key, value);
    messages.emplace_back(text_in(each, "role", where_), text_in(each, "content", where_));
  }
  return messages;
}

}  // namespace levin::cli
