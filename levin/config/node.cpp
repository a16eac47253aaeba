#include "levin/config/node.h"

#include <algorithm>

#include "levin/config/yaml.h"

namespace levin::config {

Node Node::of_text(std::string text, bool quoted) {
  Node node;
  node.kind = Kind::kText;
  node.text = std::move(text);
  node.is_quoted = quoted;
  return node;
}

Node Node::of_list(std::vector<Node> items) {
  Node node;
  node.kind = Kind::kList;
  node.items = std::move(items);
  return node;
}

Node Node::of_map(std::vector<Entry> entries) {
  Node node;
  node.kind = Kind::kMap;
  node.entries = std::move(entries);
  return node;
}

const Node* Node::find(std::string_view name) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.first == name; });
  return found == entries.end() ? nullptr : &found->second;
}

Node* Node::find(std::string_view name) {
  return const_cast<Node*>(std::as_const(*this).find(name));
}

Node& Node::operator[](std::string_view name) {
  if (auto* found = find(name)) return *found;
  kind = Kind::kMap;
  return entries.emplace_back(std::string(name), Node()).second;
}

void Node::erase(std::string_view name) {
  std::erase_if(entries, [&](const Entry& e) { return e.first == name; });
}

void Node::set_origin(const Origin& where) {
  origin = where;
  for (auto& item : items) item.set_origin(where);
  for (auto& [name, value] : entries) value.set_origin(where);
}

std::string Node::to_string() const {
  std::string line;
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kText:
      return yaml_scalar(text, is_quoted);
    case Kind::kList:
      for (const auto& item : items) line += (line.empty() ? "" : ", ") + item.to_string();
      return "[" + line + "]";
    case Kind::kMap:
      for (const auto& [name, value] : entries)
        line += (line.empty() ? "" : ", ") + yaml_scalar(name) + ": " + value.to_string();
      return "{" + line + "}";
  }
  return line;
}

}  // namespace levin::config
