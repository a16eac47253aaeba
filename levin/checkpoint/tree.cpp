#include <charconv>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "levin/checkpoint/format.h"
#include "levin/core/error.h"

namespace levin::detail {
namespace {

using Node = nlohmann::ordered_json;
using Place = std::function<std::string(const StatePath&, const at::Tensor&)>;

constexpr size_t kDeepest = 200;
// What JSON has no word for is an object with one of these names; a name of the user's that starts with $ gets another
// one.
constexpr const char* kTensor = "$tensor";
constexpr const char* kDouble = "$double";
constexpr const char* kBytes = "$bytes";

bool is_utf8(const std::string& text) {
  try {
    (void)Node(text).dump();
    return true;
  } catch (const Node::exception&) {
    return false;
  }
}

std::string to_hex(const std::string& bytes) {
  std::string hex;
  for (const unsigned char c : bytes) hex += fmt::format("{:02x}", c);
  return hex;
}

std::string from_hex(const std::string& hex) {
  std::string bytes(hex.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    unsigned char c = 0;
    std::from_chars(&hex[2 * i], &hex[2 * i] + 2, c, 16);
    bytes[i] = static_cast<char>(c);
  }
  return bytes;
}

Node encode_dict(const StateDict& dict, StatePath& path, const Place& place);

Node encode(const StateValue& value, StatePath& path, const Place& place) {
  LEVIN_CHECK(path.size() < kDeepest, "[checkpoint.save] the state is nested deeper than ", kDeepest, " levels");
  return std::visit(
      [&]<class T>(const T& v) -> Node {
        if constexpr (std::same_as<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::same_as<T, at::Tensor>) {
          return {{kTensor, v.defined() ? Node(place(path, v)) : Node(nullptr)}};
        } else if constexpr (std::same_as<T, double>) {
          if (std::isfinite(v)) return v;
          return {{kDouble, std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"}};
        } else if constexpr (std::same_as<T, std::string>) {
          if (is_utf8(v)) return v;
          return {{kBytes, to_hex(v)}};
        } else if constexpr (std::same_as<T, StateList>) {
          Node list = Node::array();
          for (size_t i = 0; i < v.size(); ++i) {
            path.push_back(std::to_string(i));
            list.push_back(encode(v[i], path, place));
            path.pop_back();
          }
          return list;
        } else if constexpr (std::same_as<T, StateDict>) {
          return encode_dict(v, path, place);
        } else {
          return v;
        }
      },
      value.variant());
}

Node encode_dict(const StateDict& dict, StatePath& path, const Place& place) {
  Node::object_t object;
  object.reserve(dict.size());
  for (const auto& [name, value] : dict) {
    LEVIN_CHECK(is_utf8(name), "[checkpoint.save] a name in \"", fmt::format("{}", fmt::join(path, ".")),
                "\" is not UTF-8");
    path.push_back(name);
    // Straight to the list behind the object: its own insertion looks for the name first.
    auto& items = static_cast<std::vector<std::pair<const std::string, Node>>&>(object);
    items.emplace_back(name.starts_with('$') ? "$" + name : name, encode(value, path, place));
    path.pop_back();
  }
  return object;
}

/// The one tag of an object that stands for something else; empty for a dict.
std::string_view tag_of(const Node& node) {
  if (!node.is_object() || node.size() != 1) return {};
  const auto& key = node.begin().key();
  return key == kTensor || key == kDouble || key == kBytes ? std::string_view(key) : std::string_view();
}

using ReadAt = std::function<at::Tensor(const StatePath&, const std::string&)>;

StateValue decode_node(const Node& node, StatePath& path, const ReadAt& read) {
  LEVIN_CHECK(path.size() <= kDeepest, "[checkpoint] state.json is nested deeper than ", kDeepest, " levels");
  if (const auto tag = tag_of(node); !tag.empty()) {
    const auto& value = *node.begin();
    if (tag == kTensor)
      return value.is_null() ? StateValue(at::Tensor()) : StateValue(read(path, value.get<std::string>()));
    const auto text = value.get<std::string>();
    if (tag == kBytes) return from_hex(text);
    const double infinity = std::numeric_limits<double>::infinity();
    return text == "nan" ? std::numeric_limits<double>::quiet_NaN() : text == "inf" ? infinity : -infinity;
  }
  switch (node.type()) {
    case Node::value_t::null:
      return {};
    case Node::value_t::boolean:
      return node.get<bool>();
    case Node::value_t::number_integer:
    case Node::value_t::number_unsigned:
      return node.get<int64_t>();
    case Node::value_t::number_float:
      return node.get<double>();
    case Node::value_t::string:
      return node.get<std::string>();
    case Node::value_t::array: {
      StateList list;
      for (const auto& element : node) {
        path.push_back(std::to_string(list.size()));
        list.push_back(decode_node(element, path, read));
        path.pop_back();
      }
      return list;
    }
    default:
      break;
  }
  StateDict dict;
  for (const auto& [name, value] : node.items()) {
    path.push_back(name.starts_with("$$") ? name.substr(1) : name);
    dict[path.back()] = decode_node(value, path, read);
    path.pop_back();
  }
  return dict;
}

}  // namespace

struct Tree::Json {
  Node root;
  const Node& at(std::string_view key) const {
    for (const auto& [name, value] : root.items())
      if ((name.starts_with("$$") ? std::string_view(name).substr(1) : std::string_view(name)) == key) return value;
    fail(concat("[checkpoint] no \"", key, "\""));
  }
};

std::string tree_text(const StateDict& state, const Place& place) {
  StatePath path;
  return encode_dict(state, path, place).dump(1) + "\n";
}

Tree::Tree(const std::string& text, const std::string& where) : json_(std::make_unique<Json>()), where_(where) {
  json_->root = Node::parse(text, nullptr, false);
  LEVIN_CHECK(json_->root.is_object(), "[checkpoint] \"", where, "\": state.json is damaged");
}
Tree::~Tree() = default;
Tree::Tree(Tree&&) noexcept = default;

std::vector<std::string> Tree::keys() const {
  std::vector<std::string> keys;
  for (const auto& [name, value] : json_->root.items()) keys.push_back(name.starts_with("$$") ? name.substr(1) : name);
  return keys;
}

bool Tree::is_dict(std::string_view key) const {
  const auto& node = json_->at(key);
  return node.is_object() && tag_of(node).empty();
}

StateValue Tree::decode(std::string_view key, const std::function<at::Tensor(const std::string&)>& read) const {
  return decode_at(key, [&](const StatePath&, const std::string& id) { return read(id); });
}

StateValue Tree::decode_at(std::string_view key, const ReadAt& read) const {
  try {
    StatePath path{std::string(key)};
    return decode_node(json_->at(key), path, read);
  } catch (const Node::exception& error) {
    throw Error(concat("[checkpoint] \"", where_, "\": state.json is damaged (", error.what(), ")"));
  }
}

std::vector<std::pair<std::string, std::string>> Tree::children(std::string_view key) const {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [name, value] : json_->at(key).items()) {
    const bool tensor = tag_of(value) == kTensor && value.begin()->is_string();
    found.emplace_back(name.starts_with("$$") ? name.substr(1) : name, tensor ? value.begin()->get<std::string>() : "");
  }
  return found;
}

}  // namespace levin::detail
