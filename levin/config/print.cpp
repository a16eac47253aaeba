// A config for people: as YAML with comments, and as the help of a command line.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "levin/config/config.h"
#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::config {
namespace {

constexpr size_t kWidth = 80;
constexpr size_t kHelpColumn = 34;

std::string spaces(int count) {
  return std::string(static_cast<size_t>(count), ' ');
}

/// `key: value  # help [who set it]`
std::string yaml_line(const std::string& start, const Node& value, const std::string& help, const Origin& origin) {
  auto line = start + ": " + value.to_string();
  std::string comment = help;
  if (!origin.where.empty()) comment += fmt::format("{}[{}]", comment.empty() ? "" : " ", origin.where);
  std::replace(comment.begin(), comment.end(), '\n', ' ');
  if (!comment.empty()) line += "  # " + comment;
  return line + "\n";
}

std::string value_text(const Field& field) {
  if (!field.write) return {};
  const auto node = field.write();
  if (node.is_null() || (node.is_list() && node.items.empty())) return {};
  return node.is_text() ? node.text : node.to_string();
}

std::string field_help(const Field& field, const std::string& dashes) {
  const bool shows_words = !field.words.empty() && !field.classes;
  auto text = field.help;
  if (shows_words) text += fmt::format(" ({})", join(field.words));
  const auto value = value_text(field);
  if (!value.empty()) text += fmt::format(" [{}]", value);
  return detail::help_line(dashes + field.name + " " + field.type, text);
}

std::string class_help(const Field& field, const Class& one, const AnyOptions& options) {
  auto text = fmt::format("{}: {}\n", one.name, one.help);
  for (auto option : options.fields()) {
    option.name = field.name + "." + option.name;
    text += field_help(option, "--");
  }
  return text;
}

bool is_in(const Field& field, const Group& group) {
  return field.name == group.name || field.name.starts_with(group.name + ".");
}

}  // namespace

namespace detail {

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const auto word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string help_line(std::string_view left, std::string_view text) {
  auto out = "  " + std::string(left);
  bool fits = out.size() + 2 <= kHelpColumn;
  for (const auto& line : wrap(text, kWidth - kHelpColumn)) {
    if (!fits) out += '\n';
    out.append(fits ? kHelpColumn - out.size() : kHelpColumn, ' ').append(line);
    fits = false;
  }
  return out + "\n";
}

}  // namespace detail

void Config::write_classes(std::string& out, size_t index, int indent) const {
  const auto& field = fields_[index];
  const auto key =
      spaces(indent) + field.name.substr(field.name.rfind('.') == std::string::npos ? 0 : field.name.rfind('.') + 1);
  const auto& chosen = *field.chosen;
  if (chosen.empty()) {
    out += yaml_line(key, field.takes_many ? Node::of_list({}) : Node(), field.help, origins_[index]);
    return;
  }
  out += key + ":  # " + field.help + "\n";
  for (const auto& one : chosen) {
    const auto inner = spaces(indent + (field.takes_many ? 4 : 2));
    const auto first = field.takes_many ? spaces(indent + 2) + "- " : inner;
    out += yaml_line(first + "class", Node::of_text(one.name), "", one.origin);
    // Names of deeper options keep their dots: they are read back the same.
    for (const auto& option : one.options.fields()) {
      Origin origin;
      for (const auto& [name, who] : one.said)
        if (name == option.name) origin = who;
      out += yaml_line(inner + option.name, option.write(), option.help, origin);
    }
  }
}

std::string Config::to_yaml(const std::string& header) const {
  std::string out;
  for (const auto& line : detail::wrap(header, kWidth - 2)) out += "# " + line + "\n";
  std::vector<std::string> open;  // the groups that the last line lies in
  for (size_t i = 0; i < fields_.size(); ++i) {
    const auto& field = fields_[i];
    std::vector<std::string> path;
    for (size_t begin = 0, dot; (dot = field.name.find('.', begin)) != std::string::npos; begin = dot + 1)
      path.push_back(field.name.substr(begin, dot - begin));
    size_t shared = 0;
    while (shared < std::min(open.size(), path.size()) && open[shared] == path[shared]) ++shared;
    for (size_t level = shared; level < path.size(); ++level)
      out += spaces(static_cast<int>(2 * level)) + path[level] + ":\n";
    open = path;
    const auto indent = static_cast<int>(2 * path.size());
    if (field.classes) {
      write_classes(out, i, indent);
      continue;
    }
    const auto last = field.name.substr(field.name.rfind('.') == std::string::npos ? 0 : field.name.rfind('.') + 1);
    out += yaml_line(spaces(indent) + last, field.write(), field.help, origins_[i]);
  }
  return out;
}

Node Config::values(std::string_view group) const {
  auto out = Node::of_map();
  const auto prefix = std::string(group) + ".";
  for (const auto& field : fields_) {
    if (!field.name.starts_with(prefix) && field.name != group) continue;
    if (!field.classes) {
      out[field.name.substr(field.name == group ? 0 : prefix.size())] = field.write();
      continue;
    }
    for (const auto& one : *field.chosen) {
      out["class"] = Node::of_text(one.name, true);
      for (const auto& option : one.options.fields()) out[option.name] = option.write();
    }
  }
  return out;
}

std::string Config::help(std::string_view about) const {
  std::string out;
  const auto add_classes = [&](const Field& field) {
    out += field_help(field, "--");
    for (const auto& one : *field.classes) out += detail::help_line("  " + one.name, one.help);
    for (const auto& one : *field.chosen)
      for (const auto& entry : *field.classes)
        if (entry.name == one.name) out += "\n" + class_help(field, entry, one.options);
  };
  const auto add_group = [&](const Group& group) {
    std::string title = group.title;
    bool any = false;
    for (const auto& field : fields_) {
      if (!is_in(field, group)) continue;
      if (!std::exchange(any, true)) out += (out.empty() ? "" : "\n") + title + "\n";
      if (field.classes)
        add_classes(field);
      else
        out += field_help(field, "--");
    }
  };
  if (about.empty()) {
    bool any = false;
    for (const auto& field : fields_) {
      if (field.is_hidden ||
          std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) { return is_in(field, g); }))
        continue;
      if (!std::exchange(any, true)) out += "Flags:\n";
      out += field_help(field, "--");
    }
    for (const auto& group : groups_) add_group(group);
    return out;
  }
  std::vector<std::string> known;
  std::string word(about);
  while (word.starts_with('-')) word.erase(0, 1);
  std::replace(word.begin(), word.end(), '-', '_');
  for (const auto& group : groups_) {
    if (group.name == word) add_group(group);
    known.push_back(group.name);
  }
  if (!out.empty()) return out;
  for (const auto& field : fields_) {
    if (field.name == word || field.name.ends_with("." + word))
      field.classes ? add_classes(field) : void(out += field_help(field, "--"));
    known.push_back(field.name);
    if (!field.classes) continue;
    const auto prefix = field.name + ".";
    const auto* one = find_class(*field.classes, word.starts_with(prefix) ? word.substr(prefix.size()) : word);
    if (one) out += class_help(field, *one, one->options());
    known.insert(known.end(), field.words.begin(), field.words.end());
  }
  if (out.empty()) fail_unknown_key("help about", word, {}, known);
  return out;
}

}  // namespace levin::config
