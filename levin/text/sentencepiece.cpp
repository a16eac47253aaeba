#include "levin/text/sentencepiece.h"

#include "levin/core/error.h"

namespace levin::text {
std::string json_of_sentencepiece(std::string_view) {
  ::levin::detail::fail("[tokenizer] later");
}
}  // namespace levin::text
