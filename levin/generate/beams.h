#pragma once

#include <vector>

#include "levin/generate/generate.h"

namespace levin::detail {

/// Beam search with transformers' rules: the best num_return_sequences of each prompt, best first. Tokens are told when
/// the beams of a prompt have ended.
std::vector<Generated> generate_beams(models::Decoder& model, const text::Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                      const OnToken& on_token);

}  // namespace levin::detail
