#include "levin/text/normalizers.h"

#include <algorithm>
#include <array>

#include "levin/core/error.h"

namespace levin::text {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

class NormalFormNormalizer : public Normalizer {
 public:
  explicit NormalFormNormalizer(NormalForm form) : form_(form) {}
  void apply(Aligned& text) const override {
    if (is_ascii(text.text())) return;
    const auto changes = normal_form(text.text(), form_);
    // A text that is in the form already keeps its alignment without a table.
    std::string made;
    made.reserve(text.text().size());
    bool moved = false;
    for (const auto& [point, change] : changes) {
      append_utf8(made, point);
      moved = moved || change != 0;
    }
    if (moved || made != text.text()) text.transform(changes);
  }

 private:
  NormalForm form_;
};

void lower(Aligned& text) {
  std::vector<Change> changes;
  changes.reserve(text.text().size());
  std::u32string points;
  bool any = false;
  for (size_t at = 0; at < text.text().size();) {
    const auto [point, bytes] = decode_utf8(text.text(), at);
    at += bytes;
    points.clear();
    append_lower(points, point);
    any = any || points.size() != 1 || points[0] != point;
    for (size_t i = 0; i < points.size(); ++i) changes.push_back({points[i], i > 0});
  }
  if (any) text.transform(changes);
}

class LowercaseNormalizer : public Normalizer {
 public:
  void apply(Aligned& text) const override { lower(text); }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(Aligned& text) const override {
    const auto view = text.text();
    size_t begin = 0, end = view.size();
    while (left_ && begin < end && properties(decode_utf8(view, begin).point).is_space())
      begin += utf8_length(view[begin]);
    while (right_ && end > begin) {
      size_t last = end - 1;
      while (last > begin && (view[last] & 0xc0) == 0x80) --last;
      if (!properties(decode_utf8(view, last).point).is_space()) break;
      end = last;
    }
    if (begin == 0 && end == view.size()) return;
    std::string kept;
    std::vector<Span> spans;
    text.copy_to(begin, end, kept, spans);
    text.set(std::move(kept), std::move(spans));
  }

