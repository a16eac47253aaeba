#include "levin/config/config.h"

#include <algorithm>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::config {
namespace {

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// A flag or a variable as the tree of a file would have it: null, a flow of YAML, or a text.
Node node_of_words(const Field& field, const std::string& text, const Origin& origin, const std::string& operation) {
  Node node;
  if (text == "null" || text == "~")
    node = Node();
  else if (!field.is_plain_text && (text.starts_with('[') || text.starts_with('{')))
    node = parse_yaml(text, origin.where, operation);
  else
    node = Node::of_text(text);
  node.set_origin(origin);
  return node;
}

/// A class as a map with `class` and its options: from a name, or from the form with class_path and init_args.
Node normalized(const Field& field, const Node& node) {
  Node out = Node::of_map();
  out.origin = node.origin;
  const std::function<void(const Node&)> add = [&](const Node& map) {
    for (const auto& [name, value] : map.entries) {
      if (name == "init_args")
        add(value);
      else
        out[name == "class_path" ? "class" : name] = value;
    }
  };
  if (node.is_text())
    out["class"] = node;
  else
    add(node);
  if (auto* name = out.find("class"); name && name->text.find('.') != std::string::npos)
    name->text.erase(0, name->text.rfind('.') + 1);
  if (auto* name = out.find("class"))
    if (const auto* known = find_class(*field.classes, name->text)) name->text = known->name;
  return out;
}

}  // namespace

Config::Config(std::string operation, std::vector<Field> fields, std::vector<Group> groups)
    : operation_(std::move(operation)),
      fields_(std::move(fields)),
      groups_(std::move(groups)),
      origins_(fields_.size()),
      said_(fields_.size()) {}

size_t Config::index_of(std::string_view name) const {
  for (size_t i = 0; i < fields_.size(); ++i)
    if (fields_[i].name == name ||
        std::find(fields_[i].aliases.begin(), fields_[i].aliases.end(), name) != fields_[i].aliases.end())
      return i;
  return fields_.size();
}

const Origin& Config::origin(std::string_view name) const {
  return origins_.at(index_of(name));
}

void Config::fail_value(const Field& field, const std::string& key, const Node& node,
                        const std::string& problem) const {
  const auto& where = node.origin;
  const bool from_flag = where.layer == Layer::kFlag;
  const auto value = node.is_text() ? fmt::format(" \"{}\"", node.text) : " " + node.to_string();
  const auto hint = field.words.empty() ? std::string() : fmt::format(" (allowed: {})", join(field.words));
  throw Error(fmt::format("[{}] {}{}{}{} {}", operation_, where.where,
                          from_flag             ? ""
                          : where.where.empty() ? ""
                                                : ": ",
                          from_flag ? "" : key, value, problem) +
              (problem.find("known:") == std::string::npos ? hint : ""));
}

void Config::fail_unknown_key(const std::string& what, const std::string& key, const Origin& origin,
                              const std::vector<std::string>& known) const {
  auto nearest = nearest_word(key, known);
  // "--max_epochs" for "--trainer.max_epochs": too far by letters, but the last part says it.
  const auto last = key.substr(key.rfind('.') == std::string::npos ? 0 : key.rfind('.') + 1);
  for (const auto& name : known)
    if (nearest.empty() && name.ends_with("." + last)) nearest = name;
  const auto dashes = what == "flag" ? "--" : "";
  std::string line = fmt::format("[{}] ", operation_);
  if (what != "flag" && !origin.where.empty()) line += origin.where + ": ";
  line += fmt::format("{} \"{}{}\" is not known", what, dashes, key);
  if (!nearest.empty()) line += fmt::format("; did you mean \"{}{}\"?", dashes, nearest);
  if (known.size() <= 16)
    line += known.empty() ? " (there are none here)" : fmt::format(" (known: {})", join(known));
  else
    line += " (--help lists all)";
  throw Error(line);
}

