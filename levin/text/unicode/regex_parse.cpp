#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/unicode/regex.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text::detail {

void CharSet::intersect(CharSet other) {
  also_.push_back(std::move(other));
}

void CharSet::finish() {
  for (auto& set : sets_) set.finish();
  for (auto& set : also_) set.finish();
  std::sort(ranges_.begin(), ranges_.end());
  for (uint32_t point = 0; point < 256; ++point) low_[point] = holds(point);
}

bool CharSet::holds(char32_t point) const {
  bool inside = holds_one(point);
  if (!inside && ignores_case_) {
    const auto folded = fold_case(point);
    inside = holds_one(folded) || (folded >= 'a' && folded <= 'z' && holds_one(folded - 32));
  }
  for (const auto& other : also_) inside = inside && other.holds(point);
  return inside != negated_;
}

bool CharSet::holds_one(char32_t point) const {
  if (flags_ & kAny) return true;
  for (const auto& [from, to] : ranges_) {
    if (point < from) break;
    if (point <= to) return true;
  }
  const auto all = properties(point);
  if (categories_ >> static_cast<uint32_t>(all.category()) & 1) return true;
  if ((flags_ & kSpace && all.is_space()) || (flags_ & kWord && all.is_word())) return true;
  if (flags_ & kAlphabetic && all.is_alphabetic()) return true;
  if (std::find(scripts_.begin(), scripts_.end(), all.script()) != scripts_.end()) return true;
  return std::any_of(sets_.begin(), sets_.end(), [&](const CharSet& set) { return set.holds(point); });
}

