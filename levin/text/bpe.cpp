#include <algorithm>
#include <array>
#include <bit>
#include <queue>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/model.h"
#include "levin/text/normalizers.h"
#include "levin/text/unicode/unicode.h"

namespace levin::text {
namespace {

struct Merge {
  uint32_t rank = UINT32_MAX;
  uint32_t id = 0;
};

// From a pair of ids to its merge: open addressing, half full at most.
class MergeTable {
 public:
  explicit MergeTable(size_t count) : slots_(std::bit_ceil(std::max<size_t>(count * 2, 16))) {}

  void set(uint32_t left, uint32_t right, Merge merge) {
    auto& slot = slots_[place(key(left, right))];
    slot = {key(left, right), merge};
  }
  Merge find(uint32_t left, uint32_t right) const { return slots_[place(key(left, right))].merge; }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }
  size_t place(uint64_t wanted) const {
    const size_t mask = slots_.size() - 1;
    uint64_t mixed = wanted * 0x9e3779b97f4a7c15u;
    mixed ^= mixed >> 32;
    size_t at = mixed & mask;
    while (slots_[at].key != wanted && slots_[at].key != kEmpty) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

struct Symbol {
  uint32_t id = 0;
  uint32_t bytes = 0;
};

class Bpe : public Model {
 public:
  Bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options)
      : Model(std::move(vocabulary)), options_(std::move(options)), merges_(merges.size()) {
    const auto& words = this->vocabulary();
    const size_t prefix = options_.continuing_subword_prefix.value_or("").size();
    const auto id_of = [&](const std::string& token) {
      const auto id = words.find(token);
      LEVIN_CHECK(id, "[tokenizer] a merge needs the token \"", shown(token), "\", which is not in the vocabulary");
      return *id;
    };
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const auto& [left, right] = merges[rank];
      LEVIN_CHECK(right.size() >= prefix, "[tokenizer] the merge of \"", shown(left), "\" and \"", shown(right),
                  "\" lacks the continuing_subword_prefix");
      merges_.set(id_of(left), id_of(right), {static_cast<uint32_t>(rank), id_of(left + right.substr(prefix))});
    }
    if (options_.unk_token) unknown_ = words.find(*options_.unk_token);
    if (options_.byte_fallback) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        if (const auto id = words.find(byte_token(static_cast<unsigned char>(byte)))) fallback_[byte] = *id;
      }
    }
    read_bytes();
  }

  bool reads_bytes() const override { return reads_bytes_; }

  void tokenize(std::string_view piece, bool bytes, std::vector<ModelToken>& out) const override {
    const auto size = static_cast<uint32_t>(piece.size());
    if (options_.ignore_merges) {
      if (bytes) {
        if (const auto found = byte_words_.find(piece); found != byte_words_.end()) {
          out.push_back({found->second, 0, size});
          return;
        }
      } else if (const auto id = vocabulary().find(piece)) {
        out.push_back({*id, 0, size});
        return;
      }
    }
    thread_local std::vector<Symbol> symbols;
    symbols.clear();
    if (bytes) {
      for (const char c : piece) symbols.push_back({byte_ids_[static_cast<unsigned char>(c)], 1});
    } else {
      read_symbols(piece, symbols);
    }
    if (symbols.size() <= kShort)
      merge_short(symbols);
    else
      merge_long(symbols);
    uint32_t at = 0;
    for (const auto& symbol : symbols) {
      out.push_back({symbol.id, at, at + symbol.bytes});
      at += symbol.bytes;
    }
  }

 private:
  static constexpr size_t kShort = 24;
  static constexpr uint32_t kNone = UINT32_MAX;

  // Byte-level vocabularies that know all bytes are read without making the text of their characters.
  void read_bytes() {
    if (options_.byte_fallback || options_.continuing_subword_prefix || options_.end_of_word_suffix) return;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto id = vocabulary().find(to_utf8(byte_to_char(static_cast<unsigned char>(byte))));
      if (!id) return;
      byte_ids_[byte] = *id;
    }
    reads_bytes_ = true;
    if (!options_.ignore_merges) return;
    for (uint32_t id = 0; id < vocabulary().end(); ++id) {
      const auto* token = vocabulary().token(id);
      if (!token || !valid_utf8(*token)) continue;
      std::string raw;
      bool fits = true;
      for (size_t at = 0; at < token->size() && fits;) {
        const auto [point, length] = decode_utf8(*token, at);
        const int byte = char_to_byte(point);
        fits = byte >= 0;
        raw += static_cast<char>(byte);
        at += length;
      }
      if (fits) byte_words_.insert_or_assign(std::move(raw), id);
    }
  }

  void read_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
    std::string word;
    std::optional<Symbol> unknown;
    for (size_t at = 0; at < piece.size();) {
      const auto bytes = utf8_length(piece[at]);
      const bool is_first = at == 0, is_last = at + bytes == piece.size();
      std::string_view text = piece.substr(at, bytes);
      at += bytes;
      if ((!is_first && options_.continuing_subword_prefix) || (is_last && options_.end_of_word_suffix)) {
        word.clear();
        if (!is_first && options_.continuing_subword_prefix) word = *options_.continuing_subword_prefix;
        word += text;
        if (is_last && options_.end_of_word_suffix) word += *options_.end_of_word_suffix;
        text = word;
      }
      if (const auto id = vocabulary().find(text)) {
        if (unknown) symbols.push_back(*unknown);
        unknown.reset();
        symbols.push_back({*id, bytes});
        continue;
      }
      if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char c) {
            return fallback_[static_cast<unsigned char>(c)] != kNone;
          })) {
        for (const char c : text) symbols.push_back({fallback_[static_cast<unsigned char>(c)], 1});
        continue;
      }
      if (!options_.unk_token) continue;  // dropped, as the file asks for
      LEVIN_CHECK(unknown_, "[tokenizer] a character is not in the vocabulary, and neither is the unk_token \"",
                  shown(*options_.unk_token), "\"");
      if (unknown && options_.fuse_unk) {
        unknown->bytes += bytes;
      } else {
        if (unknown) symbols.push_back(*unknown);
        unknown = Symbol{*unknown_, bytes};
      }
    }
    if (unknown) symbols.push_back(*unknown);
  }

  // Merges the pair of the lowest rank, of equal ones the first, until none is left.
  void merge_short(std::vector<Symbol>& symbols) const {
    std::array<Merge, kShort> pairs;
    size_t count = symbols.size();
    for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(symbols[i].id, symbols[i + 1].id);
    while (count > 1) {
      size_t best = 0;
      for (size_t i = 1; i + 1 < count; ++i) {
        if (pairs[i].rank < pairs[best].rank) best = i;
      }
      if (pairs[best].rank == UINT32_MAX) break;
      symbols[best] = {pairs[best].id, symbols[best].bytes + symbols[best + 1].bytes};
      for (size_t i = best + 1; i + 1 < count; ++i) {
        symbols[i] = symbols[i + 1];
        pairs[i] = pairs[i + 1];
      }
      --count;
      if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1].id, symbols[best].id);
      if (best + 1 < count) pairs[best] = merges_.find(symbols[best].id, symbols[best + 1].id);
    }
    symbols.resize(count);
  }

  // The same with a heap; an entry whose pair is no longer there is passed over.
  void merge_long(std::vector<Symbol>& symbols) const {
    struct Entry {
      uint32_t rank, at, id;
      bool operator<(const Entry& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
    };
    const auto count = static_cast<uint32_t>(symbols.size());
    std::vector<uint32_t> next(count), before(count);
    std::vector<Entry> entries;
    entries.reserve(count * 2);
    for (uint32_t i = 0; i < count; ++i) {
      next[i] = i + 1;
      before[i] = i == 0 ? kNone : i - 1;
    }
    for (uint32_t i = 0; i + 1 < count; ++i) {
      const auto merge = merges_.find(symbols[i].id, symbols[i + 1].id);
      if (merge.rank != UINT32_MAX) entries.push_back({merge.rank, i, merge.id});
    }
    std::priority_queue<Entry> queue(std::less<Entry>(), std::move(entries));
    while (!queue.empty()) {
      const auto top = queue.top();
      queue.pop();
      auto& left = symbols[top.at];
      const auto right = next[top.at];
      if (left.bytes == 0 || right == count) continue;
      const auto now = merges_.find(left.id, symbols[right].id);
      if (now.rank == UINT32_MAX || now.id != top.id) continue;
      left = {top.id, left.bytes + symbols[right].bytes};
      symbols[right].bytes = 0;
      next[top.at] = next[right];
      if (next[right] != count) before[next[right]] = top.at;
      if (const auto previous = before[top.at]; previous != kNone) {
        const auto merge = merges_.find(symbols[previous].id, left.id);
        if (merge.rank != UINT32_MAX) queue.push({merge.rank, previous, merge.id});
      }
      if (next[top.at] != count) {
        const auto merge = merges_.find(left.id, symbols[next[top.at]].id);
        if (merge.rank != UINT32_MAX) queue.push({merge.rank, top.at, merge.id});
      }
    }
    std::erase_if(symbols, [](const Symbol& symbol) { return symbol.bytes == 0; });
  }

  BpeOptions options_;
  MergeTable merges_;
  std::optional<uint32_t> unknown_;
  std::array<uint32_t, 256> fallback_ = [] {
    std::array<uint32_t, 256> none;
    none.fill(kNone);
    return none;
  }();
  std::array<uint32_t, 256> byte_ids_{};
  std::unordered_map<std::string, uint32_t, StringHash, std::equal_to<>> byte_words_;
  bool reads_bytes_ = false;
};

}  // namespace

std::unique_ptr<Model> make_bpe(Vocabulary vocabulary, const Merges& merges, BpeOptions options) {
  return std::make_unique<Bpe>(std::move(vocabulary), merges, std::move(options));
}

}  // namespace levin::text
