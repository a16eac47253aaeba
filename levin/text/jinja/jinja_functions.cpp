#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/jinja/jinja_text.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::jinja {
namespace {

constexpr std::array kFilters = {"abs",   "attr",   "capitalize", "count",      "d",       "default",  "dictsort",
                                 "e",     "escape", "first",      "float",      "format",  "indent",   "int",
                                 "items", "join",   "last",       "length",     "list",    "lower",    "map",
                                 "max",   "min",    "reject",     "rejectattr", "replace", "reverse",  "round",
                                 "safe",  "select", "selectattr", "sort",       "string",  "strip",    "sum",
                                 "title", "tojson", "trim",       "unique",     "upper",   "wordcount"};
constexpr std::array kTests = {"boolean", "callable", "defined",  "divisibleby", "eq",   "equalto",   "even",
                               "false",   "float",    "ge",       "gt",          "in",   "integer",   "iterable",
                               "le",      "lower",    "lt",       "mapping",     "ne",   "none",      "number",
                               "odd",     "sameas",   "sequence", "string",      "true", "undefined", "upper"};

// The attribute of an item that map, sort and selectattr ask for: "a.b" and "0" are paths.
Value path_of(const Value& value, const Value& path) {
  if (path.is_int()) {
    if (!value.is_list()) return Value(Undefined{to_text(path)});
    const auto at = path.integer();
    return at >= 0 && at < static_cast<int64_t>(value.list().size()) ? value.list()[static_cast<size_t>(at)]
                                                                     : Value(Undefined{to_text(path)});
  }
  const auto& text = text_of(path, "attribute");
  Value now = value;
  for (size_t rest = 0; rest <= text.size();) {
    auto dot = text.find('.', rest);
    if (dot == text.npos) dot = text.size();
    const auto name = text.substr(rest, dot - rest);
    if (now.is_undefined()) return now;
    // Items come before methods here.
    const auto* found = now.is_dict() ? Value::find(now.dict(), Value(name)) : nullptr;
    now = found ? *found : attribute(now, name);
    rest = dot + 1;
  }
  return now;
}

Arguments after(const Arguments& arguments, size_t count) {
  Arguments rest;
  if (arguments.positional.size() > count)
    rest.positional.assign(arguments.positional.begin() + static_cast<long>(count), arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

Value select(Interpreter& interpreter, const std::string& name, const Value& value, const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
  const size_t at = by_attribute ? 1 : 0;
  LEVIN_CHECK(!by_attribute || !arguments.positional.empty(), name, " needs an attribute");
  List kept;
  for (const auto& item : items_of(interpreter, value)) {
    const auto subject = by_attribute ? path_of(item, arguments.positional[0]) : item;
    bool fits;
    if (arguments.positional.size() > at) {
      const auto& test = text_of(arguments.positional[at], name.c_str());
      const auto plain = test == "=="   ? "eq"
                         : test == "!=" ? "ne"
                         : test == "<"  ? "lt"
                         : test == ">"  ? "gt"
                         : test == "<=" ? "le"
                         : test == ">=" ? "ge"
                                        : test;
      LEVIN_CHECK(is_test(plain), "the test \"", shown(test), "\" is not known");
      fits = apply_test(interpreter, plain, subject, after(arguments, at + 1));
    } else {
      fits = subject.truth();
    }
    if (fits == keeps) kept.push_back(item);
  }
  return kept;
}

Value map_items(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  List out;
  const auto* attribute_name = arguments.positional.empty() ? arguments.find(SIZE_MAX, "attribute") : nullptr;
  LEVIN_CHECK(attribute_name || !arguments.positional.empty(), "map needs a filter or an attribute");
  for (const auto& item : items_of(interpreter, value)) {
    if (attribute_name) {
      auto found = path_of(item, *attribute_name);
      if (found.is_undefined()) found = arguments.get(SIZE_MAX, "default", found);
      out.push_back(std::move(found));
    } else {
      const auto& filter = text_of(arguments.positional[0], "map");
      LEVIN_CHECK(is_filter(filter), "the filter \"", shown(filter), "\" is not known");
      out.push_back(apply_filter(interpreter, filter, item, after(arguments, 1)));
    }
  }
  interpreter.charge(out.size() * 16);
  return out;
}

Value sorted(Interpreter& interpreter, const Value& value, const Arguments& arguments, bool is_dict) {
  List items;
  if (is_dict) {
    LEVIN_CHECK(value.is_dict(), "dictsort needs a dict");
    for (const auto& [key, held] : value.dict()) items.push_back(Value::tuple({key, held}));
  } else {
    items = items_of(interpreter, value);
  }
  interpreter.step(items.size() * 8);
  const bool reverse = arguments.get(is_dict ? 2 : 0, "reverse", Value(false)).truth();
  const bool cases = arguments.get(is_dict ? 0 : 1, "case_sensitive", Value(false)).truth();
  const auto by = is_dict ? Value(arguments.get(1, "by", Value("key")).equals(Value("value")) ? 1 : 0)
                          : arguments.get(2, "attribute", {});
  const auto key = [&](const Value& item) {
    auto found = by.is_none() ? item : path_of(item, by);
    return found.is_string() && !cases ? Value(lower_text(found.string())) : found;
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    const int order = order_of(key(a), key(b));
    return reverse ? order > 0 : order < 0;
  });
  return items;
}

Value joined(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const auto separator = to_text(arguments.get(0, "d", Value("")));
  const auto attribute_name = arguments.get(1, "attribute", {});
  std::string out;
  bool first = true;
  for (const auto& item : items_of(interpreter, value)) {
    if (!first) out += separator;
    first = false;
    const auto text = to_text(attribute_name.is_none() ? item : path_of(item, attribute_name));
    interpreter.charge(text.size() + separator.size());
    out += text;
  }
  return out;
}

Value indented(Interpreter& interpreter, const std::string& text, const Arguments& arguments) {
  const auto width = arguments.get(0, "width", Value(4));
  LEVIN_CHECK(width.is_string() || (width.is_int() && width.integer() >= 0 && width.integer() <= 1000),
              "indent needs a width up to 1000");
  const auto blank = width.is_string() ? width.string() : std::string(static_cast<size_t>(width.integer()), ' ');
  const bool first = arguments.get(1, "first", Value(false)).truth(),
             empty = arguments.get(2, "blank", Value(false)).truth();
  std::string out;
  size_t rest = 0;
  for (bool is_first = true;; is_first = false) {
    auto end = text.find('\n', rest);
    const bool last = end == text.npos;
    if (last) end = text.size();
    interpreter.charge(blank.size() + end - rest + 1);
    if (is_first ? first : (end > rest || empty)) out += blank;
    out.append(text, rest, end - rest);
    if (last) break;
    out += '\n';
    rest = end + 1;
  }
  return out;
}

Value to_number(const Value& value, const Arguments& arguments, bool whole) {
  const auto otherwise = arguments.get(0, "default", whole ? Value(0) : Value(0.0));
  if (value.is_number()) {
    if (!whole) return Value(value.number());
    if (!value.is_float()) return Value(value.integer());
    return std::abs(value.number()) < 9e18 ? Value(static_cast<int64_t>(value.number())) : otherwise;
  }
  if (!value.is_string()) return otherwise;
  const auto text = stripped(value.string(), {}, true, true);
  double number = 0;
  const char* begin = text.c_str() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.c_str() + text.size(), number);
  if (error != std::errc() || end != text.c_str() + text.size()) return otherwise;
  if (!whole) return Value(number);
  int64_t exact = 0;
  const auto [stop, wrong] = std::from_chars(begin, text.c_str() + text.size(), exact);
  if (wrong == std::errc() && stop == text.c_str() + text.size()) return Value(exact);
  return std::abs(number) < 9e18 ? Value(static_cast<int64_t>(number)) : otherwise;
}

// %s, %d, %r and %%: what templates use of Python's formats.
Value formatted(Interpreter& interpreter, const std::string& text, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const char kind = ++i < text.size() ? text[i] : '\0';
    if (kind == '%') {
      out += '%';
      continue;
    }
    LEVIN_CHECK(kind == 's' || kind == 'd' || kind == 'r', "the format %", shown(std::string(1, kind)),
                " is not known");
    LEVIN_CHECK(next < arguments.positional.size(), "a format has too few values");
    const auto& value = arguments.positional[next++];
    const auto part = kind == 'r' ? to_repr(value) : to_text(value);
    interpreter.charge(part.size());
    out += part;
  }
  interpreter.charge(out.size());
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value json_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  JsonStyle style;
  style.ascii = arguments.get(0, "ensure_ascii", Value(false)).truth();
  if (const auto indent = arguments.get(1, "indent", {}); !indent.is_none()) {
    LEVIN_CHECK(indent.is_int() && indent.integer() >= 0 && indent.integer() <= 100,
                "tojson needs an indent up to 100");
    style.indent = static_cast<int>(indent.integer());
    style.comma = ",";
  }
  if (const auto separators = arguments.get(2, "separators", {}); separators.is_list()) {
    LEVIN_CHECK(separators.list().size() == 2, "separators are two texts");
    style.comma = text_of(separators.list()[0], "tojson");
    style.colon = text_of(separators.list()[1], "tojson");
  }
  style.sorted = arguments.get(3, "sort_keys", Value(false)).truth();
  auto text = to_json(value, style);
  interpreter.charge(text.size());
  return text;
}

