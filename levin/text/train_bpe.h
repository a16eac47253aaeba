#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin::text {

struct TrainBpeOptions {
  /// Get the first ids.
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  /// A pair of tokens that is seen less often is not merged.
  uint64_t min_frequency = 0;
  /// Put a blank before every text.
  bool add_prefix_space = false;
  /// The regular expression that cuts texts into words; GPT-2's if empty.
  std::string pattern = {};
};

/// Trains a byte-level BPE on the lines of text files, and gives the content of a tokenizer.json. The merges are those
/// of the Python package's BpeTrainer with the alphabet of all bytes; training ends early when no pair is left.
///
///     levin::write_file("tokenizer.json", levin::text::train_bpe(files, 32'000));
std::string train_bpe(std::span<const std::filesystem::path> files, size_t vocab_size,
                      const TrainBpeOptions& options = {});

/// The same for texts that `next` hands over until it returns false.
std::string train_bpe(const std::function<bool(std::string_view& text)>& next, size_t vocab_size,
                      const TrainBpeOptions& options = {});

}  // namespace levin::text
