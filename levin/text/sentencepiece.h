#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace levin::text {

/// How a SentencePiece model is used; the file itself does not say it.
enum class SentencePieceKind {
  kAuto,        ///< BPE as Llama, Unigram with a prefix blank and single blanks.
  kLlama,       ///< BPE with byte fallback.
  kT5,          ///< Unigram, 100 more tokens, </s> at the end.
  kXlmRoberta,  ///< Unigram, ids moved by one, <s> and </s> around.
};

struct SentencePieceOptions {
  SentencePieceKind kind = SentencePieceKind::kAuto;
  std::optional<bool> add_bos_token, add_eos_token;
  /// Names of T5's more tokens.
  int extra_ids = 100;
};

/// A tokenizer.json that does what the tokenizer.model of SentencePiece says, as transformers converts it.
std::string json_of_sentencepiece(std::string_view model, const SentencePieceOptions& options = {});

}  // namespace levin::text
