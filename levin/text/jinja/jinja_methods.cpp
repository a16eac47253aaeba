#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/jinja/jinja_text.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::jinja {

const std::string& text_of(const Value& value, const char* what) {
  LEVIN_CHECK(value.is_string(), what, " needs a text, not a ", value.type_name());
  return value.string();
}

std::string upper_text(const std::string& text) {
  // The inverse of lower case, where it is one code point.
  static const auto uppers = [] {
    std::map<char32_t, char32_t> map;
    std::u32string low;
    for (char32_t point = 0; point < 0x1e944; ++point) {
      if (properties(point).category() != Category::kLu) continue;
      low.clear();
      append_lower(low, point);
      if (low.size() == 1 && low[0] != point) map.emplace(low[0], point);
    }
    return map;
  }();
  std::string out;
  for (const auto point : to_points(text)) {
    if (point == 0xdf) {
      out += "SS";
      continue;
    }
    const auto found = uppers.find(point);
    append_utf8(out, found == uppers.end() ? point : found->second);
  }
  return out;
}

std::string lower_text(const std::string& text) {
  std::u32string points;
  for (const auto point : to_points(text)) append_lower(points, point);
  std::string out;
  for (const auto point : points) append_utf8(out, point);
  return out;
}

std::string capitalize_text(const std::string& text) {
  if (text.empty()) return text;
  const auto bytes = utf8_length(text[0]);
  return upper_text(text.substr(0, bytes)) + lower_text(text.substr(bytes));
}

std::string title_text(const std::string& text) {
  std::string out, word;
  const auto flush = [&] {
    out += capitalize_text(word);
    word.clear();
  };
  for (const auto point : to_points(text)) {
    if (properties(point).is_word() || point == U'\'') {
      append_utf8(word, point);
    } else {
      flush();
      append_utf8(out, point);
    }
  }
  flush();
  return out;
}

