#pragma once

#include <string>
#include <string_view>

namespace levin::text {

/// A tokenizer.json that does what the tokenizer.model of SentencePiece says, as transformers converts it.
std::string json_of_sentencepiece(std::string_view model);

}  // namespace levin::text
