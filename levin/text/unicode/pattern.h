#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace levin::text {

namespace detail {
class Regex;
}

/// A part of a text; all parts together are the text.
struct Part {
  uint32_t begin = 0, end = 0;
  bool is_match = false;
};

/// What a tokenizer file calls a pattern: a string, or a regular expression in Oniguruma's syntax. The expressions of
/// GPT-2, Llama 3, Qwen2 and BLOOM have scanners of their own; others are run by an engine that gives up, with an
/// Error, after a number of steps that grows with the text.
class Pattern {
 public:
  static Pattern string(std::string content);
  static Pattern regex(std::string_view expression);
  /// The engine only, for tests of the scanners.
  static Pattern engine(std::string_view expression);

  /// Appends the matches of a text of valid UTF-8 and what is between them, in order.
  void parts(std::string_view text, std::vector<Part>& out) const;

  /// Finds the end of the match that begins at `at`; with such a scanner every text is matches alone.
  using Scanner = size_t (*)(std::string_view text, size_t at);
  /// Null where the pattern may leave something between its matches.
  Scanner scanner() const { return scanner_; }

 private:
  std::string content_;
  std::shared_ptr<const detail::Regex> regex_;
  Scanner scanner_ = nullptr;
  bool is_bloom_ = false;
};

/// The scanner of the expression that the pre-tokenizer ByteLevel has built in: GPT-2's.
size_t scan_gpt2(std::string_view text, size_t at);

}  // namespace levin::text