Value rounded(const Value& value, const Arguments& arguments) {
  LEVIN_CHECK(value.is_number(), "round needs a number");
  const auto digits = arguments.get(0, "precision", Value(0));
  LEVIN_CHECK(digits.is_int() && std::abs(digits.integer()) <= 15, "round needs 0 to 15 digits");
  const double scale = std::pow(10.0, static_cast<double>(digits.integer()));
  const auto how = to_text(arguments.get(1, "method", Value("common")));
  const double scaled = value.number() * scale;
  return (how == "ceil" ? std::ceil(scaled) : how == "floor" ? std::floor(scaled) : std::nearbyint(scaled)) / scale;
}

}  // namespace

bool is_filter(const std::string& name) {
  return std::find(kFilters.begin(), kFilters.end(), name) != kFilters.end();
}
bool is_test(const std::string& name) {
  return std::find(kTests.begin(), kTests.end(), name) != kTests.end();
}

Value apply_filter(Interpreter& interpreter, const std::string& name, const Value& value, const Arguments& arguments) {
  if (name == "default" || name == "d") {
    const bool empty_too = arguments.get(1, "boolean", Value(false)).truth();
    return value.is_undefined() || (empty_too && !value.truth()) ? arguments.get(0, "default_value", Value("")) : value;
  }
  if (name == "length" || name == "count") {
    if (value.is_undefined()) return 0;
    if (value.is_string()) return static_cast<int64_t>(count_points(value.string()));
    if (value.is_list()) return static_cast<int64_t>(value.list().size());
    LEVIN_CHECK(value.is_dict(), "a ", value.type_name(), " has no length");
    return static_cast<int64_t>(value.dict().size());
  }
  const auto text = [&] {
    auto made = to_text(value);
    interpreter.charge(made.size());
    return made;
  };
  if (name == "trim" || name == "strip") return stripped(text(), arguments.get(0, "chars", {}), true, true);
  if (name == "string" || name == "safe") return text();
  if (name == "upper") return upper_text(text());
  if (name == "lower") return lower_text(text());
  if (name == "capitalize") return capitalize_text(text());
  if (name == "title") return title_text(text());
  if (name == "e" || name == "escape") return escaped(text());
  if (name == "indent") return indented(interpreter, text(), arguments);
  if (name == "format") return formatted(interpreter, text(), arguments);
  if (name == "replace")
    return replaced(interpreter, text(), to_text(arguments.get(0, "old", {})), to_text(arguments.get(1, "new", {})),
                    count_of(arguments, 2, "count"));
  if (name == "wordcount") return static_cast<int64_t>(split_text(interpreter, text(), {}, -1, false).size());
  if (name == "tojson") return json_filter(interpreter, value, arguments);
  if (name == "join") return joined(interpreter, value, arguments);
  if (name == "int" || name == "float") return to_number(value, arguments, name == "int");
  if (name == "round") return rounded(value, arguments);
  if (name == "abs") {
    LEVIN_CHECK(value.is_number(), "abs needs a number");
    return value.is_float() ? Value(std::abs(value.number())) : Value(std::abs(value.integer()));
  }
  if (name == "attr") return attribute(value, text_of(arguments.get(0, "name", {}), "attr"));
  if (name == "map") return map_items(interpreter, value, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return select(interpreter, name, value, arguments);
  if (name == "sort" || name == "dictsort") return sorted(interpreter, value, arguments, name == "dictsort");
  if (name == "items") {
    if (value.is_undefined()) return List{};
    LEVIN_CHECK(value.is_dict(), "items needs a dict, not a ", value.type_name());
    return interpreter.call(attribute(value, "items"), {});
  }
  auto items = items_of(interpreter, value);
  if (name == "list") return items;
  if (name == "first" || name == "last") {
    if (items.empty()) return Value(Undefined{"the " + name + " of nothing"});
    return name == "first" ? items.front() : items.back();
  }
  if (name == "reverse") {
    std::reverse(items.begin(), items.end());
    if (!value.is_string()) return items;
    std::string out;
    for (const auto& item : items) out += item.string();
    return out;
  }
  if (name == "unique") {
    List kept;
    for (const auto& item : items) {
      interpreter.step(kept.size());
      const auto same = [&](const Value& other) {
        if (item.is_string() && other.is_string()) return lower_text(item.string()) == lower_text(other.string());
        return item.equals(other);
      };
      if (std::none_of(kept.begin(), kept.end(), same)) kept.push_back(item);
    }
    return kept;
  }
  if (name == "sum") {
    double total = 0;
    bool whole = true;
    for (const auto& item : items) {
      LEVIN_CHECK(item.is_number(), "sum needs numbers");
      whole = whole && !item.is_float();
      total += item.number();
    }
    return whole && std::abs(total) < 9e15 ? Value(static_cast<int64_t>(total)) : Value(total);
  }
  if (name == "min" || name == "max") {
    if (items.empty()) return Value(Undefined{"the " + name + " of nothing"});
    const auto less = [](const Value& a, const Value& b) { return order_of(a, b) < 0; };
    return name == "min" ? *std::min_element(items.begin(), items.end(), less)
                         : *std::max_element(items.begin(), items.end(), less);
  }
  ::levin::detail::fail("the filter \"" + shown(name) + "\" is not known");
}

bool apply_test(Interpreter& interpreter, const std::string& name, const Value& value, const Arguments& arguments) {
  const auto other = [&] {
    LEVIN_CHECK(!arguments.positional.empty(), "the test \"", name, "\" needs a value");
    return arguments.positional[0];
  };
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "true") return value.is_bool() && value.truth();
  if (name == "false") return value.is_bool() && !value.truth();
  if (name == "boolean") return value.is_bool();
  if (name == "integer") return value.is_int();
  if (name == "float") return value.is_float();
  if (name == "number") return value.is_number();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_dict();
  if (name == "sequence") return value.is_list() || value.is_string() || value.is_dict();
  if (name == "iterable") return value.is_list() || value.is_string() || value.is_dict() || value.is_undefined();
  if (name == "callable") return value.is_function();
  if (name == "sameas") return value.equals(other()) && std::string_view(value.type_name()) == other().type_name();
  if (name == "eq" || name == "equalto") return value.equals(other());
  if (name == "ne") return !value.equals(other());
  if (name == "lt") return order_of(value, other()) < 0;
  if (name == "le") return order_of(value, other()) <= 0;
  if (name == "gt") return order_of(value, other()) > 0;
  if (name == "ge") return order_of(value, other()) >= 0;
  if (name == "in") {
    const auto where = other();
    if (where.is_string()) return value.is_string() && where.string().find(value.string()) != std::string::npos;
    const auto items = items_of(interpreter, where);
    return std::any_of(items.begin(), items.end(), [&](const Value& item) { return item.equals(value); });
  }
  if (name == "lower") return to_text(value) == lower_text(to_text(value));
  if (name == "upper") return to_text(value) == upper_text(to_text(value));
  LEVIN_CHECK(value.is_number() && !value.is_float(), "the test \"", name, "\" needs a whole number");
  if (name == "odd") return value.integer() % 2 != 0;
  if (name == "even") return value.integer() % 2 == 0;
  const auto by = other();
  LEVIN_CHECK(by.is_int() && by.integer() != 0, "divisibleby needs a whole number");
  return by.integer() == -1 || value.integer() % by.integer() == 0;
}

