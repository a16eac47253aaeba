#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "levin/core/error.h"
#include "levin/text/model.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

// All tokens by their bytes: nodes with sorted children, and a table for the first byte.
class ByteTrie {
 public:
  ByteTrie() : nodes_(1) { roots_.fill(kNone); }

  void add(std::string_view word, uint32_t id) {
    if (word.empty()) return;
    uint32_t node = 0;
    for (const char c : word) node = child(node, static_cast<unsigned char>(c));
    nodes_[node].id = id;
  }

  // Calls found(bytes, id) for each token that `text` begins with, short ones first.
  template <class Found>
  void each_prefix(std::string_view text, Found&& found) const {
    if (text.empty()) return;
    uint32_t node = roots_[static_cast<unsigned char>(text[0])];
    for (size_t i = 0; node != kNone;) {
      ++i;
      if (nodes_[node].id != kNone) found(i, nodes_[node].id);
      if (i == text.size()) return;
      node = find(node, static_cast<unsigned char>(text[i]));
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint32_t id = kNone;
    uint32_t first = kNone, next = kNone;  // child, sibling
    unsigned char byte = 0;
  };

  uint32_t find(uint32_t node, unsigned char byte) const {
    for (uint32_t at = nodes_[node].first; at != kNone; at = nodes_[at].next) {
      if (nodes_[at].byte == byte) return at;
    }
    return kNone;
  }
  uint32_t child(uint32_t node, unsigned char byte) {
    auto at = node == 0 ? roots_[byte] : find(node, byte);
    if (at != kNone) return at;
    at = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({.byte = byte});
    if (node == 0) {
      roots_[byte] = at;
    } else {
      nodes_[at].next = nodes_[node].first;
      nodes_[node].first = at;
    }
    return at;
  }

  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_;
};

class Unigram : public Model {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<uint32_t> unk_id, bool byte_fallback)
      : Model(std::move(vocabulary)), scores_(std::move(scores)), unk_id_(unk_id), byte_fallback_(byte_fallback) {
    LEVIN_CHECK(!unk_id_ || *unk_id_ < scores_.size(), "[tokenizer] unk_id is larger than the vocabulary");
    double lowest = std::numeric_limits<double>::infinity();
    for (const double score : scores_) {
      LEVIN_CHECK(!std::isnan(score), "[tokenizer] a score of the Unigram vocabulary is not a number");
      lowest = std::min(lowest, score);
    }
    unknown_score_ = lowest - 10.0;
    for (uint32_t id = 0; id < this->vocabulary().end(); ++id) {
      if (const auto* token = this->vocabulary().token(id)) {
        if (this->vocabulary().find(*token) == id) trie_.add(*token, id);
      }
    }
    for (unsigned byte = 0; byte_fallback_ && byte < 256; ++byte) {
      const auto id = this->vocabulary().find(byte_token(static_cast<unsigned char>(byte)));
      bytes_[byte] = id ? *id : kNone;
    }
  }

  void tokenize(std::string_view piece, bool, std::vector<ModelToken>& out) const override {
    struct Best {
      double score = 0;
      uint32_t begin = kNone, id = 0;
    };
    thread_local std::vector<Best> best;
    best.assign(piece.size() + 1, {});
    for (size_t at = 0; at < piece.size();) {
      const double here = best[at].score;
      const auto bytes = utf8_length(piece[at]);
      bool single = false;
      const auto offer = [&](size_t end, double score, uint32_t id) {
        auto& target = best[end];
        if (target.begin == kNone || score > target.score) target = {score, static_cast<uint32_t>(at), id};
      };
      trie_.each_prefix(piece.substr(at), [&](size_t length, uint32_t id) {
        offer(at + length, scores_[id] + here, id);
        single = single || length == bytes;
      });
      if (!single) {
        LEVIN_CHECK(unk_id_, "[tokenizer] a character is not in the vocabulary, and there is no unk_id");
        offer(at + bytes, unknown_score_ + here, *unk_id_);
      }
      at += bytes;
    }
    // From the end to the start; unknown neighbours are one.
    const auto before = out.size();
    bool after_unknown = false;
    for (size_t end = piece.size(); end > 0;) {
      const auto& node = best[end];
      const bool unknown = unk_id_ && node.id == *unk_id_;
      if (unknown && after_unknown)
        out.back().begin = node.begin;
      else
        out.push_back({node.id, node.begin, static_cast<uint32_t>(end), unknown});
      after_unknown = unknown;
      end = node.begin;
    }
    std::reverse(out.begin() + static_cast<long>(before), out.end());
    if (std::any_of(out.begin() + static_cast<long>(before), out.end(),
                    [](const auto& token) { return token.is_text; }))
      replace_unknown(piece, before, out);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void replace_unknown(std::string_view piece, size_t before, std::vector<ModelToken>& out) const {
    std::vector<ModelToken> made;
    for (size_t i = before; i < out.size(); ++i) {
      auto token = out[i];
      if (!token.is_text) {
        made.push_back(token);
        continue;
      }
      const auto text = piece.substr(token.begin, token.end - token.begin);
      if (const auto id = vocabulary().find(text)) {
        token.id = *id;
        made.push_back(token);
        continue;
      }
      const bool all = byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) {
                         return bytes_[static_cast<unsigned char>(c)] != kNone;
                       });
      if (!all) {
        made.push_back(token);
        continue;
      }
      for (const char c : text) made.push_back({bytes_[static_cast<unsigned char>(c)], token.begin, token.end});
    }
    out.resize(before);
    out.insert(out.end(), made.begin(), made.end());
  }

  std::vector<double> scores_;
  std::optional<uint32_t> unk_id_;
  bool byte_fallback_;
  double unknown_score_ = 0;
  ByteTrie trie_;
  std::array<uint32_t, 256> bytes_{};
};

}  // namespace

std::unique_ptr<Model> make_unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<uint32_t> unk_id,
                                    bool byte_fallback) {
  return std::make_unique<Unigram>(std::move(vocabulary), std::move(scores), unk_id, byte_fallback);
}

}  // namespace levin::text