void Config::read_value(const Field& field, const std::string& key, const Node& node) const {
  if (!field.words.empty() && !field.words_are_hints && node.is_text() &&
      std::find(field.words.begin(), field.words.end(), node.text) == field.words.end()) {
    const auto nearest = nearest_word(node.text, field.words);
    fail_value(field, key, node,
               "is not known" + (nearest.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", nearest)) +
                   fmt::format(" (known: {})", join(field.words)));
  }
  try {
    field.read(node);
  } catch (const BadValue& error) {
    fail_value(field, key, node, error.what());
  } catch (const Error& error) {
    // The type's own refusal: the same words under our place.
    const std::string line = error.what();
    const auto end = line.find("] ");
    fail_value(field, key, node, "is refused: " + (end == std::string::npos ? line : line.substr(end + 2)));
  }
}

void Config::add_recipe(std::string_view yaml, const std::string& name) {
  auto tree = parse_yaml(yaml, name, operation_);
  const std::function<void(Node&)> mark = [&](Node& node) {
    node.origin.layer = Layer::kRecipe;
    for (auto& item : node.items) mark(item);
    for (auto& [key, value] : node.entries) mark(value);
  };
  mark(tree);
  if (!tree.is_null()) add_tree(tree, "");
}

void Config::add_file(const std::filesystem::path& path) {
  auto tree = read_yaml(path, operation_);
  ++files_;
  const std::function<void(Node&)> mark = [&](Node& node) {
    node.origin.order = files_;
    for (auto& item : node.items) mark(item);
    for (auto& [key, value] : node.entries) mark(value);
  };
  mark(tree);
  if (!tree.is_null()) add_tree(tree, "");
}

void Config::add_tree(const Node& tree, const std::string& path) {
  LEVIN_CHECK(tree.is_map(), "[", operation_, "] ", tree.origin.where, ": ",
              path.empty() ? "a config is a map of names (trainer: ..., model: ...)"
                           : "\"" + path + "\" needs names and values below it",
              ", not ", tree.to_string().substr(0, 60));
  for (const auto& [key, value] : tree.entries) {
    const auto name = path.empty() ? key : path + "." + key;
    const auto prefix = name + ".";
    if (const auto index = index_of(name); index < fields_.size()) {
      assign(index, value);
      continue;
    }
    if (std::any_of(fields_.begin(), fields_.end(), [&](const Field& f) { return f.name.starts_with(prefix); })) {
      if (!value.is_null()) add_tree(value, name);
      continue;
    }
    // `model: {}` of a model without options is no mistake.
    if (std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) { return g.name == name; }) &&
        (value.is_null() || (value.is_map() && value.entries.empty())))
      continue;
    std::vector<std::string> known;
    const auto parent = path.empty() ? "" : path + ".";
    for (const auto& field : fields_) {
      if (!field.name.starts_with(parent)) continue;
      const auto rest = field.name.substr(parent.size());
      const auto word = rest.substr(0, rest.find('.'));
      if (std::find(known.begin(), known.end(), word) == known.end()) known.push_back(word);
    }
    fail_unknown_key(path.empty() ? "key" : "key of \"" + path + "\"", key, value.origin, known);
  }
}

void Config::assign(size_t index, const Node& node) {
  if (fields_[index].classes)
    assign_class(index, node);
  else
    read_value(fields_[index], fields_[index].name, node);
  origins_[index] = node.origin;
}

void Config::assign_class(size_t index, const Node& node, bool append) {
  const auto& field = fields_[index];
  auto& said = said_[index];
  if (node.is_null()) {
    said = node;
    return;
  }
  if (!field.takes_many) {
    if (node.is_list()) fail_value(field, field.name, node, "is a list where one is needed");
    const auto next = normalized(field, node);
    const auto* name = next.find("class");
    const auto* before = said.find("class");
    // Options belong to the class they were said for: those of lower layers go with it.
    if (name && (!before || before->text != name->text))
      std::erase_if(said.entries, [&](const Node::Entry& e) { return e.second.origin.is_below(name->origin); });
    for (const auto& [key, value] : next.entries) said[key] = value;
    return;
  }
  if (!append || !said.is_list()) said = Node::of_list({});
  const auto items = node.is_map() ? std::vector<Node>{node} : detail::read_items(node);
  for (const auto& item : items) said.items.push_back(normalized(field, item));
  said.origin = node.origin;
}

void Config::assign_option(size_t index, const std::string& option, Node node) {
  const auto& field = fields_[index];
  auto& said = said_[index];
  if (!field.takes_many) {
    said[option] = std::move(node);
    return;
  }
  LEVIN_CHECK(said.is_list() && !said.items.empty(), "[", operation_, "] ", node.origin.where, ": no --", field.name,
              " NAME stands before it; the option is for the last one named");
  said.items.back()[option] = std::move(node);
}

void Config::add_environment(const std::string& prefix, const std::string& group,
                             std::span<const std::string> environment) {
  const auto variable_of = [&](const Field& field) {
    auto name = field.name.substr(group.size() + 1);
    for (auto& c : name) c = c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return prefix + name;
  };
  std::vector<std::string> known;
  std::vector<size_t> indices;
  for (size_t i = 0; i < fields_.size(); ++i) {
    if (!fields_[i].name.starts_with(group + ".")) continue;
    known.push_back(variable_of(fields_[i]));
    indices.push_back(i);
  }
  for (const auto& word : environment) {
    if (!word.starts_with(prefix)) continue;
    const auto equals = std::min(word.find('='), word.size());
    const auto name = word.substr(0, equals);
    const Origin origin{.layer = Layer::kEnvironment, .where = name};
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) fail_unknown_key("variable", name, {}, known);
    const auto index = indices[static_cast<size_t>(found - known.begin())];
    const auto value = word.substr(std::min(equals + 1, word.size()));
    assign(index, node_of_words(fields_[index], value, origin, operation_));
  }
}

