#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

/// The models of tokenizer.json: a piece of text becomes tokens.
namespace levin::text {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

/// Tokens and their ids. Ids may have gaps; of equal tokens the last one counts.
class Vocabulary {
 public:
  /// An id of 2^28 or more is an Error.
  void add(std::string token, uint64_t id);

  std::optional<uint32_t> find(std::string_view token) const;
  /// Null when no token has the id.
  const std::string* token(uint32_t id) const { return id < tokens_.size() ? tokens_[id] : nullptr; }
  size_t size() const { return ids_.size(); }
  /// One more than the largest id.
  size_t end() const { return tokens_.size(); }

 private:
  std::unordered_map<std::string, uint32_t, StringHash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;
};

/// A token of a piece: the bytes of the piece that it stands for.
struct ModelToken {
  uint32_t id = 0;
  uint32_t begin = 0, end = 0;
  /// Its text is that of the piece, not that of the vocabulary.
  bool is_text = false;
};

class Model {
 public:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Model() = default;

  /// Appends the tokens of a piece that is not empty. With `bytes` the piece has bytes, and the model reads the
  /// characters that stand for them; only a model that reads_bytes() may be asked so.
  virtual void tokenize(std::string_view piece, bool bytes, std::vector<ModelToken>& out) const = 0;
  virtual bool reads_bytes() const { return false; }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  Vocabulary vocabulary_;
};

struct BpeOptions {
  std::optional<std::string> unk_token, continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};
using Merges = std::vector<std::pair<std::string, std::string>>;

std::unique_ptr<Model> make_bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options);
std::unique_ptr<Model> make_word_piece(Vocabulary vocabulary, std::string unk_token, std::string prefix,
                                       size_t max_input_chars_per_word);
std::unique_ptr<Model> make_word_level(Vocabulary vocabulary, std::string unk_token);
/// `scores` are by id.
std::unique_ptr<Model> make_unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<uint32_t> unk_id,
                                    bool byte_fallback);

/// "<0xE2>"
std::string byte_token(unsigned char byte);

}  // namespace levin::text
