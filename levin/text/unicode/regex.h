#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The regular expressions of tokenizer files: Oniguruma's syntax, matched by backtracking over code points. What the
/// engine does not know is refused when the pattern is compiled.
namespace levin::text::detail {

/// A set of code points: `[^\s\p{L}]`.
class CharSet {
 public:
  void add(char32_t from, char32_t to) { ranges_.emplace_back(from, to); }
  void add_categories(uint32_t bits) { categories_ |= bits; }
  void add_script(uint32_t script) { scripts_.push_back(script); }
  enum Flag : uint8_t { kSpace = 1, kWord = 2, kAny = 4, kAlphabetic = 8 };
  void add_flag(Flag flag) { flags_ |= flag; }
  void add_set(CharSet set) { sets_.push_back(std::move(set)); }
  /// What is added after it makes a set of its own; the whole holds what both hold.
  void intersect(CharSet other);
  void negate() { negated_ = !negated_; }
  void ignore_case() { ignores_case_ = true; }
  /// Must be called once the set is complete.
  void finish();

  bool contains(char32_t point) const { return point < 256 ? low_[point] : holds(point); }

 private:
  bool holds(char32_t point) const;
  bool holds_one(char32_t point) const;

  std::vector<std::pair<char32_t, char32_t>> ranges_;
  std::vector<uint32_t> scripts_;
  std::vector<CharSet> sets_, also_;
  uint32_t categories_ = 0;
  uint8_t flags_ = 0;
  bool negated_ = false, ignores_case_ = false;
  std::bitset<256> low_;
};

struct RegexNode;
using RegexPointer = std::unique_ptr<RegexNode>;

/// The tree of a pattern.
struct RegexNode {
  enum class Kind { kEmpty, kSet, kChar, kSequence, kChoice, kRepeat, kLook, kAtomic, kAssert };
  enum class Assert { kLineStart, kLineEnd, kTextStart, kTextEnd, kTextEndOrNewline, kWord, kNotWord };
  static constexpr uint32_t kNoLimit = UINT32_MAX;

  Kind kind = Kind::kEmpty;
  std::vector<RegexPointer> parts;
  CharSet set;
  char32_t point = 0;
  bool ignores_case = false;
  uint32_t least = 0, most = 0;            // kRepeat
  bool greedy = true, possessive = false;  // kRepeat
  bool behind = false, negative = false;   // kLook
  Assert assertion = Assert::kTextStart;   // kAssert
};

/// Throws Error for what is no pattern, or not one that the engine runs.
RegexPointer parse_regex(std::string_view pattern);

class Regex {
 public:
  explicit Regex(std::string_view pattern);

  /// Steps that are left of the limit; a text's worth is made by budget().
  struct Budget {
    uint64_t steps = 0;
  };
  static Budget budget(std::string_view text) { return {uint64_t{10'000'000} + uint64_t{2'000} * text.size()}; }

  /// The first match that begins at `from` or later, or false. Takes from the budget, and throws when it is spent.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end, Budget& budget) const;

 private:
  struct Instruction {
    enum class Op : uint8_t {
      kSet,
      kChar,
      kFold,
      kSplit,
      kJump,
      kRun,
      kAssert,
      kLook,
      kAtomic,
      kMark,
      kAgain,
      kAt,
      kMatch
    };
    Op op = Op::kMatch;
    uint8_t flags = 0;
    uint32_t a = 0, b = 0, c = 0, d = 0;
  };
  struct Frame;

  void emit(const RegexNode& node, int depth);
  void emit_repeat(const RegexNode& node, int depth);
  uint32_t add(Instruction instruction);
  /// Runs from instruction `start` at `at`; the end of the match, or npos.
  size_t run(std::string_view text, uint32_t start, size_t at, size_t must_end, Budget& budget, int depth) const;

  std::string pattern_;
  std::vector<Instruction> program_;
  std::vector<CharSet> sets_;
  uint32_t marks_ = 0;
};

}  // namespace levin::text::detail
