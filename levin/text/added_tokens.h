#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "levin/text/model.h"
#include "levin/text/normalizers.h"
#include "levin/text/pre_tokenizers.h"

namespace levin::text {

/// A token that is found in the text before the model sees it.
struct AddedToken {
  int64_t id = 0;  ///< -1 for the next free one.
  std::string content;
  bool single_word = false;  ///< Not beside a letter, digit or underscore.
  bool lstrip = false;       ///< Takes the white space before it.
  bool rstrip = false;       ///< Takes the white space after it.
  bool normalized = true;    ///< Looked for in the normalized text, and normalized itself.
  bool special = false;      ///< Left out by decode() on demand.
};

class AddedTokens {
 public:
  /// Ids of tokens that the vocabulary has come from there.
  AddedTokens(std::vector<AddedToken> tokens, const Vocabulary& vocabulary, const Normalizer* normalizer);

  /// Cuts the tokens that match out of the pieces. `special` false leaves special tokens as the text that they are.
  void cut(Pieces& pieces, bool normalized, bool special) const;

  std::optional<uint32_t> find(std::string_view content) const;
  /// As decode() sees it: the normalized text of a normalized token. Null when the id is not here.
  const std::string* text(uint32_t id) const;
  bool is_special(const std::string& text) const { return special_.contains(text); }
  const std::vector<AddedToken>& list() const { return tokens_; }

 private:
  /// The longest token at each place of a text, by bytes.
  class Finder {
   public:
    Finder() : nodes_(1) {}
    void add(std::string_view word, uint32_t index);
    bool empty() const { return nodes_.size() == 1; }
    /// Where the first token at or after `from` begins and ends; false when there is none.
    bool find(std::string_view text, size_t from, size_t& begin, size_t& end, uint32_t& index) const;

   private:
    struct Node {
      uint32_t index = UINT32_MAX, first = 0, next = 0;
      unsigned char byte = 0;
    };
    uint32_t child(uint32_t node, unsigned char byte) const;
    std::vector<Node> nodes_;
    std::array<bool, 256> starts_{};
  };

  void cut_piece(std::string_view text, const Piece& piece, const Finder& finder, bool special,
                 std::vector<Piece>& out) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t, StringHash, std::equal_to<>> by_content_;
  std::unordered_map<uint32_t, uint32_t> by_id_;
  std::unordered_set<std::string> special_;
  Finder plain_, normalized_;
};

}  // namespace levin::text
