#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "levin/text/chat_template.h"
#include "levin/text/tokenizer.h"

namespace levin::text {

/// A text as tokens of which a model learns a part.
struct LearnedTokens {
  std::vector<int64_t> ids;
  /// 1 for a token that is learned, one entry per token.
  std::vector<uint8_t> learned;
};

/// A prompt with its completion, encoded as one text, and the eos token where the tokenizer has one. Learned is what
/// begins in the completion, and the eos.
LearnedTokens completion_tokens(const Tokenizer& tokenizer, std::string_view prompt, std::string_view completion);

/// A chat by the tokenizer's template. Learned is what stands in its {% generation %} blocks. Where it has none, these
/// are the turns of the assistant with what ends them, found by rendering: a turn is what the template adds to the chat
/// before it with add_generation_prompt. Then a template that changes earlier turns when later ones follow is an Error.
LearnedTokens chat_tokens(const Tokenizer& tokenizer, std::span<const ChatMessage> messages);

}  // namespace levin::text
