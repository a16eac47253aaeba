#include "levin/loggers/yaml.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/loggers/numbers.h"

namespace levin::detail {
namespace {

// YAML reads a name up to 1024 characters long; escapes and quotes need room.
constexpr size_t kLongestPlainKey = 800;

// YAML 1.1 wants a point in what has an exponent.
std::string yaml_float(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  auto text = python_float(value);
  if (const auto e = text.find('e'); e != std::string::npos && text.find('.') == std::string::npos)
    text.insert(e, ".0");
  return text;
}

bool is_reserved(std::string_view text) {
  std::string lower(text);
  for (auto& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto* word : {"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
    if (lower == word) return true;
  return false;
}

// Starts with a letter and has nothing that could mean something else.
bool is_plain(std::string_view text) {
  if (text.empty() || is_reserved(text)) return false;
  if (!std::isalpha(static_cast<unsigned char>(text.front())) && text.front() != '_' && text.front() != '/')
    return false;
  if (text.back() == ' ') return false;
  return std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-' || c == ' ' || c == '+' || c == '(' ||
           c == ')' || c == '=';
  });
}

// The character at `at`, which moves behind it; U+FFFD for what is not UTF-8.
uint32_t next_character(std::string_view text, size_t& at) {
  constexpr uint32_t kBroken = 0xfffd;
  const auto byte = static_cast<uint8_t>(text[at++]);
  if (byte < 0x80) return byte;
  const int more = byte >= 0xf0 && byte < 0xf5 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc2 ? 1 : 0;
  if (more == 0 || byte >= 0xf5) return kBroken;
  uint32_t value = byte & (0x3fu >> more);
  const auto start = at;
  for (int i = 0; i < more; ++i) {
    if (at >= text.size() || (static_cast<uint8_t>(text[at]) & 0xc0) != 0x80) {
      at = start;
      return kBroken;
    }
    value = value << 6 | (static_cast<uint8_t>(text[at++]) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  return value < kLeast[more] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000) ? kBroken : value;
}

// What a reader takes for an end of line or refuses must be escaped.
bool needs_escape(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff;
}

std::string quoted(std::string_view text) {
  std::string plain = "'", escaped = "\"";
  bool escape = false;
  for (size_t at = 0; at < text.size();) {
    const auto start = at;
    const auto c = next_character(text, at);
    const auto bytes = text.substr(start, at - start);
    plain += bytes;
    if (c == '\'') plain += '\'';
    if (c == '\n')
      escaped += "\\n";
    else if (c == '"' || c == '\\')
      escaped.append("\\").append(bytes);
    else if (needs_escape(c))
      escaped += c < 0x100 ? fmt::format("\\x{:02X}", c) : fmt::format("\\u{:04X}", c);
    else if (c == 0xfffd)
      escaped += "\\uFFFD";
    else
      escaped += bytes;
    escape = escape || needs_escape(c) || c == 0xfffd;
  }
  return escape ? escaped + "\"" : plain + "'";
}

std::string scalar(std::string_view text) {
  return is_plain(text) ? std::string(text) : quoted(text);
}

void append_value(std::string& out, const StateValue& value, size_t indent);

void append_dict(std::string& out, const StateDict& dict, size_t indent) {
  std::vector<const StateDict::Item*> items;
  for (const auto& item : dict) items.push_back(&item);
  std::ranges::sort(items, {}, [](const auto* item) { return item->first; });
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(indent, ' ');
    const auto key = scalar(items[i]->first);
    out += key.size() < kLongestPlainKey ? key + ":" : "? " + key + "\n" + std::string(indent, ' ') + ":";
    const auto& value = items[i]->second;
    if (value.is_dict() && !value.to_dict().empty()) {
      out.append("\n").append(indent + 2, ' ');
      append_value(out, value, indent + 2);
    } else if (value.is_list() && !value.to_list().empty()) {
      out.append("\n").append(indent, ' ');
      append_value(out, value, indent);
    } else {
      out += ' ';
      append_value(out, value, indent);
    }
  }
}

// Where a nested dict or list begins, its first line has been indented already.
void append_value(std::string& out, const StateValue& value, size_t indent) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          out += "null\n";
        } else if constexpr (std::is_same_v<T, bool>) {
          out += v ? "true\n" : "false\n";
        } else if constexpr (std::is_same_v<T, int64_t>) {
          out += std::to_string(v) + "\n";
        } else if constexpr (std::is_same_v<T, double>) {
          out += yaml_float(v) + "\n";
        } else if constexpr (std::is_same_v<T, std::string>) {
          out += scalar(v) + "\n";
        } else if constexpr (std::is_same_v<T, Tensor>) {
          out +=
              scalar(v.defined() ? concat("tensor ", c10::toString(v.scalar_type()), " ", v.sizes()) : "tensor") + "\n";
        } else if constexpr (std::is_same_v<T, StateList>) {
          if (v.empty()) out += "[]\n";
          for (size_t i = 0; i < v.size(); ++i) {
            if (i > 0) out.append(indent, ' ');
            out += "- ";
            append_value(out, v[i], indent + 2);
          }
        } else if (v.empty()) {
          out += "{}\n";
        } else {
          append_dict(out, v, indent);
        }
      },
      value.variant());
}

}  // namespace

std::string to_yaml(const StateDict& values) {
  std::string out;
  append_value(out, StateValue(values), 0);
  return out;
}

}  // namespace levin::detail