 private:
  bool left_, right_;
};

class StripAccentsNormalizer : public Normalizer {
 public:
  void apply(Aligned& text) const override {
    if (is_ascii(text.text())) return;
    text.filter([](char32_t point) { return !properties(point).is_combining(); });
  }
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(Aligned& text) const override {
    std::vector<Part> parts;
    pattern_.parts(text.text(), parts);
    std::vector<Span> ranges;
    for (const auto& part : parts) {
      if (part.is_match) ranges.push_back({part.begin, part.end});
    }
    text.replace(ranges, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string head) : head_(std::move(head)) {}
  void apply(Aligned& text) const override { text.prepend(head_); }

 private:
  std::string head_;
};

bool is_chinese(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
         (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

class BertNormalizer : public Normalizer {
 public:
  explicit BertNormalizer(BertNormalizerOptions options) : options_(options) {}
  void apply(Aligned& text) const override {
    if (options_.clean_text) {
      text.filter([](char32_t c) { return c != 0 && c != 0xfffd && !properties(c).is_control(); });
      text.map([](char32_t c) { return properties(c).is_space() ? U' ' : c; });
    }
    const bool ascii = is_ascii(text.text());
    if (options_.handle_chinese_chars && !ascii) separate_chinese(text);
    if (options_.strip_accents.value_or(options_.lowercase) && !ascii) {
      text.transform(normal_form(text.text(), NormalForm::kNfd));
      text.filter([](char32_t c) { return !properties(c).is_accent(); });
    }
    if (options_.lowercase) lower(text);
  }

 private:
  static void separate_chinese(Aligned& text) {
    std::vector<Change> changes;
    bool any = false;
    for (size_t at = 0; at < text.text().size();) {
      const auto [point, bytes] = decode_utf8(text.text(), at);
      at += bytes;
      if (is_chinese(point)) {
        any = true;
        changes.insert(changes.end(), {{U' ', 0}, {point, 1}, {U' ', 1}});
      } else {
        changes.push_back({point, 0});
      }
    }
    if (any) text.transform(changes);
  }

  BertNormalizerOptions options_;
};

class NmtNormalizer : public Normalizer {
 public:
  void apply(Aligned& text) const override {
    text.filter([](char32_t c) {
      return !((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f);
    });
    text.map([](char32_t c) {
      const bool blank = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
                         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
      return blank ? U' ' : c;
    });
  }
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(Aligned& text) const override { map_bytes(text); }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPointer> parts) : parts_(std::move(parts)) {}
  void apply(Aligned& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<NormalizerPointer> parts_;
};

// The trie of SentencePiece is that of Darts: units of 32 bits; a unit says its label, whether a value hangs below it
// and how far its children are.
class PrecompiledNormalizer : public Normalizer {
 public:
  explicit PrecompiledNormalizer(std::string_view map) {
    const auto word = [&](size_t at) {
      uint32_t value = 0;
      for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<unsigned char>(map[at + i])) << 8 * i;
      return value;
    };
    LEVIN_CHECK(map.size() >= 4, "[tokenizer] precompiled_charsmap is cut short");
    const size_t bytes = word(0);
    LEVIN_CHECK(bytes % 4 == 0 && bytes <= map.size() - 4, "[tokenizer] precompiled_charsmap is damaged: a trie of ",
                bytes, " bytes in ", map.size());
    for (size_t at = 4; at < 4 + bytes; at += 4) trie_.push_back(word(at));
    texts_ = std::string(map.substr(4 + bytes));
    LEVIN_CHECK(valid_utf8(texts_), "[tokenizer] precompiled_charsmap is damaged: its texts are not UTF-8");
  }

  void apply(Aligned& text) const override {
    const auto view = text.text();
    std::vector<Change> changes;
    changes.reserve(view.size());
    bool any = false;
    std::string_view found;
    for (size_t at = 0; at < view.size();) {
      // Most clusters are one ASCII character that is followed by another.
      const bool plain = static_cast<unsigned char>(view[at]) < 0x80 && view[at] != '\r' &&
                         (at + 1 == view.size() || static_cast<unsigned char>(view[at + 1]) < 0x80);
      const auto end = plain ? at + 1 : grapheme_end(view, at);
      if (end - at < 6 && look_up(view.substr(at, end - at), found)) {
        any = true;
        put(view.substr(at, end - at), found, changes);
        at = end;
        continue;
      }
      while (at < end) {
        const auto [point, bytes] = decode_utf8(view, at);
        if (look_up(view.substr(at, bytes), found)) {
          any = true;
          put(view.substr(at, bytes), found, changes);
        } else {
          changes.push_back({point, 0});
        }
        at += bytes;
      }
    }
    if (any) text.transform(changes);
  }

 private:
  static void put(std::string_view before, std::string_view after, std::vector<Change>& changes) {
    const auto old_count = static_cast<int32_t>(count_points(before));
    const auto points = to_points(after);
    const auto difference = static_cast<int32_t>(points.size()) - old_count;
    for (const auto point : points) changes.push_back({point, 0});
    for (int32_t i = 0; i < difference; ++i) changes[changes.size() - 1 - static_cast<size_t>(i)].change = 1;
    if (difference < 0 && !changes.empty()) changes.back().change += difference;
  }

  // The text of the shortest key that `key` begins with.
  bool look_up(std::string_view key, std::string_view& found) const {
    size_t node = 0;
    if (trie_.empty()) return false;
    const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
    node ^= offset(trie_[0]);
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte == 0) return false;
      node ^= byte;
      if (node >= trie_.size()) return false;
      const auto unit = trie_[node];
      if ((unit & ((1u << 31) | 0xff)) != byte) return false;
      node ^= offset(unit);
      if (unit >> 8 & 1) {
        if (node >= trie_.size()) return false;
        const size_t at = trie_[node] & 0x7fffffff;
        if (at >= texts_.size()) return false;
        const auto end = texts_.find('\0', at);
        found = std::string_view(texts_).substr(at, end == std::string::npos ? end : end - at);
        return valid_utf8(found);
      }
    }
    return false;
  }

  std::vector<uint32_t> trie_;
  std::string texts_;
};

struct ByteChars {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, 512> to_byte{};
  ByteChars() {
    to_byte.fill(-1);
    char32_t next = 256;
    for (char32_t b = 0; b < 256; ++b) {
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      to_char[b] = itself ? b : next++;
      to_byte[to_char[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteChars& byte_chars() {
  static const ByteChars table;
  return table;
}

}  // namespace

char32_t byte_to_char(unsigned char byte) {
  return byte_chars().to_char[byte];
}

int char_to_byte(char32_t point) {
  return point < 512 ? byte_chars().to_byte[point] : -1;
}

void map_bytes(Aligned& text) {
  const auto view = text.text();
  std::string mapped;
  std::vector<Span> spans;
  mapped.reserve(view.size() * 2);
  for (size_t i = 0; i < view.size(); ++i) {
    append_utf8(mapped, byte_to_char(static_cast<unsigned char>(view[i])));
    spans.resize(mapped.size(), text.source(i));
  }
  text.set(std::move(mapped), std::move(spans));
}

NormalizerPointer make_normal_form(NormalForm form) {
  return std::make_unique<NormalFormNormalizer>(form);
}
NormalizerPointer make_lowercase() {
  return std::make_unique<LowercaseNormalizer>();
}
NormalizerPointer make_strip(bool left, bool right) {
  return std::make_unique<StripNormalizer>(left, right);
}
NormalizerPointer make_strip_accents() {
  return std::make_unique<StripAccentsNormalizer>();
}
NormalizerPointer make_replace(Pattern pattern, std::string content) {
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}
NormalizerPointer make_prepend(std::string head) {
  return std::make_unique<PrependNormalizer>(std::move(head));
}
NormalizerPointer make_bert_normalizer(BertNormalizerOptions options) {
  return std::make_unique<BertNormalizer>(options);
}
NormalizerPointer make_nmt() {
  return std::make_unique<NmtNormalizer>();
}
NormalizerPointer make_byte_level_normalizer() {
  return std::make_unique<ByteLevelNormalizer>();
}
NormalizerPointer make_precompiled(std::string_view charsmap) {
  return std::make_unique<PrecompiledNormalizer>(charsmap);
}
NormalizerPointer make_normalizer_sequence(std::vector<NormalizerPointer> parts) {
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

}  // namespace levin::text
