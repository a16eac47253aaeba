#include "levin/text/model.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {

void Vocabulary::add(std::string token, uint64_t id) {
  LEVIN_CHECK(id < (uint64_t{1} << 28), "[tokenizer] the token \"", shown(token), "\" has the id ", id,
              ", which is too large");
  const auto [place, is_new] = ids_.insert_or_assign(std::move(token), static_cast<uint32_t>(id));
  static_cast<void>(is_new);
  // A gap costs memory, so a file cannot claim many ids that it has no tokens for.
  LEVIN_CHECK(id < 1'000'000 || id < 64 * ids_.size(), "[tokenizer] the token \"", shown(place->first),
              "\" has the id ", id, ", but there are ", ids_.size(), " tokens before it");
  if (id >= tokens_.size()) tokens_.resize(id + 1, nullptr);
  tokens_[id] = &place->first;
}

std::optional<uint32_t> Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::string byte_token(unsigned char byte) {
  constexpr char digits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
}

namespace {

uint32_t find_unknown(const Vocabulary& vocabulary, std::string_view unk_token) {
  const auto id = vocabulary.find(unk_token);
  LEVIN_CHECK(id, "[tokenizer] a word is not in the vocabulary, and neither is the unk_token \"", shown(unk_token),
              "\"");
  return *id;
}

class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, std::string unk_token, std::string prefix, size_t most)
      : Model(std::move(vocabulary)), unk_token_(std::move(unk_token)), prefix_(std::move(prefix)), most_(most) {
    for (uint32_t id = 0; id < this->vocabulary().end(); ++id) {
      if (const auto* token = this->vocabulary().token(id)) longest_ = std::max(longest_, token->size());
    }
  }

  void tokenize(std::string_view piece, bool, std::vector<ModelToken>& out) const override {
    const auto before = out.size();
    const auto unknown = [&] {
      out.resize(before);
      out.push_back({find_unknown(vocabulary(), unk_token_), 0, static_cast<uint32_t>(piece.size())});
    };
    if (count_points(piece) > most_) return unknown();
    std::string word;
    for (size_t begin = 0; begin < piece.size();) {
      word = begin > 0 ? prefix_ : std::string();
      const size_t head = word.size();
      size_t end = std::min(piece.size(), begin + longest_);
      while (end < piece.size() && end > begin && (piece[end] & 0xc0) == 0x80) --end;
      word += piece.substr(begin, end - begin);
      std::optional<uint32_t> id;
      while (end > begin && !(id = vocabulary().find(word))) {
        do --end;
        while (end > begin && (piece[end] & 0xc0) == 0x80);
        word.resize(head + end - begin);
      }
      if (!id) return unknown();
      out.push_back({*id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
      begin = end;
    }
  }

 private:
  std::string unk_token_, prefix_;
  size_t most_, longest_ = 0;
};

class WordLevel : public Model {
 public:
  WordLevel(Vocabulary vocabulary, std::string unk_token)
      : Model(std::move(vocabulary)), unk_token_(std::move(unk_token)) {}
  void tokenize(std::string_view piece, bool, std::vector<ModelToken>& out) const override {
    const auto id = vocabulary().find(piece);
    out.push_back({id ? *id : find_unknown(vocabulary(), unk_token_), 0, static_cast<uint32_t>(piece.size())});
  }

 private:
  std::string unk_token_;
};

}  // namespace

std::unique_ptr<Model> make_word_piece(Vocabulary vocabulary, std::string unk_token, std::string prefix,
                                       size_t max_input_chars_per_word) {
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(unk_token), std::move(prefix),
                                     max_input_chars_per_word);
}

std::unique_ptr<Model> make_word_level(Vocabulary vocabulary, std::string unk_token) {
  return std::make_unique<WordLevel>(std::move(vocabulary), std::move(unk_token));
}

}  // namespace levin::text