Asked Config::add_arguments(const std::vector<std::string>& words, const std::function<void()>& before_flags) {
  Asked asked;
  struct Flag {
    std::string word, name;
    std::optional<std::string> value;
  };
  std::vector<Flag> flags;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto& word = words[i];
    const bool has_next = i + 1 < words.size() && !words[i + 1].starts_with("--");
    if (word == "-h" || word == "--help") {
      asked.help = true;
      if (has_next && words[i + 1] != "-h") asked.help_about = words[++i];
      continue;
    }
    const bool is_config = word == "-c" || word == "--config";
    LEVIN_CHECK(word.starts_with("--") || is_config, "[", operation_, "] \"", word,
                "\" is not expected here; flags are --name value (--help lists them)");
    const auto equals = word.find('=');
    const auto name =
        underscored(is_config ? "config" : word.substr(2, equals == std::string::npos ? equals : equals - 2));
    if (name == "print_config") {
      asked.print_config = true;
      continue;
    }
    std::optional<std::string> value;
    if (equals != std::string::npos)
      value = word.substr(equals + 1);
    else if (has_next)
      value = words[++i];
    if (name != "config") {
      flags.push_back({word.substr(0, equals), name, value});
      continue;
    }
    LEVIN_CHECK(value && !value->empty(), "[", operation_, "] --config needs the path of a YAML file");
    add_file(*value);
  }
  if (before_flags) before_flags();
  for (const auto& flag : flags) add_flag(flag.word, flag.name, flag.value ? &*flag.value : nullptr);
  return asked;
}

void Config::add_flag(const std::string& word, std::string name, const std::string* value) {
  const Origin origin{.layer = Layer::kFlag, .where = word};
  bool append = false;
  if (name.ends_with('+')) {
    append = true;
    name.pop_back();
  }
  auto index = index_of(name);
  std::string option;
  for (size_t i = 0; index == fields_.size() && i < fields_.size(); ++i)
    if (fields_[i].classes && name.starts_with(fields_[i].name + ".")) {
      index = i;
      option = name.substr(fields_[i].name.size() + 1);
    }
  if (index == fields_.size()) {
    std::vector<std::string> known{"config", "print_config", "help"};
    for (const auto& field : fields_) known.push_back(field.name);
    fail_unknown_key("flag", name, origin, known);
  }
  const auto& field = fields_[index];
  LEVIN_CHECK(!append || field.takes_many, "[", operation_, "] ", word, " adds to a list, and \"", name,
              "\" is none; write --", name, " VALUE");
  LEVIN_CHECK(value || field.is_bool || !option.empty(), "[", operation_, "] ", word, " needs a value",
              field.words.empty() ? "" : " (" + join(field.words) + ")");
  const auto text = value ? *value : std::string("true");
  const auto node = node_of_words(field, text, origin, operation_);
  if (!option.empty()) {
    assign_option(index, option, node);
    if (origins_[index].is_below(origin)) origins_[index] = origin;
  } else if (field.takes_many) {
    // The first of the flags starts the list again; those that follow it continue with it.
    assign_class(index, node, append || origins_[index].layer == Layer::kFlag);
    origins_[index] = origin;
  } else {
    assign(index, node);
  }
}

Chosen Config::read_one(const Field& field, const Node& node) const {
  const auto* name = node.find("class");
  if (!name) {
    const auto& first = node.entries.empty() ? node.origin : node.entries.front().second.origin;
    throw Error(fmt::format("[{}] {}{} has options but no class; name one of: {}", operation_,
                            first.where.empty() ? "" : first.where + ": ", field.name, join(field.words)));
  }
  const auto* found = find_class(*field.classes, name->text);
  if (!found) {
    const auto nearest = nearest_word(name->text, field.words);
    fail_value(field, field.name, *name,
               "is not known" + (nearest.empty() ? std::string() : fmt::format("; did you mean \"{}\"?", nearest)) +
                   fmt::format(" (known: {})", join(field.words)));
  }
  Chosen chosen{.name = found->name, .options = found->options(), .origin = name->origin};
  std::vector<std::string> known;
  for (const auto& option : chosen.options.fields()) known.push_back(option.name);
  const std::function<void(const Node&, const std::string&)> read = [&](const Node& map, const std::string& prefix) {
    for (const auto& [last, value] : map.entries) {
      const auto key = prefix + last;
      if (key == "class") continue;
      const auto at = std::find(known.begin(), known.end(), key);
      if (at != known.end()) {
        read_value(chosen.options.fields()[static_cast<size_t>(at - known.begin())], field.name + "." + key, value);
        chosen.said.emplace_back(key, value.origin);
      } else if (value.is_map() && std::any_of(known.begin(), known.end(),
                                               [&](const std::string& one) { return one.starts_with(key + "."); })) {
        read(value, key + ".");
      } else {
        fail_unknown_key("option of " + chosen.name, key, value.origin, known);
      }
    }
  };
  read(node, "");
  return chosen;
}

std::vector<Chosen> Config::read_chosen(const Field& field, const Node& node) const {
  std::vector<Chosen> all;
  for (const auto& item : node.items) all.push_back(read_one(field, item));
  if (node.is_map()) all.push_back(read_one(field, node));
  return all;
}

void Config::finish() {
  for (size_t i = 0; i < fields_.size(); ++i)
    if (fields_[i].classes) *fields_[i].chosen = read_chosen(fields_[i], said_[i]);
}

std::vector<std::string> environment_words() {
  std::vector<std::string> words;
  for (char** word = environ; word && *word; ++word) words.emplace_back(*word);
  return words;
}

}  // namespace levin::config
