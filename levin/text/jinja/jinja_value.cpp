#include <algorithm>
#include <charconv>
#include <cmath>

#include "levin/core/error.h"
#include "levin/text/jinja/jinja.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::jinja {

Value Value::tuple(List list) {
  Value value(std::move(list));
  value.is_tuple_ = true;
  return value;
}

Value Value::function(Function function) {
  Value value;
  value.data_ = std::make_shared<const Function>(std::move(function));
  return value;
}

Value Value::name_space(Dict values) {
  Value value;
  value.data_ = std::make_shared<Dict>(std::move(values));
  return value;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return number() != 0;
  if (is_number()) return integer() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().empty();
  return true;
}

bool Value::equals(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_float() || other.is_float()) return number() == other.number();
    return integer() == other.integer();
  }
  if (data_.index() != other.data_.index() || is_tuple_ != other.is_tuple_) return false;
  if (is_string()) return string() == other.string();
  if (is_list()) {
    return std::equal(list().begin(), list().end(), other.list().begin(), other.list().end(),
                      [](const Value& a, const Value& b) { return a.equals(b); });
  }
  if (is_dict()) {
    if (dict().size() != other.dict().size()) return false;
    return std::all_of(dict().begin(), dict().end(), [&](const auto& item) {
      const auto* found = find(other.dict(), item.first);
      return found && found->equals(item.second);
    });
  }
  if (is_namespace()) return &name_space() == &other.name_space();
  if (is_function()) return &function() == &other.function();
  return true;  // none, undefined
}

const char* Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return "list";
  if (is_dict()) return "dict";
  return is_namespace() ? "Namespace" : "function";
}

const Value* Value::find(const Dict& dict, const Value& key) {
  for (const auto& [name, value] : dict) {
    if (name.equals(key)) return &value;
  }
  return nullptr;
}

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Arguments::get(size_t position, std::string_view name, Value otherwise) const {
  const auto* found = find(position, name);
  return found ? *found : otherwise;
}

namespace {

// Python's shortest form: 1.0, 1e-05, 1e+16.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::abs(value);
  const bool plain = value == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

void repr_string(const std::string& text, std::string& out) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  out += quote;
  for (size_t at = 0; at < text.size();) {
    const auto [point, bytes] = decode_utf8(text, at);
    const auto part = text.substr(at, bytes);
    at += bytes;
    if (point == static_cast<char32_t>(quote) || point == U'\\')
      out += "\\" + part;
    else if (point == U'\n')
      out += "\\n";
    else if (point == U'\r')
      out += "\\r";
    else if (point == U'\t')
      out += "\\t";
    else if (point < 32 || point == 127) {
      constexpr char digits[] = "0123456789abcdef";
      out += std::string("\\x") + digits[point >> 4] + digits[point & 15];
    } else
      out += part;
  }
  out += quote;
}

void repr(const Value& value, std::string& out, int depth) {
  LEVIN_CHECK(depth < 100, "a value is nested too deeply");
  if (value.is_string()) return repr_string(value.string(), out);
  if (value.is_undefined()) {
    out += "Undefined";
    return;
  }
  if (value.is_list()) {
    out += value.is_tuple() ? '(' : '[';
    for (size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) out += ", ";
      repr(value.list()[i], out, depth + 1);
    }
    if (value.is_tuple() && value.list().size() == 1) out += ',';
    out += value.is_tuple() ? ')' : ']';
    return;
  }
  if (value.is_dict()) {
    out += '{';
    for (size_t i = 0; i < value.dict().size(); ++i) {
      if (i > 0) out += ", ";
      repr(value.dict()[i].first, out, depth + 1);
      out += ": ";
      repr(value.dict()[i].second, out, depth + 1);
    }
    out += '}';
    return;
  }
  out += to_text(value);
}