namespace {

constexpr int kMaxNesting = 60;
constexpr uint32_t kMaxRepeat = 1000;

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : pattern_(pattern) {
    LEVIN_CHECK(pattern.size() <= 20'000, "[regex] the pattern has ", pattern.size(), " bytes; at most 20000 are read");
    LEVIN_CHECK(valid_utf8(pattern), "[regex] the pattern is not UTF-8");
    text_ = to_points(pattern);
  }

  RegexPointer parse() {
    auto node = choice(0);
    if (at_ < text_.size()) fail("a ) without (");
    return node;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    ::levin::detail::fail(::levin::detail::concat("[regex] the pattern \"", shown(pattern_), "\" cannot be run: ", what,
                                                  " at character ", at_));
  }
  bool more() const { return at_ < text_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool take(char32_t point) {
    if (!more() || text_[at_] != point) return false;
    ++at_;
    return true;
  }
  bool take(std::u32string_view word) {
    if (std::u32string_view(text_).substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  static RegexPointer make(RegexNode::Kind kind) {
    auto node = std::make_unique<RegexNode>();
    node->kind = kind;
    return node;
  }

  RegexPointer choice(int depth) {
    if (depth > kMaxNesting) fail("groups are nested too deeply");
    const auto flags = std::pair(ignores_case_, dot_is_all_);
    auto node = make(RegexNode::Kind::kChoice);
    node->parts.push_back(sequence(depth));
    while (take(U'|')) node->parts.push_back(sequence(depth));
    std::tie(ignores_case_, dot_is_all_) = flags;
    return node->parts.size() == 1 ? std::move(node->parts[0]) : std::move(node);
  }

  RegexPointer sequence(int depth) {
    auto node = make(RegexNode::Kind::kSequence);
    while (more() && peek() != U'|' && peek() != U')') {
      auto part = repeated(atom(depth));
      if (part) node->parts.push_back(std::move(part));
    }
    return node;
  }

  bool braces(uint32_t& least, uint32_t& most) {
    const auto start = at_;
    const auto count = [&](uint32_t& value) {
      const auto from = at_;
      for (value = 0; more() && peek() >= U'0' && peek() <= U'9'; ++at_) {
        value = value * 10 + (peek() - U'0');
        if (value > kMaxRepeat) fail("a count above 1000");
      }
      return at_ > from;
    };
    ++at_;
    const bool has_least = count(least);
    most = least;
    bool fine = has_least;
    if (take(U',')) {
      const bool has_most = count(most);
      if (!has_most) most = RegexNode::kNoLimit;
      fine = has_least || has_most;
    }
    if (fine && take(U'}')) return true;
    at_ = start;
    return false;
  }

  RegexPointer repeated(RegexPointer node) {
    while (node && more()) {
      uint32_t least = 0, most = RegexNode::kNoLimit;
      bool counted = false;
      if (peek() == U'{') {
        if (!braces(least, most)) return node;
        counted = true;
      } else if (take(U'*')) {
      } else if (take(U'+')) {
        least = 1;
      } else if (take(U'?')) {
        most = 1;
      } else {
        return node;
      }
      if (node->kind == RegexNode::Kind::kAssert || node->kind == RegexNode::Kind::kLook) fail("a repeated assertion");
      if (most < least) fail("a count whose limits are swapped");
      auto repeat = make(RegexNode::Kind::kRepeat);
      repeat->least = least;
      repeat->most = most;
      // After {m,n} a + is one more repetition, as in Ruby.
      if (take(U'?'))
        repeat->greedy = false;
      else if (!counted && take(U'+'))
        repeat->possessive = true;
      if (++repeats_ > 500) fail("too many repetitions");
      if (node->kind == RegexNode::Kind::kRepeat && ++nested_ > 20) fail("repetitions of repetitions");
      repeat->parts.push_back(std::move(node));
      node = std::move(repeat);
    }
    return node;
  }

  RegexPointer set_node(CharSet set) {
    auto node = make(RegexNode::Kind::kSet);
    if (ignores_case_) set.ignore_case();
    set.finish();
    node->set = std::move(set);
    return node;
  }
  RegexPointer char_node(char32_t point) {
    auto node = make(RegexNode::Kind::kChar);
    node->point = ignores_case_ ? fold_case(point) : point;
    node->ignores_case = ignores_case_;
    return node;
  }
  static RegexPointer assert_node(RegexNode::Assert which) {
    auto node = make(RegexNode::Kind::kAssert);
    node->assertion = which;
    return node;
  }

  RegexPointer atom(int depth) {
    const auto point = text_[at_++];
    switch (point) {
      case U'(':
        return group(depth);
      case U'[':
        return set_node(bracket(depth));
      case U'.': {
        CharSet set;
        if (!dot_is_all_) {
          set.add(U'\n', U'\n');
          set.negate();
        } else {
          set.add_flag(CharSet::kAny);
        }
        return set_node(std::move(set));
      }
      case U'^':
        return assert_node(RegexNode::Assert::kLineStart);
      case U'$':
        return assert_node(RegexNode::Assert::kLineEnd);
      case U'*':
      case U'+':
      case U'?':
        fail("nothing to repeat");
      case U'\\':
        return escape();
      default:
        return char_node(point);
    }
  }

  RegexPointer group(int depth) {
    auto wrapped = [&](RegexNode::Kind kind, bool behind, bool negative) {
      auto node = make(kind);
      node->behind = behind;
      node->negative = negative;
      node->parts.push_back(choice(depth + 1));
      close();
      return node;
    };
    if (!take(U'?')) {
      auto node = choice(depth + 1);
      close();
      return node;
    }
    if (take(U':')) {
      auto node = choice(depth + 1);
      close();
      return node;
    }
    if (take(U'=')) return wrapped(RegexNode::Kind::kLook, false, false);
    if (take(U'!')) return wrapped(RegexNode::Kind::kLook, false, true);
    if (take(U"<=")) return wrapped(RegexNode::Kind::kLook, true, false);
    if (take(U"<!")) return wrapped(RegexNode::Kind::kLook, true, true);
    if (take(U'>')) return wrapped(RegexNode::Kind::kAtomic, false, false);
    if (take(U'#')) {
      while (more() && peek() != U')') ++at_;
      close();
      return nullptr;
    }
    if (take(U'<') || take(U"P<")) {
      while (more() && peek() != U'>') ++at_;
      if (!take(U'>')) fail("a group's name without >");
      auto node = choice(depth + 1);
      close();
      return node;
    }
    return options(depth);
  }

  // (?i), (?i:...), (?m-i:...): m lets a dot match a newline.
  RegexPointer options(int depth) {
    bool on = true, ignores_case = ignores_case_, dot_is_all = dot_is_all_;
    for (;; ++at_) {
      const auto flag = peek();
      if (flag == U'-')
        on = false;
      else if (flag == U'i')
        ignores_case = on;
      else if (flag == U'm')
        dot_is_all = on;
      else
        break;
    }
    if (take(U')')) {  // to the end of the group
      ignores_case_ = ignores_case;
      dot_is_all_ = dot_is_all;
      return nullptr;
    }
    if (!take(U':')) fail("a group of an unknown kind");
    const auto flags = std::pair(ignores_case_, dot_is_all_);
    ignores_case_ = ignores_case;
    dot_is_all_ = dot_is_all;
    auto node = choice(depth + 1);
    std::tie(ignores_case_, dot_is_all_) = flags;
    close();
    return node;
  }

  void close() {
    if (!take(U')')) fail("a ( without )");
  }

  // The set of \s, \p{L} and their like; false for another escape.
  bool class_escape(char32_t letter, CharSet& set) {
    CharSet made;
    switch (letter) {
      case U's':
      case U'S':
        made.add_flag(CharSet::kSpace);
        break;
      case U'w':
      case U'W':
        made.add_flag(CharSet::kWord);
        break;
      case U'd':
      case U'D':
        made.add_categories(category_bits("Nd"));
        break;
      case U'h':
      case U'H':
        made.add(U'0', U'9');
        made.add(U'a', U'f');
        made.add(U'A', U'F');
        break;
      case U'p':
      case U'P': {
        if (!take(U'{')) fail("\\p without {");
        if (take(U'^')) made.negate();
        std::string name;
        while (more() && peek() != U'}') append_utf8(name, text_[at_++]);
        if (!take(U'}')) fail("\\p{ without }");
        add_property(made, name);
        break;
      }
      default:
        return false;
    }
    if (letter == U'S' || letter == U'W' || letter == U'D' || letter == U'H' || letter == U'P') made.negate();
    set.add_set(std::move(made));
    return true;
  }

  void add_property(CharSet& set, std::string_view name) {
    std::string plain;
    for (const char c : name) {
      if (c != ' ' && c != '_' && c != '-') plain += c;
    }
    for (const auto code : {"L",  "M",  "N",  "P",  "S",  "Z",  "C",  "Lu", "Ll", "Lt", "Lm", "Lo", "Mn",
                            "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                            "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Co", "Cs"}) {
      if (equal_ignoring_case(code, plain)) return set.add_categories(category_bits(code));
    }
    constexpr std::pair<const char*, const char*> longer[] = {{"Letter", "L"},
                                                              {"Mark", "M"},
                                                              {"Number", "N"},
                                                              {"Punctuation", "P"},
                                                              {"Symbol", "S"},
                                                              {"Separator", "Z"},
                                                              {"Other", "C"},
                                                              {"UppercaseLetter", "Lu"},
                                                              {"LowercaseLetter", "Ll"},
                                                              {"DecimalNumber", "Nd"},
                                                              {"Digit", "Nd"},
                                                              {"Punct", "P"},
                                                              {"Cntrl", "Cc"}};
    for (const auto& [word, code] : longer) {
      if (equal_ignoring_case(word, plain)) return set.add_categories(category_bits(code));
    }
    if (equal_ignoring_case(plain, "Space") || equal_ignoring_case(plain, "WhiteSpace"))
      return set.add_flag(CharSet::kSpace);
    if (equal_ignoring_case(plain, "Alphabetic")) return set.add_flag(CharSet::kAlphabetic);
    if (equal_ignoring_case(plain, "Word")) return set.add_flag(CharSet::kWord);
    if (equal_ignoring_case(plain, "Any")) return set.add_flag(CharSet::kAny);
    if (equal_ignoring_case(plain, "ASCII")) return set.add(0, 127);
    for (uint32_t i = 1; i < script_names().size(); ++i) {
      std::string script = script_names()[i];
      std::erase(script, '_');
      if (equal_ignoring_case(script, plain)) return set.add_script(i);
    }
    fail("\\p{" + shown(name) + "} is not known");
  }

  // A character that is written as an escape, the backslash and `letter` already taken.
  char32_t char_escape(char32_t letter) {
    switch (letter) {
      case U'n':
        return U'\n';
      case U'r':
        return U'\r';
      case U't':
        return U'\t';
      case U'f':
        return U'\f';
      case U'v':
        return U'\v';
      case U'a':
        return 7;
      case U'e':
        return 27;
      case U'0':
        return 0;
      case U'x':
        if (take(U'{')) {
          const auto point = hex(8, 1);
          if (!take(U'}')) fail("\\x{ without }");
          return point;
        }
        return hex(2, 1);
      case U'u':
        return hex(4, 4);
      default:
        if ((letter >= U'0' && letter <= U'9') || (letter >= U'a' && letter <= U'z') ||
            (letter >= U'A' && letter <= U'Z'))
          fail("\\" + to_utf8(letter) + " is not known");
        return letter;
    }
  }

  char32_t hex(size_t most, size_t least) {
    char32_t value = 0;
    size_t digits = 0;
    for (; digits < most; ++digits, ++at_) {
      const auto c = peek();
      uint32_t digit;
      if (c >= U'0' && c <= U'9')
        digit = c - U'0';
      else if ((c | 32) >= U'a' && (c | 32) <= U'f')
        digit = (c | 32) - U'a' + 10;
      else
        break;
      value = value * 16 + digit;
      if (value > 0x10ffff) fail("a code point above 10FFFF");
    }
    if (digits < least) fail("too few hexadecimal digits");
    return value;
  }

  RegexPointer escape() {
    if (!more()) fail("a \\ at the end");
    const auto letter = text_[at_++];
    CharSet set;
    if (class_escape(letter, set)) return set_node(std::move(set));
    switch (letter) {
      case U'A':
        return assert_node(RegexNode::Assert::kTextStart);
      case U'z':
        return assert_node(RegexNode::Assert::kTextEnd);
      case U'Z':
        return assert_node(RegexNode::Assert::kTextEndOrNewline);
      case U'b':
        return assert_node(RegexNode::Assert::kWord);
      case U'B':
        return assert_node(RegexNode::Assert::kNotWord);
      default:
        return char_node(char_escape(letter));
    }
  }

  // [[:alpha:]]
  bool posix(CharSet& set) {
    if (peek() != U':') return false;
    const auto start = at_;
    ++at_;
    const bool negated = take(U'^');
    std::string name;
    while (more() && peek() >= U'a' && peek() <= U'z') name += static_cast<char>(text_[at_++]);
    if (!take(U":]")) {
      at_ = start;
      return false;
    }
    CharSet made;
    if (name == "alpha")
      made.add_flag(CharSet::kAlphabetic);
    else if (name == "alnum") {
      made.add_flag(CharSet::kAlphabetic);
      made.add_categories(category_bits("Nd"));
    } else if (name == "punct") {
      made.add_categories(category_bits("P"));
      for (const char32_t c : U"$+<=>^`|~") {
        if (c) made.add(c, c);
      }
    } else if (name == "xdigit")
      for (const auto& [a, b] : {std::pair(U'0', U'9'), {U'a', U'f'}, {U'A', U'F'}}) made.add(a, b);
    else if (name == "upper")
      made.add_categories(category_bits("Lu"));
    else if (name == "lower")
      made.add_categories(category_bits("Ll"));
    else
      add_property(made, name);
    if (negated) made.negate();
    set.add_set(std::move(made));
    return true;
  }

  // After a [. A [ inside is a set of its own that is part of this one, and && intersects.
  CharSet bracket(int depth) {
    if (depth > kMaxNesting) fail("sets are nested too deeply");
    CharSet whole;
    const bool negated = take(U'^');
    std::vector<CharSet> sides(1);
    bool first = true;
    for (;; first = false) {
      if (!more()) fail("a [ without ]");
      if (peek() == U']' && !first) break;
      if (take(U"&&")) {
        sides.emplace_back();
        continue;
      }
      if (take(U'[')) {
        if (!posix(sides.back())) sides.back().add_set(bracket(depth + 1));
        continue;
      }
      auto point = text_[at_++];
      if (point == U'\\') {
        if (!more()) fail("a \\ at the end");
        const auto letter = text_[at_++];
        if (class_escape(letter, sides.back())) continue;
        point = letter == U'b' ? 8 : char_escape(letter);
      }
      auto last = point;
      if (peek() == U'-' && peek(1) != U']' && peek(1) != 0) {
        const auto before = at_;
        ++at_;
        last = text_[at_++];
        if (last == U'[') {
          at_ = before;
          last = point;
        } else if (last == U'\\') {
          CharSet ignored;
          const auto letter = more() ? text_[at_++] : U'\0';
          if (class_escape(letter, ignored)) fail("a range that ends with a set");
          last = char_escape(letter);
        }
      }
      if (last < point) fail("a range whose ends are swapped");
      sides.back().add(point, last);
    }
    ++at_;
    for (size_t i = 1; i < sides.size(); ++i) {
      if (ignores_case_) sides[i].ignore_case();
      sides[0].intersect(std::move(sides[i]));
    }
    if (ignores_case_) sides[0].ignore_case();
    whole.add_set(std::move(sides[0]));
    if (negated) whole.negate();
    return whole;
  }

  std::string_view pattern_;
  std::u32string text_;
  size_t at_ = 0;
  bool ignores_case_ = false, dot_is_all_ = false;
  int repeats_ = 0, nested_ = 0;
};

}  // namespace

RegexPointer parse_regex(std::string_view pattern) {
  return RegexParser(pattern).parse();
}

}  // namespace levin::text::detail
