#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/generate/options.h"
#include "levin/text/tokenizer.h"

/// The bodies of requests. All of it is hostile: sizes, depth, types and ranges are checked, and an ApiError names the
/// field. Fields that are not known are ignored; known ones that cannot be obeyed are refused.
namespace levin::serve {

/// What a request is checked against.
struct ServedModel {
  std::string name;
  /// None: prompts are tokens.
  const text::Tokenizer* tokenizer = nullptr;
  int64_t vocab_size = 0;
  /// Tokens of prompt and text together; 0: no limit.
  int64_t context = 0;
  /// Tokens of prompt and text that the cache has room for; 0: no limit.
  int64_t cache_tokens = 0;
  /// What ends a text.
  std::vector<int64_t> eos_token_ids = {};
  /// What is done to a text before it becomes tokens; empty: nothing.
  std::function<std::string(const std::string&)> prepare = {};
  /// New tokens of a request that names no number and has no context to end it; no request may have more.
  int64_t max_tokens = 4096;
  /// Texts of one request: prompts times n.
  int64_t max_sequences = 128;
};

struct GenerationRequest {
  bool chat = false;
  std::vector<std::vector<int64_t>> prompts = {};
  /// The texts of the prompts, with `echo`.
  std::vector<std::string> echoed = {};
  /// num_return_sequences texts of each prompt.
  GenerateOptions options = {};
  bool stream = false, include_usage = false, echo = false;
  /// Log probabilities are asked for; options.top_logprobs of the likeliest tokens too.
  bool logprobs = false;
  /// No token is generated: the prompts are only scored (`echo` with max_tokens 0).
  bool score_only = false;

  size_t sequences() const { return prompts.size() * static_cast<size_t>(options.num_return_sequences); }
};

struct EmbeddingRequest {
  std::vector<std::vector<int64_t>> rows = {};
  bool base64 = false;
};

GenerationRequest completion_request(std::string_view body, const ServedModel& model);
GenerationRequest chat_request(std::string_view body, const ServedModel& model);
EmbeddingRequest embedding_request(std::string_view body, const ServedModel& model);

}  // namespace levin::serve
