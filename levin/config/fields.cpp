#include "levin/config/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "levin/config/yaml.h"
#include "levin/core/words.h"

namespace levin::config {
namespace detail {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

template <class T>
bool parse_whole(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

}  // namespace

bool read_bool(const Node& node) {
  const auto word = node.is_text() ? lower(node.text) : "";
  for (const char* yes : {"true", "yes", "on", "1"})
    if (word == yes) return true;
  for (const char* no : {"false", "no", "off", "0"})
    if (word == no) return false;
  throw BadValue("is not true or false");
}

int64_t read_int(const Node& node, int64_t least, int64_t most) {
  const auto text = node.is_text() ? trim(node.text) : std::string_view();
  int64_t value = 0;
  double real = 0;
  if (!parse_whole(text, value)) {
    // 1e5 is as whole as 100000.
    if (!parse_whole(text, real) || real != std::floor(real) || std::abs(real) > 9e15)
      throw BadValue("is not a whole number");
    value = static_cast<int64_t>(real);
  }
  if (value < least || value > most) throw BadValue(fmt::format("is out of range ({} to {})", least, most));
  return value;
}

double read_double(const Node& node) {
  auto text = node.is_text() ? lower(std::string(trim(node.text))) : "";
  if (text == ".inf" || text == "+.inf") text = "inf";
  if (text == "-.inf") text = "-inf";
  if (text == ".nan") text = "nan";
  double value = 0;
  if (!parse_whole(text, value)) throw BadValue("is not a number");
  return value;
}

std::string read_text(const Node& node) {
  if (node.is_null()) return {};
  if (!node.is_text()) throw BadValue(node.is_list() ? "is a list where one value is needed" : "is not a single value");
  return node.text;
}

std::vector<Node> read_items(const Node& node) {
  if (node.is_null()) return {};
  if (node.is_list()) return node.items;
  if (!node.is_text()) throw BadValue("is not a list");
  std::vector<Node> items;
  std::string_view rest = node.text;
  while (!trim(rest).empty()) {
    const auto comma = std::min(rest.find(','), rest.size());
    auto item = Node::of_text(std::string(trim(rest.substr(0, comma))));
    item.origin = node.origin;
    items.push_back(std::move(item));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return items;
}

std::vector<Node::Entry> read_pairs(const Node& node) {
  if (node.is_null()) return {};
  if (node.is_map()) return node.entries;
  std::vector<Node::Entry> pairs;
  for (const auto& item : read_items(node)) {
    const auto colon = item.text.find(':');
    if (!item.is_text() || colon == std::string::npos) throw BadValue("is not a list of pairs such as 0:8,4:4");
    pairs.emplace_back(std::string(trim(std::string_view(item.text).substr(0, colon))),
                       Node::of_text(std::string(trim(std::string_view(item.text).substr(colon + 1)))));
  }
  return pairs;
}

std::string write_double(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  auto text = fmt::format("{}", value);
  // Readers that follow YAML to the letter take 1e-05 for a text.
  const auto exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) text.insert(exponent, ".0");
  return text;
}

bool is_none(const Node& node) {
  return node.is_text() && !node.is_quoted && (lower(node.text) == "none" || lower(node.text) == "null");
}

void Describe::operator()(const AnyOptions& options) const {
  for (auto field : options.fields()) {
    field.name.insert(0, prefix_);
    into_->push_back(std::move(field));
  }
}

}  // namespace detail

const Class* find_class(const std::vector<Class>& classes, std::string_view name) {
  for (const auto& one : classes)
    if (equal_ignoring_case(one.name, name)) return &one;
  return nullptr;
}

Field make_class_field(std::string name, std::string help, const std::vector<Class>& classes,
                       std::vector<Chosen>& chosen, bool takes_many) {
  Field field{.name = std::move(name), .help = std::move(help), .type = takes_many ? "NAME,..." : "NAME"};
  field.classes = &classes;
  field.takes_many = takes_many;
  field.chosen = &chosen;
  for (const auto& one : classes) field.words.push_back(one.name);
  return field;
}

}  // namespace levin::config