Value global_function(const std::string& name) {
  if (name == "range")
    return method([](Interpreter& interpreter, const Arguments& a) -> Value {
      LEVIN_CHECK(!a.positional.empty() && a.positional.size() <= 3, "range needs one to three numbers");
      int64_t bounds[3] = {0, 0, 1};
      for (size_t i = 0; i < a.positional.size(); ++i) {
        LEVIN_CHECK(a.positional[i].is_int() && std::abs(a.positional[i].integer()) < (int64_t{1} << 40),
                    "range needs whole numbers");
        bounds[a.positional.size() == 1 ? 1 : i] = a.positional[i].integer();
      }
      LEVIN_CHECK(bounds[2] != 0, "range has the step 0");
      List list;
      for (auto i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1]; i += bounds[2]) {
        LEVIN_CHECK(list.size() < 100'000, "range is longer than 100000");
        list.emplace_back(i);
      }
      interpreter.step(list.size());
      return list;
    });
  if (name == "namespace" || name == "dict") {
    const bool is_namespace = name == "namespace";
    return method([is_namespace](Interpreter& interpreter, const Arguments& a) -> Value {
      Dict values;
      if (!a.positional.empty() && a.positional[0].is_dict()) values = a.positional[0].dict();
      for (const auto& [key, value] : a.named) values.emplace_back(Value(key), value);
      if (!is_namespace) return values;
      for (const auto& item : values)
        LEVIN_CHECK(item.first.is_string() && !item.first.string().starts_with('_'), "a namespace has names alone");
      return interpreter.keep(Value::name_space(std::move(values)));
    });
  }
  if (name == "raise_exception")
    return method([](Interpreter&, const Arguments& a) -> Value {
      ::levin::detail::fail("the template refuses: " + shown(to_text(a.get(0, "message", {}))));
    });
  if (name == "strftime_now")
    return method([](Interpreter&, const Arguments& a) -> Value {
      const auto& format = text_of(a.get(0, "format", {}), "strftime_now");
      LEVIN_CHECK(format.size() < 200, "strftime_now: the format is too long");
      const std::time_t now = std::time(nullptr);
      std::tm parts{};
      localtime_r(&now, &parts);
      char buffer[1024];
      const auto size = std::strftime(buffer, sizeof(buffer), format.c_str(), &parts);
      return replace_broken_utf8(std::string_view(buffer, size));
    });
  return Value(Undefined{name});
}

}  // namespace levin::text::jinja
