#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/generate/serve/model_thread.h"
#include "levin/generate/serve/requests.h"
#include "levin/text/tokenizer.h"

/// The JSON of answers, in OpenAI's shape.
namespace levin::serve {

/// What single tokens read as. One that is part of a character reads as U+FFFD.
class TokenTexts {
 public:
  explicit TokenTexts(const text::Tokenizer* tokenizer);
  std::string operator()(int64_t id) const;

 private:
  const text::Tokenizer* tokenizer_;
  /// Some decoders drop a blank at the beginning: a token is read behind this one.
  std::optional<int64_t> before_ = {};
  std::string before_text_ = {};
};

/// What every answer to a request says, and its body.
class Answer {
 public:
  Answer(const GenerationRequest& request, std::string model, const TokenTexts& texts);

  const GenerationRequest& request() const { return request_; }
  /// Of each prompt, for `echo` with `logprobs`: before the first of what follows.
  void set_scores(std::vector<PromptScore> scores) { scores_ = std::move(scores); }

  /// The whole body. `results`: one for each sequence.
  std::string whole(const std::vector<Generated>& results) const;

  /// Server-sent events. First of all: the role of a chat, the prompts of `echo`.
  std::string begin();
  std::string piece(const Piece& piece);
  /// The usage, if it was asked for, and [DONE].
  std::string end();
  /// An event for a failure amid a stream.
  static std::string failure(const std::string& error_json);

  int64_t prompt_tokens() const;

 private:
  struct Sequence {
    int64_t tokens = 0;
    /// Characters so far, for text_offset.
    int64_t offset = 0;
    std::string unsent = {};
  };

  GenerationRequest request_;
  std::string id_, model_;
  int64_t created_;
  const TokenTexts& texts_;
  std::vector<PromptScore> scores_;
  std::vector<Sequence> sequences_;
};

/// The body of /v1/embeddings: rows of float32.
std::string embeddings_json(const EmbeddingRequest& request, const std::string& model, const float* vectors,
                            int64_t width);
/// The body of /v1/models, and of one of them.
std::string models_json(const std::string& model, int64_t created, int64_t context);
std::string model_json(const std::string& model, int64_t created, int64_t context);

}  // namespace levin::serve
