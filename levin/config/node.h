#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::config {

/// Who said a value. Later layers win over earlier ones.
enum class Layer { kDefault, kRecipe, kFile, kEnvironment, kFlag };

struct Origin {
  Layer layer = Layer::kDefault;
  /// "run.yaml:3", "--trainer.max_epochs", "LEVIN_TRAINER_MAX_EPOCHS"; empty for a default.
  std::string where = {};
  /// Layers of one kind count up: the second --config file stands above the first.
  int order = 0;

  /// Whether this was said before `other`, in a layer below it.
  bool is_below(const Origin& other) const { return layer != other.layer ? layer < other.layer : order < other.order; }
};

/// A value as it was written, before anything knows its type: nothing, a text, a list, or entries under their names.
/// The order of entries is kept.
struct Node {
  enum class Kind { kNull, kText, kList, kMap };
  using Entry = std::pair<std::string, Node>;

  Kind kind = Kind::kNull;
  std::string text = {};
  /// Written in quotes: "null" and "3" are texts then, and nothing else.
  bool is_quoted = false;
  std::vector<Node> items = {};
  std::vector<Entry> entries = {};
  Origin origin = {};

  static Node of_text(std::string text, bool quoted = false);
  static Node of_list(std::vector<Node> items);
  static Node of_map(std::vector<Entry> entries = {});

  bool is_null() const { return kind == Kind::kNull; }
  bool is_text() const { return kind == Kind::kText; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }

  const Node* find(std::string_view name) const;
  Node* find(std::string_view name);
  /// The entry of that name, added when there is none.
  Node& operator[](std::string_view name);
  void erase(std::string_view name);

  /// The same origin for this and everything below.
  void set_origin(const Origin& where);
  /// One line, as a flag or a flow of YAML would have it: `null`, `0.1`, `[1, 2]`, `{a: 1}`.
  std::string to_string() const;
};

}  // namespace levin::config
