#pragma once

#include <memory>
#include <vector>

#include "levin/generate/decode_batch.h"
#include "levin/generate/generate.h"

/// What is behind generate(); without a tokenizer where that is null.
namespace levin::detail {

/// `graph_device` as in DecodeBatchOptions.
std::vector<Generated> generated(models::Decoder model, const text::Tokenizer* tokenizer,
                                 const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                 const OnToken& on_token, RunAhead run_ahead = RunAhead::kWithGraphs,
                                 const std::shared_ptr<GraphDevice>& graph_device = nullptr);

/// The same through an engine of requests.
std::vector<Generated> generate_paged(const models::Decoder& model, const text::Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                      const OnToken& on_token);

}  // namespace levin::detail
