#pragma once

#include <vector>

#include "levin/generate/decode_batch.h"
#include "levin/generate/generate.h"

namespace levin::detail {

/// generate(); without a tokenizer where that is null.
std::vector<Generated> generated(models::Decoder model, const text::Tokenizer* tokenizer,
                                 const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                 const OnToken& on_token, RunAhead run_ahead = RunAhead::kWithGraphs);

}  // namespace levin::detail
