#include "levin/text/added_tokens.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::text {

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  auto free = static_cast<int64_t>(vocabulary.end());
  for (const auto& token : tokens) {
    if (!vocabulary.find(token.content)) free = std::max(free, token.id + 1);
  }
  for (auto& token : tokens) {
    if (token.content.empty()) continue;
    if (const auto known = vocabulary.find(token.content)) token.id = *known;
    if (token.id < 0) token.id = free++;
    LEVIN_CHECK(token.id >= 0 && token.id < (int64_t{1} << 28), "[tokenizer] the added token \"", shown(token.content),
                "\" has the id ", token.id, ", which cannot be");
    const auto* taken = vocabulary.token(static_cast<uint32_t>(token.id));
    LEVIN_CHECK(!taken || *taken == token.content, "[tokenizer] the added token \"", shown(token.content),
                "\" has the id ", token.id, " of the token \"", shown(taken ? *taken : ""), "\"");
    const auto id = static_cast<uint32_t>(token.id);
    if (const auto before = by_content_.find(token.content); before != by_content_.end()) {
      tokens_[before->second] = token;  // written twice: the last one counts
      by_id_[id] = before->second;
      if (token.special) special_.insert(token.content);
      continue;
    }
    LEVIN_CHECK(!by_id_.contains(id), "[tokenizer] two added tokens have the id ", id);
    const auto index = static_cast<uint32_t>(tokens_.size());
    by_content_.emplace(token.content, index);
    by_id_.emplace(id, index);
    if (token.special) special_.insert(token.content);
    tokens_.push_back(std::move(token));
  }
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    texts_.push_back(tokens_[i].content);
    if (tokens_[i].normalized && normalizer) {
      Aligned text(tokens_[i].content);
      normalizer->apply(text);
      texts_.back() = std::string(text.text());
    }
    (tokens_[i].normalized ? normalized_ : plain_).add(texts_.back(), i);
  }
}

std::optional<uint32_t> AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  if (found == by_content_.end()) return std::nullopt;
  return static_cast<uint32_t>(tokens_[found->second].id);
}

const std::string* AddedTokens::text(uint32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &texts_[found->second];
}

uint32_t AddedTokens::Finder::child(uint32_t node, unsigned char byte) const {
  for (uint32_t at = nodes_[node].first; at != 0; at = nodes_[at].next) {
    if (nodes_[at].byte == byte) return at;
  }
  return 0;
}

void AddedTokens::Finder::add(std::string_view word, uint32_t index) {
  if (word.empty()) return;
  starts_[static_cast<unsigned char>(word[0])] = true;
  uint32_t node = 0;
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    auto at = child(node, byte);
    if (at == 0) {
      at = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.next = nodes_[node].first, .byte = byte});
      nodes_[node].first = at;
    }
    node = at;
  }
  nodes_[node].index = index;
}

bool AddedTokens::Finder::find(std::string_view text, size_t from, size_t& begin, size_t& end, uint32_t& index) const {
  for (begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    uint32_t node = 0;
    end = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      node = child(node, static_cast<unsigned char>(text[at]));
      if (node == 0) break;
      if (nodes_[node].index != UINT32_MAX) {
        index = nodes_[node].index;
        end = at + 1;
      }
    }
    if (end > 0) return true;
  }
  return false;
}

void AddedTokens::cut_piece(std::string_view text, const Piece& piece, const Finder& finder, bool special,
                            std::vector<Piece>& out) const {
  const auto add = [&](size_t begin, size_t end, int64_t token) {
    if (begin < end)
      out.push_back({static_cast<uint32_t>(piece.begin + begin), static_cast<uint32_t>(piece.begin + end), token});
  };
  const auto before = [&](size_t at) {
    do --at;
    while (at > 0 && (text[at] & 0xc0) == 0x80);
    return at;
  };
  size_t rest = 0, begin = 0, end = 0;
  uint32_t index = 0;
  for (size_t from = 0; finder.find(text, from, begin, end, index);) {
    from = end;
    const auto& token = tokens_[index];
    if (!special && special_.contains(token.content)) continue;
    if (token.single_word) {
      if (begin > 0 && properties(decode_utf8(text, before(begin)).point).is_wide_word()) continue;
      if (end < text.size() && properties(decode_utf8(text, end).point).is_wide_word()) continue;
    }
    if (token.lstrip) {
      while (begin > rest) {
        const auto last = before(begin);
        if (!properties(decode_utf8(text, last).point).is_space()) break;
        begin = last;
      }
      begin = std::max(begin, rest);
    }
    if (token.rstrip) {
      while (end < text.size() && properties(decode_utf8(text, end).point).is_space()) end += utf8_length(text[end]);
    }
    add(rest, begin, -1);
    add(begin, end, token.id);
    rest = end;
  }
  add(rest, text.size(), -1);
}

void AddedTokens::cut(Pieces& pieces, bool normalized, bool special) const {
  const auto& finder = normalized ? normalized_ : plain_;
  if (finder.empty()) return;
  std::vector<Piece> out;
  for (const auto& piece : pieces.list) {
    if (piece.token >= 0)
      out.push_back(piece);
    else
      cut_piece(pieces.text.text().substr(0, piece.end).substr(piece.begin), piece, finder, special, out);
  }
  pieces.list = std::move(out);
}

}  // namespace levin::text
