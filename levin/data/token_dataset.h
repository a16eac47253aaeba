#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "levin/core/batch.h"

namespace levin {

struct TokenDatasetOptions {
  /// Tokens of a sample.
  int64_t length = 1024;
  /// From the beginning of a sample to that of the next; 0: `length`, no token is an input twice.
  int64_t stride = 0;
  /// What a raw file holds: "uint16", "uint32" or "int32", little-endian. A .npy file says it itself.
  std::string dtype = "uint16";
  /// A token outside of [0, vocab_size) is an Error, here and not in the middle of an embedding; 0: not looked at.
  int64_t vocab_size = 0;
};

/// Windows of files of tokens, for language models: "input" int64 [length] and "target" int64 [length], the same one
/// further. No window crosses from one file to the next. Only what is asked for is read; a file that shrinks meanwhile
/// is an Error. A small handle: copies share the open files.
///
///     levin::TokenDataset data("train.bin", {.length = 256, .vocab_size = 50257});
class TokenDataset {
 public:
  explicit TokenDataset(const std::vector<std::filesystem::path>& files, TokenDatasetOptions options = {});
  explicit TokenDataset(const std::filesystem::path& file, TokenDatasetOptions options = {})
      : TokenDataset(std::vector{file}, std::move(options)) {}

  int64_t size() const { return size_; }
  Batch get(int64_t index) const;
  /// All tokens of the files.
  int64_t tokens() const { return tokens_; }
  const TokenDatasetOptions& options() const { return options_; }

 private:
  struct File;
  std::vector<std::shared_ptr<const File>> files_;
  TokenDatasetOptions options_;
  int64_t size_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace levin
