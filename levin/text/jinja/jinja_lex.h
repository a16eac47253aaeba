#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace levin::text::jinja {

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 0;
};

/// The tokens of a template. Blanks that its tags take away are gone: a block takes those between it and the start of
/// its line, and the newline after it.
std::vector<Token> lex_template(std::string_view source);

}  // namespace levin::text::jinja