void json_string(const std::string& text, bool ascii, std::string& out) {
  constexpr char digits[] = "0123456789abcdef";
  const auto unit = [&](uint32_t value) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += digits[value >> shift & 15];
  };
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const auto [point, bytes] = decode_utf8(text, at);
    switch (point) {
      case U'"':
        out += "\\\"";
        break;
      case U'\\':
        out += "\\\\";
        break;
      case U'\n':
        out += "\\n";
        break;
      case U'\r':
        out += "\\r";
        break;
      case U'\t':
        out += "\\t";
        break;
      case U'\b':
        out += "\\b";
        break;
      case U'\f':
        out += "\\f";
        break;
      default:
        if (point < 32 || (ascii && point == 127) || (ascii && point > 127)) {
          if (point >= 0x10000) {
            unit(0xd800 + ((point - 0x10000) >> 10));
            unit(0xdc00 + ((point - 0x10000) & 0x3ff));
          } else if (point == 127) {
            out += '\x7f';
          } else {
            unit(point);
          }
        } else {
          out.append(text, at, bytes);
        }
    }
    at += bytes;
  }
  out += '"';
}

void json(const Value& value, const JsonStyle& style, int depth, std::string& out) {
  LEVIN_CHECK(depth < 100, "a value is nested too deeply for tojson");
  const auto line = [&](int level) {
    if (style.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(style.indent) * static_cast<size_t>(level), ' ');
  };
  if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.truth() ? "true" : "false";
  } else if (value.is_float()) {
    const auto text = float_text(value.number());
    out += text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  } else if (value.is_int()) {
    out += std::to_string(value.integer());
  } else if (value.is_string()) {
    json_string(value.string(), style.ascii, out);
  } else if (value.is_list()) {
    out += '[';
    for (size_t i = 0; i < value.list().size(); ++i) {
      if (i > 0) out += style.comma;
      line(depth + 1);
      json(value.list()[i], style, depth + 1, out);
    }
    if (!value.list().empty()) line(depth);
    out += ']';
  } else if (value.is_dict()) {
    std::vector<std::pair<std::string, const Value*>> items;
    for (const auto& [key, item] : value.dict()) {
      LEVIN_CHECK(key.is_string() || key.is_number() || key.is_none(), "a key of a dict cannot be written as JSON");
      auto name = key.is_string() ? key.string() : std::string();
      if (!key.is_string()) json(key, style, depth + 1, name);
      items.emplace_back(std::move(name), &item);
    }
    if (style.sorted)
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style.comma;
      line(depth + 1);
      json_string(items[i].first, style.ascii, out);
      out += style.colon;
      json(*items[i].second, style, depth + 1, out);
    }
    if (!items.empty()) line(depth);
    out += '}';
  } else {
    LEVIN_CHECK(false, "a value of the kind ", value.type_name(), " cannot be written as JSON");
  }
}

}  // namespace

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.truth() ? "True" : "False";
  if (value.is_int()) return std::to_string(value.integer());
  if (value.is_float()) return float_text(value.number());
  if (value.is_string()) return value.string();
  if (value.is_list() || value.is_dict()) return to_repr(value);
  return value.is_namespace() ? "<Namespace>" : "<function>";
}

std::string to_repr(const Value& value) {
  std::string out;
  repr(value, out, 0);
  return out;
}

std::string to_json(const Value& value, const JsonStyle& style) {
  std::string out;
  json(value, style, 0, out);
  return out;
}

int order_of(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    const double a = left.number(), b = right.number();
    return a < b ? -1 : a > b ? 1 : 0;
  }
  if (left.is_string() && right.is_string()) {
    const auto order = left.string().compare(right.string());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (left.is_list() && right.is_list()) {
    for (size_t i = 0; i < left.list().size() && i < right.list().size(); ++i) {
      if (const int order = order_of(left.list()[i], right.list()[i])) return order;
    }
    return left.list().size() < right.list().size() ? -1 : left.list().size() > right.list().size() ? 1 : 0;
  }
  LEVIN_CHECK(false, "a ", left.type_name(), " and a ", right.type_name(), " have no order");
  return 0;
}

}  // namespace levin::text::jinja
