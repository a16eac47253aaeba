#pragma once

#include <vector>

#include "levin/generate/generate.h"

namespace levin::detail {

/// generate() through an engine of requests.
std::vector<Generated> generate_paged(const models::Decoder& model, const text::Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                      const OnToken& on_token);

}  // namespace levin::detail
