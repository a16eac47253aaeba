#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/model.h"

namespace levin::text {

/// Pieces and their tokens: words repeat. Of one thread at a time. When it is full it keeps what it has.
class PieceCache {
 public:
  PieceCache() : slots_(kSlots) {}

  static uint64_t hash(std::string_view piece) {
    constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
    uint64_t value = piece.size() * kMix;
    const char* at = piece.data();
    size_t left = piece.size();
    for (; left >= 8; at += 8, left -= 8) {
      uint64_t word;
      std::memcpy(&word, at, 8);
      value = mix(value ^ word);
    }
    uint64_t word = 0;
    std::memcpy(&word, at, left);
    return mix(value ^ word);
  }

  /// Null when the piece is not known.
  bool find(std::string_view piece, uint64_t hash, std::span<const ModelToken>& tokens) const {
    for (size_t at = hash & (kSlots - 1); slots_[at].tag != 0; at = (at + 1) & (kSlots - 1)) {
      const auto& slot = slots_[at];
      if (slot.tag == tag_of(hash) && slot.size == piece.size() &&
          std::memcmp(texts_.data() + slot.text, piece.data(), piece.size()) == 0) {
        tokens = {tokens_.data() + slot.first, slot.count};
        return true;
      }
    }
    return false;
  }

  void add(std::string_view piece, uint64_t hash, std::span<const ModelToken> tokens) {
    if (piece.size() > kLongest || count_ == kMost) return;
    size_t at = hash & (kSlots - 1);
    while (slots_[at].tag != 0) at = (at + 1) & (kSlots - 1);
    slots_[at] = {tag_of(hash), static_cast<uint32_t>(texts_.size()), static_cast<uint32_t>(tokens_.size()),
                  static_cast<uint16_t>(piece.size()), static_cast<uint16_t>(tokens.size())};
    texts_ += piece;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    ++count_;
  }

  /// Longer pieces are not kept.
  static constexpr size_t kLongest = 64;

 private:
  static constexpr size_t kSlots = size_t{1} << 16, kMost = kSlots / 2;
  struct Slot {
    uint32_t tag = 0;  // 0: empty
    uint32_t text = 0, first = 0;
    uint16_t size = 0, count = 0;
  };
  static uint64_t mix(uint64_t value) {
    value *= 0xd6e8feb86659fd93u;
    return value ^ value >> 32;
  }
  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32) | 1; }

  std::vector<Slot> slots_;
  std::string texts_;
  std::vector<ModelToken> tokens_;
  size_t count_ = 0;
};

}  // namespace levin::text
