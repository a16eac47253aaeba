#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "levin/program/recipes/texts.h"
#include "levin/text/tokenizer.h"

namespace levin::cli {

struct TextTokensOptions {
  /// "chars": each character that occurs is a token; "bpe": trained on the text; else a folder with a tokenizer.
  std::string tokenizer = "chars";
  /// Of "bpe".
  int64_t vocab_size = 4096;
  /// The end of the text that is kept for validation.
  double val_fraction = 0.1;
  /// Where tokens are kept; empty: $LEVIN_DATA/tokens, else ~/.cache/levin/tokens.
  std::filesystem::path cache = {};
};

/// A text as tokens, in files that a TokenDataset reads.
struct TextTokens {
  /// Has train.bin and, unless nothing is kept for validation, val.bin.
  std::filesystem::path folder;
  /// Of train.bin and val.bin: "uint16" or "uint32".
  std::string dtype;
  int64_t train_tokens = 0, val_tokens = 0, val_characters = 0;
  /// Where the files of the tokenizer are.
  std::filesystem::path tokenizer_folder;
  text::Tokenizer tokenizer;
  /// Two tokenizers with the same one give the same tokens.
  std::string fingerprint;
};

/// Tokenizes a text once: what lies in the cache under the checksum of the text and the options is taken from there.
TextTokens prepare_tokens(const Texts& texts, const TextTokensOptions& options);

}  // namespace levin::cli
