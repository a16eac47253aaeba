#include "levin/text/json_reader.h"

#include "levin/core/error.h"

namespace levin::text {

void check_json_depth(std::string_view text, std::string_view name) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      LEVIN_CHECK(++depth <= 64, "[tokenizer] ", name, " is nested too deeply");
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace levin::text
