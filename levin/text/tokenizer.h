#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/encoding.h"

namespace levin::text {

struct EncodeOptions {
  /// Let the post-processor add its tokens (bos, [CLS]).
  bool add_special_tokens = true;
  /// False: the text of a special token inside the input is plain text, so that a user cannot write one.
  bool special_tokens_in_text = true;
  /// Fill Encoding::tokens.
  bool tokens = true;
  /// Fill Encoding::offsets.
  bool offsets = true;
};

/// What tokenizer_config.json and the files beside it say.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, unk_token, pad_token, cls_token, sep_token, mask_token;
  /// The template of chats, and those that have a name ("tool_use").
  std::optional<std::string> chat_template;
  std::map<std::string, std::string> named_chat_templates;
  /// "left" or "right"; empty when no file says it.
  std::string padding_side;
  std::optional<int64_t> model_max_length;
  std::optional<bool> add_bos_token, add_eos_token, clean_up_tokenization_spaces;
};

/// A tokenizer as the Python packages `tokenizers` and `transformers` save it: the same ids, tokens, offsets and texts.
///
///     const auto tokenizer = levin::text::Tokenizer::from_folder("gpt2");
///     const auto encoding = tokenizer.encode("Hello, world");
///     tokenizer.decode(encoding.ids);  // "Hello, world"
///
/// A copy shares everything with its original. Threads may share one object.
class Tokenizer {
 public:
  /// A folder with tokenizer.json, or tokenizer.model, or vocab.json and merges.txt, or vocab.txt (in this order), and
  /// tokenizer_config.json.
  static Tokenizer from_folder(const std::filesystem::path& folder);
  /// A tokenizer.json, or a tokenizer.model of SentencePiece.
  static Tokenizer from_file(const std::filesystem::path& file);
  /// The content of a tokenizer.json.
  static Tokenizer from_json(std::string_view json);
  /// The content of a tokenizer.model.
  static Tokenizer from_sentencepiece(std::string_view model);

  /// `text` must be UTF-8.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Two texts that belong together, joined as the post-processor says.
  Encoding encode_pair(std::string_view text, std::string_view second, const EncodeOptions& options = {}) const;
  /// The encoding of each text, on `threads` threads; 0 for one per core.
  std::vector<Encoding> encode_batch(std::span<const std::string> texts, const EncodeOptions& options = {},
                                     int threads = 0) const;
  /// An id that the tokenizer does not have is left out, as the Python package does it.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = true) const;

  std::optional<int64_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int64_t id) const;
  /// Number of tokens, with the added ones.
  int64_t vocab_size() const;
  /// One more than the largest id: rows that an embedding needs.
  int64_t id_end() const;
  bool is_special(int64_t id) const;

  const TokenizerConfig& config() const;

  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

 private:
  std::shared_ptr<const Parts> parts_;
};

/// Decodes ids one by one. What it gives is always whole characters; all of it together is the text that decode()
/// gives.
///
///     DecodeStream stream(tokenizer);
///     for (const auto id : ids) std::cout << stream.step(id);
///     std::cout << stream.finish();
class DecodeStream {
 public:
  explicit DecodeStream(Tokenizer tokenizer, bool skip_special_tokens = true)
      : tokenizer_(std::move(tokenizer)), skip_special_tokens_(skip_special_tokens) {}

  /// The text that has become certain; often empty within a character of several tokens.
  std::string step(int64_t id);
  /// What is left: the U+FFFD of bytes that never became a character.
  std::string finish();

 private:
  std::string advance(bool is_last);

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::vector<int64_t> ids_;  // those that the next text may depend on
  std::string prefix_;        // the text of the first prefix_ids_ of them, which was given
  size_t prefix_ids_ = 0;
};

}  // namespace levin::text
