#include "levin/io/records/record_fields.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/record_files.h"
#include "levin/io/weights/npy.h"

namespace levin::detail {
namespace {

/// Whether a member of this extension is an image, of whatever kind.
bool is_image_member(std::string_view extension) {
  if (extension.find('.') != std::string_view::npos) return false;
  const auto name = concat(".", extension);
  return extension == "image" || extension == "img" || image_codec_by_path(name) || is_undecoded_image(name);
}

std::string_view trim_text(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

template <class T>
std::optional<T> whole_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
std::optional<std::vector<T>> number_list(std::string_view text) {
  std::vector<T> values;
  while (true) {
    const auto comma = std::min(text.find(','), text.size());
    auto word = trim_text(text.substr(0, comma));
    if constexpr (std::is_same_v<T, double>) {
      // As Python writes them; from_chars knows "inf" and "nan".
      if (word == "Infinity") word = "inf";
      if (word == "-Infinity") word = "-inf";
    }
    const auto value = whole_number<T>(word);
    if (!value) return std::nullopt;
    values.push_back(*value);
    if (comma == text.size()) return values;
    text.remove_prefix(comma + 1);
  }
}

/// A number or a flat list of them, as JSON; nothing when it is anything else.
std::optional<FieldValue> json_numbers(std::string_view text) {
  text = trim_text(text);
  if (text.starts_with('[') && text.ends_with(']') && text.size() >= 2) {
    text = trim_text(text.substr(1, text.size() - 2));
    if (text.empty()) return std::vector<int64_t>{};
  }
  if (auto ints = number_list<int64_t>(text)) return *std::move(ints);
  if (auto floats = number_list<double>(text)) return *std::move(floats);
  return std::nullopt;
}

/// Every digit that a double needs, also of a float: it is read as a double.
std::string float_text(double value) {
  if (value != value) return "NaN";
  if (value - value != 0) return value > 0 ? "Infinity" : "-Infinity";
  auto text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string numbers_json(const FieldValue& value) {
  std::vector<std::string> words;
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&value))
    for (const auto v : *ints) words.push_back(fmt::format("{}", v));
  else if (const auto* floats = std::get_if<std::vector<float>>(&value))
    for (const auto v : *floats) words.push_back(float_text(v));
  else
    for (const auto v : std::get<std::vector<double>>(value)) words.push_back(float_text(v));
  return words.size() == 1 ? words[0] : fmt::format("[{}]", fmt::join(words, ", "));
}

/// A field's name as an extension: lower case, folders become parts ("image/height" -> "image.height").
std::string extension_of(std::string_view name) {
  std::string extension(name);
  for (char& c : extension) {
    LEVIN_CHECK(static_cast<uint8_t>(c) > ' ' && c != 0x7f, "[records] the field \"", shown(name),
                "\" cannot be an extension: it has a blank or a control character");
    if (c == '/') c = '.';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  LEVIN_CHECK(!extension.empty(), "[records] a field without a name cannot be written");
  return extension;
}

std::pair<std::string, std::string> member_of(const std::string& name, const FieldValue& value) {
  const auto* bytes = std::get_if<std::string>(&value);
  const auto* ints = std::get_if<std::vector<int64_t>>(&value);
  if (bytes && name == "image") {
    const auto kind = image_extension(*bytes);
    return {std::string(kind.empty() ? "image" : kind), *bytes};
  }
  if (bytes) return {name == "text" ? "txt" : name == "label" ? "cls" : extension_of(name), *bytes};
  if (const auto* tensor = std::get_if<Tensor>(&value)) return {extension_of(name) + ".npy", write_npy(*tensor)};
  if (ints && name == "label" && ints->size() == 1) return {"cls", fmt::format("{}", (*ints)[0])};
  return {extension_of(name) + ".json", numbers_json(value)};
}

}  // namespace

MemberType member_type(std::string_view extension) {
  using Role = MemberType::Role;
  const std::string name(extension);
  if (is_image_member(extension)) return {name, "image", Role::kImage};
  if (extension == "cls" || extension == "class" || extension == "label") return {name, "label", Role::kLabel};
  if (extension == "txt" || extension == "text") return {name, "text", Role::kBytes};
  if (extension == "npy") return {name, name, Role::kArray};
  if (extension.ends_with(".npy")) return {name, name.substr(0, name.size() - 4), Role::kArray};
  if (extension.ends_with(".json")) return {name, name.substr(0, name.size() - 5), Role::kNumbers};
  return {name, name, Role::kBytes};
}

void add_member(Record& record, const MemberType& type, std::string content, const RecordReader& reader,
                int64_t index) {
  using Role = MemberType::Role;
  switch (type.role) {
    case Role::kImage:
      if (record.find("image")) break;
      record.fields.emplace_back(type.field, std::move(content));
      return;
    case Role::kLabel:
      if (record.find("label")) break;
      if (const auto number = whole_number<int64_t>(trim_text(content)))
        record.fields.emplace_back(type.field, std::vector<int64_t>{*number});
      else
        record.fields.emplace_back(type.field, std::move(content));
      return;
    case Role::kNumbers:
      if (auto numbers = json_numbers(content)) {
        record.fields.emplace_back(type.field, *std::move(numbers));
        return;
      }
      break;
    case Role::kArray: {
      // The place is only put into words when it is needed.
      try {
        record.fields.emplace_back(type.field, read_npy(content, ""));
      } catch (const Error&) {
        record.fields.emplace_back(type.field, read_npy(content, reader.where(index) + "." + type.extension));
      }
      return;
    }
    case Role::kBytes:
      record.fields.emplace_back(type.field, std::move(content));
      return;
  }
  record.fields.emplace_back(type.extension, std::move(content));
}

void find_label(Record& record, const std::vector<std::string>& classes) {
  if (const auto* label = record.find("label")) {
    const auto* name = std::get_if<std::string>(label);
    if (!name) return;
    const auto found = std::find(classes.begin(), classes.end(), trim_text(*name));
    if (found != classes.end()) record.set("label", std::vector<int64_t>{found - classes.begin()});
    return;
  }
  if (const auto* field = record.find("json")) {
    if (const auto* text = std::get_if<std::string>(field)) {
      const auto json = nlohmann::json::parse(*text, nullptr, false);
      const nlohmann::json* number = json.is_number_integer() ? &json : nullptr;
      if (json.is_object())
        for (const char* name : {"label", "class", "cls"})
          if (!number && json.contains(name) && json[name].is_number_integer()) number = &json[name];
      if (number) {
        record.set("label", std::vector<int64_t>{number->get<int64_t>()});
        return;
      }
    }
  }
  if (const auto* field = record.find("text"))
    if (const auto* text = std::get_if<std::string>(field))
      if (text->size() < 24)
        if (const auto number = whole_number<int64_t>(trim_text(*text)))
          record.set("label", std::vector<int64_t>{*number});
}

std::vector<std::pair<std::string, std::string>> members_of(const Record& record) {
  std::vector<std::pair<std::string, std::string>> members;
  for (const auto& [name, value] : record.fields) members.push_back(member_of(name, value));
  std::sort(members.begin(), members.end());
  for (size_t i = 1; i < members.size(); ++i)
    LEVIN_CHECK(members[i].first != members[i - 1].first, "[records] \"", shown(record.key),
                "\" has two fields that would be written as .", members[i].first);
  LEVIN_CHECK(!members.empty(), "[records] \"", shown(record.key), "\" has no fields, nothing can be written");
  return members;
}

std::string member_key(const Record& record, int64_t index) {
  if (record.key.empty()) return numbered_key(index);
  std::string key = record.key.substr(std::min(record.key.find_first_not_of('/'), record.key.size()));
  const auto base = key.rfind('/') + 1;  // npos + 1 is 0
  std::replace(key.begin() + static_cast<std::ptrdiff_t>(base), key.end(), '.', '_');
  const bool controls = std::any_of(key.begin(), key.end(), [](char c) { return static_cast<uint8_t>(c) < ' '; });
  const auto first = key.substr(0, key.find('/'));
  LEVIN_CHECK(base < key.size() && !controls && !(first.starts_with("__") && first.ends_with("__")) &&
                  ("/" + key).find("/../") == std::string::npos,
              "[records] the key \"", shown(record.key), "\" cannot be a name in an archive");
  return key;
}

}  // namespace levin::detail
