#include "levin/text/jinja/jinja_lex.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/jinja/jinja.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::jinja {

void fail_at(int line, const std::string& what) {
  ::levin::detail::fail(::levin::detail::concat("[chat template] line ", line, ": ", what));
}

namespace {

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    // One newline at the end is not part of the template.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
    if (source_.ends_with('\r')) source_.remove_suffix(1);
  }

  std::vector<Token> tokens() {
    while (at_ < source_.size()) text();
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool starts(std::string_view word) const { return source_.substr(at_).starts_with(word); }
  void skip(size_t count) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<long>(at_), source_.begin() + static_cast<long>(at_ + count), '\n'));
    at_ += count;
  }

  // Text up to the next tag, and the tag.
  void text() {
    size_t tag = at_;
    while ((tag = source_.find('{', tag)) != source_.npos) {
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    if (tag == source_.npos) tag = source_.size();
    std::string_view before = source_.substr(at_, tag - at_);
    const bool line_start_known = at_ == 0 || source_[at_ - 1] == '\n' || trimmed_newline_;
    const char kind = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    auto kept = before;
    if (kind != '\0' && sign == '-') {
      while (!kept.empty() && is_blank(kept.back())) kept.remove_suffix(1);
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      // Blanks between the start of a line and a block are not part of the text.
      auto end = kept.size();
      while (end > 0 && (kept[end - 1] == ' ' || kept[end - 1] == '\t')) --end;
      if ((end > 0 && kept[end - 1] == '\n') || (end == 0 && line_start_known)) kept = kept.substr(0, end);
    }
    if (!kept.empty()) add(Token::Kind::kText, std::string(kept));
    skip(tag - at_);
    trimmed_newline_ = false;
    if (at_ == source_.size()) return;
    if (kind == '#') return comment();
    const bool is_block = kind == '%';
    if (is_block && raw()) return;
    add(is_block ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
    skip(2);
    if (at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+')) skip(1);
    inside(is_block);
  }

  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

  // After a tag: "-" takes all blanks, a block takes one newline.
  void after_tag(bool minus, bool plus, bool is_block) {
    if (minus) {
      size_t count = 0;
      while (at_ + count < source_.size() && is_blank(source_[at_ + count])) ++count;
      skip(count);
      // A block that follows at once must not look for the start of a line in what was taken.
      trimmed_newline_ = false;
    } else if (is_block && !plus) {
      if (starts("\r\n"))
        skip(2);
      else if (starts("\n"))
        skip(1);
    }
  }

  void comment() {
    const auto end = source_.find("#}", at_ + 2);
    if (end == source_.npos) fail_at(line_, "a comment without #}");
    const bool minus = source_[end - 1] == '-' && end - 1 > at_ + 1, plus = source_[end - 1] == '+';
    skip(end + 2 - at_);
    after_tag(minus, plus, true);
  }

  // {% raw %}...{% endraw %}
  bool raw() {
    const auto word_tag = [&](size_t at, std::string_view word, size_t& end, bool& opens, bool& closes) {
      auto i = at + 2;
      opens = i < source_.size() && source_[i] == '-';
      if (opens || (i < source_.size() && source_[i] == '+')) ++i;
      while (i < source_.size() && is_blank(source_[i])) ++i;
      if (!source_.substr(i).starts_with(word)) return false;
      i += word.size();
      while (i < source_.size() && is_blank(source_[i])) ++i;
      closes = i < source_.size() && source_[i] == '-';
      if (closes || (i < source_.size() && source_[i] == '+')) ++i;
      if (!source_.substr(i).starts_with("%}")) return false;
      end = i + 2;
      return true;
    };
    size_t end = 0;
    bool opens = false, closes = false;
    if (!word_tag(at_, "raw", end, opens, closes)) return false;
    const int line = line_;
    skip(end - at_);
    after_tag(closes, false, true);
    for (size_t tag = at_; (tag = source_.find("{%", tag)) != source_.npos; ++tag) {
      if (!word_tag(tag, "endraw", end, opens, closes)) continue;
      auto text = source_.substr(at_, tag - at_);
      while (opens && !text.empty() && is_blank(text.back())) text.remove_suffix(1);
      if (!opens) {
        auto last = text.size();
        while (last > 0 && (text[last - 1] == ' ' || text[last - 1] == '\t')) --last;
        if (last > 0 && text[last - 1] == '\n') text = text.substr(0, last);
      }
      add(Token::Kind::kText, std::string(text));
      skip(end - at_);
      after_tag(closes, false, true);
      return true;
    }
    fail_at(line, "a raw without endraw");
  }

  void inside(bool is_block) {
    const std::string_view close = is_block ? "%}" : "}}";
    const int line = line_;
    std::string open;  // brackets
    for (;;) {
      while (at_ < source_.size() && is_blank(source_[at_])) skip(1);
      if (at_ == source_.size()) fail_at(line, is_block ? "a {% without %}" : "a {{ without }}");
      const bool minus = source_[at_] == '-', plus = source_[at_] == '+';
      if (open.empty() && (starts(close) || ((minus || plus) && source_.substr(at_ + 1).starts_with(close)))) {
        add(is_block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd, "");
        const bool signed_end = !starts(close);
        skip(signed_end ? 3 : 2);
        after_tag(signed_end && minus, signed_end && plus, is_block);
        return;
      }
      token(open);
    }
  }

  void token(std::string& open) {
    const char c = source_[at_];
    const auto is_word = [](char w) {
      return (w >= 'a' && w <= 'z') || (w >= 'A' && w <= 'Z') || (w >= '0' && w <= '9') || w == '_';
    };
    if (c == '"' || c == '\'') return string(c);
    if (c >= '0' && c <= '9') return number();
    if (is_word(c)) {
      size_t count = 1;
      while (at_ + count < source_.size() && is_word(source_[at_ + count])) ++count;
      add(Token::Kind::kName, std::string(source_.substr(at_, count)));
      skip(count);
      return;
    }
    for (const std::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (starts(two)) {
        add(Token::Kind::kOperator, std::string(two));
        skip(2);
        return;
      }
    }
    if (std::string_view("+-*/%~<>=()[]{},.:|").find(c) == std::string_view::npos)
      fail_at(line_, "\"" + shown(source_.substr(at_, 1)) + "\" is not known here");
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail_at(line_, std::string("a ") + c + " that nothing opened");
      open.pop_back();
    }
    add(Token::Kind::kOperator, std::string(1, c));
    skip(1);
  }

  void number() {
    size_t count = 0;
    bool is_float = false;
    const auto at = [&](size_t i) { return at_ + i < source_.size() ? source_[at_ + i] : '\0'; };
    const auto digit = [&](size_t i) { return (at(i) >= '0' && at(i) <= '9') || at(i) == '_'; };
    while (digit(count)) ++count;
    if (at(count) == '.' && at(count + 1) >= '0' && at(count + 1) <= '9') {
      is_float = true;
      ++count;
      while (digit(count)) ++count;
    }
    if (at(count) == 'e' || at(count) == 'E') {
      size_t more = count + 1;
      if (at(more) == '+' || at(more) == '-') ++more;
      if (at(more) >= '0' && at(more) <= '9') {
        is_float = true;
        while (digit(more)) ++more;
        count = more;
      }
    }
    std::string text(source_.substr(at_, count));
    std::erase(text, '_');
    if (text.size() > 30) fail_at(line_, "a number that is too long");
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInt, text);
    skip(count);
  }

  void string(char quote) {
    const int line = line_;
    std::string text;
    size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= source_.size()) fail_at(line, "a string without its end");
      const char c = source_[i];
      if (c == quote) break;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (++i >= source_.size()) fail_at(line, "a string without its end");
      escape(text, i, line);
    }
    add(Token::Kind::kString, std::move(text));
    skip(i + 1 - at_);
  }

  void escape(std::string& text, size_t& i, int line) const {
    const char c = source_[i];
    constexpr std::string_view from = "nrtbfva0\\'\"", to = {"\n\r\t\b\f\v\a\0\\'\"", 11};
    if (const auto at = from.find(c); at != from.npos) {
      text += to[at];
      return;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (c != '\n') {
        text += '\\';
        text += c;
      }
      return;
    }
    char32_t point = 0;
    for (size_t k = 0; k < digits; ++k) {
      const char h = ++i < source_.size() ? source_[i] : '\0';
      const char low = static_cast<char>(h | 32);
      if (h >= '0' && h <= '9')
        point = point * 16 + static_cast<char32_t>(h - '0');
      else if (low >= 'a' && low <= 'f')
        point = point * 16 + static_cast<char32_t>(low - 'a' + 10);
      else
        fail_at(line, "a \\ with too few hexadecimal digits");
    }
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) fail_at(line, "a \\ that is no code point");
    append_utf8(text, point);
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool trimmed_newline_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> lex_template(std::string_view source) {
  return Lexer(source).tokens();
}

}  // namespace levin::text::jinja