std::string stripped(const std::string& text, const Value& characters, bool left, bool right) {
  auto points = to_points(text);
  std::u32string set;
  if (characters.is_string()) set = to_points(characters.string());
  const auto goes = [&](char32_t point) {
    if (characters.is_string()) return set.find(point) != set.npos;
    return properties(point).is_space() || (point >= 0x1c && point <= 0x1f);
  };
  size_t begin = 0, end = points.size();
  while (left && begin < end && goes(points[begin])) ++begin;
  while (right && end > begin && goes(points[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) append_utf8(out, points[i]);
  return out;
}

std::string replaced(Interpreter& interpreter, const std::string& text, const std::string& from, const std::string& to,
                     int64_t most) {
  std::string out;
  size_t rest = 0;
  if (from.empty()) {
    for (size_t at = 0; at <= text.size();) {
      if (most-- != 0) out += to;
      if (at == text.size()) break;
      const auto bytes = utf8_length(text[at]);
      interpreter.charge(to.size() + bytes);
      out.append(text, at, bytes);
      at += bytes;
    }
    return out;
  }
  for (size_t at = text.find(from); at != text.npos && most-- != 0; at = text.find(from, rest)) {
    out.append(text, rest, at - rest);
    out += to;
    rest = at + from.size();
    interpreter.charge(to.size() + 1);
  }
  out.append(text, rest);
  interpreter.charge(text.size());
  return out;
}

List split_text(Interpreter& interpreter, const std::string& text, const Value& separator, int64_t most,
                bool from_right) {
  List parts;
  interpreter.charge(text.size() * 2);
  if (separator.is_string()) {
    const auto& word = separator.string();
    LEVIN_CHECK(!word.empty(), "split needs a separator that is not empty");
    if (from_right) {
      size_t end = text.size();
      while (most-- != 0) {
        if (end < word.size()) break;
        const auto at = text.rfind(word, end - word.size());
        if (at == text.npos) break;
        parts.emplace_back(text.substr(at + word.size(), end - at - word.size()));
        end = at;
      }
      parts.emplace_back(text.substr(0, end));
      std::reverse(parts.begin(), parts.end());
    } else {
      size_t rest = 0;
      for (size_t at = text.find(word); at != text.npos && most-- != 0; at = text.find(word, rest)) {
        parts.emplace_back(text.substr(rest, at - rest));
        rest = at + word.size();
      }
      parts.emplace_back(text.substr(rest));
    }
  } else {
    LEVIN_CHECK(!from_right || most < 0, "rsplit needs a separator");
    std::string word;
    size_t at = 0;
    while (at < text.size()) {
      const auto [point, bytes] = decode_utf8(text, at);
      if (properties(point).is_space()) {
        if (!word.empty()) parts.emplace_back(std::exchange(word, ""));
        at += bytes;
        continue;
      }
      if (word.empty() && most == 0) {
        parts.emplace_back(stripped(text.substr(at), Value(), false, true));
        return parts;
      }
      if (word.empty()) --most;
      word.append(text, at, bytes);
      at += bytes;
    }
    if (!word.empty()) parts.emplace_back(std::move(word));
  }
  interpreter.step(parts.size());
  return parts;
}

int64_t count_of(const Arguments& arguments, size_t position, const char* name) {
  const auto value = arguments.get(position, name, Value(-1));
  LEVIN_CHECK(value.is_int(), name, " is not a whole number");
  return value.integer();
}

namespace {

List split_lines(const std::string& text) {
  List lines;
  size_t rest = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\n' && text[at] != '\r') continue;
    lines.emplace_back(text.substr(rest, at - rest));
    if (text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') ++at;
    rest = at + 1;
  }
  if (rest < text.size()) lines.emplace_back(text.substr(rest));
  return lines;
}

bool any_affix(const std::string& text, const Value& affixes, bool at_start) {
  const auto one = [&](const Value& affix) {
    const auto& word = text_of(affix, at_start ? "startswith" : "endswith");
    return at_start ? text.starts_with(word) : text.ends_with(word);
  };
  if (!affixes.is_list()) return one(affixes);
  return std::any_of(affixes.list().begin(), affixes.list().end(), one);
}

int64_t points_before(const std::string& text, size_t at) {
  return static_cast<int64_t>(count_points(std::string_view(text).substr(0, at)));
}

Value string_method(const std::string& text, const std::string& name) {
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return method([text, name](Interpreter& i, const Arguments& a) -> Value {
      i.charge(text.size());
      return stripped(text, a.get(0, "chars", {}), name != "rstrip", name != "lstrip");
    });
  if (name == "split" || name == "rsplit")
    return method([text, name](Interpreter& i, const Arguments& a) -> Value {
      return split_text(i, text, a.get(0, "sep", {}), count_of(a, 1, "maxsplit"), name == "rsplit");
    });
  if (name == "splitlines")
    return method([text](Interpreter& i, const Arguments&) -> Value {
      i.charge(text.size() * 2);
      return split_lines(text);
    });
  if (name == "startswith" || name == "endswith")
    return method([text, name](Interpreter&, const Arguments& a) -> Value {
      return any_affix(text, a.get(0, "prefix", {}), name == "startswith");
    });
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "title")
    return method([text, name](Interpreter& i, const Arguments&) -> Value {
      i.charge(text.size());
      return name == "upper"   ? upper_text(text)
             : name == "lower" ? lower_text(text)
             : name == "title" ? title_text(text)
                               : capitalize_text(text);
    });
  if (name == "replace")
    return method([text](Interpreter& i, const Arguments& a) -> Value {
      return replaced(i, text, text_of(a.get(0, "old", {}), "replace"), text_of(a.get(1, "new", {}), "replace"),
                      count_of(a, 2, "count"));
    });
  if (name == "find" || name == "rfind" || name == "count" || name == "index")
    return method([text, name](Interpreter& i, const Arguments& a) -> Value {
      const auto& word = text_of(a.get(0, "sub", {}), "find");
      i.step(text.size() / 16);
      if (name == "count") {
        int64_t count = 0;
        for (size_t at = 0; !word.empty() && (at = text.find(word, at)) != text.npos; at += word.size()) ++count;
        return count;
      }
      const auto at = name == "rfind" ? text.rfind(word) : text.find(word);
      LEVIN_CHECK(name != "index" || at != text.npos, "index: the text is not there");
      return at == text.npos ? Value(-1) : Value(points_before(text, at));
    });
  if (name == "removeprefix" || name == "removesuffix")
    return method([text, name](Interpreter& i, const Arguments& a) -> Value {
      const auto& word = text_of(a.get(0, "prefix", {}), "removeprefix");
      i.charge(text.size());
      if (name == "removeprefix") return text.starts_with(word) ? text.substr(word.size()) : text;
      return text.ends_with(word) ? text.substr(0, text.size() - word.size()) : text;
    });
  if (name == "join")
    return method([text](Interpreter& i, const Arguments& a) -> Value {
      Arguments filter;
      filter.positional.emplace_back(text);
      return apply_filter(i, "join", a.get(0, "iterable", {}), filter);
    });
  if (name == "format") return Value(Undefined{"format"});
  if (name == "isdigit" || name == "isalpha" || name == "isalnum" || name == "isspace" || name == "isupper" ||
      name == "islower")
    return method([text, name](Interpreter&, const Arguments&) -> Value {
      const auto points = to_points(text);
      bool cased = false;
      const auto fits = [&](char32_t point) {
        const auto all = properties(point);
        if (name == "isdigit") return all.category() == Category::kNd;
        if (name == "isalpha") return all.is_letter();
        if (name == "isalnum") return all.is_letter() || all.is_number();
        if (name == "isspace") return all.is_space();
        const bool up = all.category() == Category::kLu, low = all.category() == Category::kLl;
        cased = cased || up || low;
        return name == "isupper" ? !low : !up;
      };
      const bool all = std::all_of(points.begin(), points.end(), fits);
      return all && !points.empty() && (cased || (name != "isupper" && name != "islower"));
    });
  return Value(Undefined{name});
}

Value dict_method(const Value& value, const std::string& name) {
  if (name == "items" || name == "keys" || name == "values")
    return method([value, name](Interpreter& i, const Arguments&) -> Value {
      List list;
      i.step(value.dict().size());
      i.charge(value.dict().size() * 32);
      for (const auto& [key, held] : value.dict())
        list.push_back(name == "keys" ? key : name == "values" ? held : Value::tuple({key, held}));
      return list;
    });
  if (name == "get")
    return method([value](Interpreter& i, const Arguments& a) -> Value {
      i.step(value.dict().size() / 8);
      const auto* found = Value::find(value.dict(), a.get(0, "key", {}));
      return found ? *found : a.get(1, "default", {});
    });
  return Value(Undefined{name});
}

}  // namespace

Value attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) ::levin::detail::fail("\"" + shown(value.undefined_name()) + "\" is not defined");
  if (name.starts_with("__")) return Value(Undefined{name});
  if (value.is_string()) return string_method(value.string(), name);
  if (value.is_dict()) {
    if (auto found = dict_method(value, name); !found.is_undefined()) return found;
    const auto* found = Value::find(value.dict(), Value(name));
    return found ? *found : Value(Undefined{name});
  }
  if (value.is_namespace()) {
    const auto* found = Value::find(value.name_space(), Value(name));
    return found ? *found : Value(Undefined{name});
  }
  return Value(Undefined{name});
}

}  // namespace levin::text::jinja
