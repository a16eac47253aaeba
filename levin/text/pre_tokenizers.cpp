#include "levin/text/pre_tokenizers.h"

#include <algorithm>
#include <functional>

#include "levin/core/error.h"
#include "levin/text/normalizers.h"

namespace levin::text {
namespace {

using Finder = std::function<void(std::string_view text, std::vector<Part>& parts)>;

// Ranges that stay, of all parts of one piece.
void keep_parts(const std::vector<Part>& parts, SplitBehavior behavior, std::vector<Span>& kept) {
  kept.clear();
  bool before = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const auto& part : parts) kept.push_back({part.begin, part.end});
      break;
    case SplitBehavior::kRemoved:
      for (const auto& part : parts) {
        if (!part.is_match) kept.push_back({part.begin, part.end});
      }
      break;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
      for (const auto& part : parts) {
        const bool joins = behavior == SplitBehavior::kContiguous ? part.is_match == before : part.is_match && !before;
        if (joins && !kept.empty())
          kept.back().end = part.end;
        else
          kept.push_back({part.begin, part.end});
        before = part.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->is_match && !before && !kept.empty())
          kept.back().begin = part->begin;
        else
          kept.push_back({part->begin, part->end});
        before = part->is_match;
      }
      std::reverse(kept.begin(), kept.end());
      break;
  }
}

void split_pieces(Pieces& pieces, const Finder& find, SplitBehavior behavior) {
  std::vector<Piece> made;
  made.reserve(pieces.list.size() * 2);
  std::vector<Part> parts;
  std::vector<Span> kept;
  for (const auto& piece : pieces.list) {
    if (piece.token >= 0) {
      made.push_back(piece);
      continue;
    }
    parts.clear();
    find(pieces.text.text().substr(piece.begin, piece.end - piece.begin), parts);
    keep_parts(parts, behavior, kept);
    for (const auto& [begin, end] : kept) {
      if (begin < end) made.push_back({piece.begin + begin, piece.begin + end, -1});
    }
  }
  pieces.list = std::move(made);
}

// Matches are single code points.
template <class Is>
void find_points(std::string_view text, std::vector<Part>& parts, Is&& is) {
  uint32_t rest = 0;
  for (uint32_t at = 0; at < text.size();) {
    const auto [point, bytes] = decode_utf8(text, at);
    if (is(point)) {
      if (rest < at) parts.push_back({rest, at, false});
      parts.push_back({at, at + bytes, true});
      rest = at + bytes;
    }
    at += bytes;
  }
  if (rest < text.size()) parts.push_back({rest, static_cast<uint32_t>(text.size()), false});
}

template <class Is>
void split_at(Pieces& pieces, SplitBehavior behavior, Is is) {
  split_pieces(
      pieces, [&](std::string_view text, std::vector<Part>& parts) { find_points(text, parts, is); }, behavior);
}

// Changes the text of every piece that is no added token; `change` gets a copy of its own.
template <class Do>
void change_pieces(Pieces& pieces, Do&& change) {
  std::string text;
  std::vector<Span> spans;
  std::vector<Piece> made;
  for (const auto& piece : pieces.list) {
    const auto begin = static_cast<uint32_t>(text.size());
    if (piece.token >= 0) {
      pieces.text.copy_to(piece.begin, piece.end, text, spans);
    } else {
      std::string part;
      std::vector<Span> part_spans;
      pieces.text.copy_to(piece.begin, piece.end, part, part_spans);
      Aligned aligned(std::move(part), std::move(part_spans));
      change(aligned);
      aligned.copy_to(0, aligned.text().size(), text, spans);
    }
    const auto end = static_cast<uint32_t>(text.size());
    if (begin < end) made.push_back({begin, end, piece.token});
  }
  pieces.text.set(std::move(text), std::move(spans));
  pieces.list = std::move(made);
}

bool is_space(char32_t point) {
  return properties(point).is_space();
}
bool is_punctuation(char32_t point) {
  return properties(point).is_punctuation();
}

class ByteLevelCut : public PreTokenizer {
 public:
  explicit ByteLevelCut(ByteLevelOptions options) : options_(options) {}
  void cut(Pieces& pieces) const override {
    if (options_.add_prefix_space) add_spaces(pieces);
    if (options_.use_regex) {
      std::vector<Piece> made;
      made.reserve(pieces.text.text().size() / 4 + pieces.list.size());
      for (const auto& piece : pieces.list) {
        if (piece.token >= 0) {
          made.push_back(piece);
          continue;
        }
        const auto text = pieces.text.text().substr(0, piece.end).substr(piece.begin);
        for (size_t at = 0; at < text.size();) {
          const auto end = scan_gpt2(text, at);
          made.push_back({static_cast<uint32_t>(piece.begin + at), static_cast<uint32_t>(piece.begin + end), -1});
          at = end;
        }
      }
      pieces.list = std::move(made);
    }
    if (options_.keep_bytes)
      pieces.byte_level = true;
    else
      change_pieces(pieces, [](Aligned& text) { map_bytes(text); });
  }

 private:
  static void add_spaces(Pieces& pieces) {
    const auto text = pieces.text.text();
    if (std::all_of(pieces.list.begin(), pieces.list.end(),
                    [&](const Piece& piece) { return piece.token >= 0 || text[piece.begin] == ' '; }))
      return;
    change_pieces(pieces, [](Aligned& part) {
      if (!part.text().starts_with(' ')) part.prepend(" ");
    });
  }

  ByteLevelOptions options_;
};

class SplitCut : public PreTokenizer {
 public:
  SplitCut(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void cut(Pieces& pieces) const override {
    split_pieces(
        pieces,
        [&](std::string_view text, std::vector<Part>& parts) {
          pattern_.parts(text, parts);
          if (invert_) {
            for (auto& part : parts) part.is_match = !part.is_match;
          }
        },
        behavior_);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class MetaspaceCut : public PreTokenizer {
 public:
  MetaspaceCut(char32_t replacement, PrependScheme scheme, bool split)
      : replacement_(replacement), word_(to_utf8(replacement)), scheme_(scheme), split_(split) {}
  void cut(Pieces& pieces) const override {
    change_pieces(pieces, [&](Aligned& text) {
      std::vector<Span> blanks;
      const auto view = text.text();
      for (size_t at = view.find(' '); at != view.npos; at = view.find(' ', at + 1))
        blanks.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + 1)});
      const bool is_first = !view.empty() && text.source(0).begin == 0;
      text.replace(blanks, word_);
      const bool prepends = scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && is_first);
      if (prepends && !text.text().starts_with(word_)) text.prepend(word_);
    });
    if (split_) split_at(pieces, SplitBehavior::kMergedWithNext, [&](char32_t point) { return point == replacement_; });
  }

 private:
  char32_t replacement_;
  std::string word_;
  PrependScheme scheme_;
  bool split_;
};

class WhitespaceCut : public PreTokenizer {
 public:
  void cut(Pieces& pieces) const override {
    const auto kind = [](char32_t point) {
      const auto all = properties(point);
      return all.is_wide_word() ? 1 : all.is_space() ? 0 : 2;
    };
    split_pieces(
        pieces,
        [&](std::string_view text, std::vector<Part>& parts) {
          for (uint32_t at = 0; at < text.size();) {
            const auto begin = at;
            const int first = kind(decode_utf8(text, at).point);
            while (at < text.size() && kind(decode_utf8(text, at).point) == first) at += utf8_length(text[at]);
            parts.push_back({begin, at, first == 0});
          }
        },
        SplitBehavior::kRemoved);
  }
};

class WhitespaceSplitCut : public PreTokenizer {
 public:
  void cut(Pieces& pieces) const override { split_at(pieces, SplitBehavior::kRemoved, is_space); }
};

class BertCut : public PreTokenizer {
 public:
  void cut(Pieces& pieces) const override {
    split_at(pieces, SplitBehavior::kRemoved, is_space);
    split_at(pieces, SplitBehavior::kIsolated, is_punctuation);
  }
};

class PunctuationCut : public PreTokenizer {
 public:
  explicit PunctuationCut(SplitBehavior behavior) : behavior_(behavior) {}
  void cut(Pieces& pieces) const override { split_at(pieces, behavior_, is_punctuation); }

 private:
  SplitBehavior behavior_;
};

class DigitsCut : public PreTokenizer {
 public:
  explicit DigitsCut(bool individual) : individual_(individual) {}
  void cut(Pieces& pieces) const override {
    split_at(pieces, individual_ ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
             [](char32_t point) { return properties(point).is_numeric(); });
  }

 private:
  bool individual_;
};

class CharDelimiterCut : public PreTokenizer {
 public:
  explicit CharDelimiterCut(char32_t delimiter) : delimiter_(delimiter) {}
  void cut(Pieces& pieces) const override {
    split_at(pieces, SplitBehavior::kRemoved, [&](char32_t point) { return point == delimiter_; });
  }

 private:
  char32_t delimiter_;
};

class UnicodeScriptsCut : public PreTokenizer {
 public:
  UnicodeScriptsCut() {
    for (uint32_t i = 0; i < script_names().size(); ++i) {
      if (script_names()[i] == "Han") han_ = i;
      if (script_names()[i] == "Hiragana") hiragana_ = i;
      if (script_names()[i] == "Katakana") katakana_ = i;
    }
  }
  void cut(Pieces& pieces) const override {
    split_pieces(
        pieces,
        [&](std::string_view text, std::vector<Part>& parts) {
          // A blank has any script, and so may what follows a blank at the start.
          constexpr uint32_t kAnyScript = 0, kNone = UINT32_MAX;
          uint32_t last = kNone;
          for (uint32_t at = 0; at < text.size();) {
            const auto [point, bytes] = decode_utf8(text, at);
            const auto now = script(point);
            const bool starts = now != kAnyScript && last != kAnyScript && last != now;
            if (starts) {
              if (!parts.empty()) parts.back().end = at;
              parts.push_back({at, static_cast<uint32_t>(text.size()), false});
            }
            if (now != kAnyScript) last = now;
            at += bytes;
          }
        },
        SplitBehavior::kIsolated);
  }

 private:
  uint32_t script(char32_t point) const {
    if (point == 0x30fc) return han_;
    if (point == U' ') return 0;
    const auto found = properties(point).script();
    return found == hiragana_ || found == katakana_ ? han_ : found;
  }
  uint32_t han_ = 0, hiragana_ = 0, katakana_ = 0;
};

class FixedLengthCut : public PreTokenizer {
 public:
  explicit FixedLengthCut(size_t length) : length_(length) {}
  void cut(Pieces& pieces) const override {
    split_pieces(
        pieces,
        [&](std::string_view text, std::vector<Part>& parts) {
          for (uint32_t at = 0; at < text.size();) {
            const auto begin = at;
            for (size_t i = 0; i < length_ && at < text.size(); ++i) at += utf8_length(text[at]);
            parts.push_back({begin, at, true});
          }
        },
        SplitBehavior::kIsolated);
  }

 private:
  size_t length_;
};

class CutSequence : public PreTokenizer {
 public:
  explicit CutSequence(std::vector<PreTokenizerPointer> parts) : parts_(std::move(parts)) {}
  void cut(Pieces& pieces) const override {
    for (const auto& part : parts_) part->cut(pieces);
  }

 private:
  std::vector<PreTokenizerPointer> parts_;
};

}  // namespace

PreTokenizerPointer make_byte_level(ByteLevelOptions options) {
  return std::make_unique<ByteLevelCut>(options);
}
PreTokenizerPointer make_split(Pattern pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<SplitCut>(std::move(pattern), behavior, invert);
}
PreTokenizerPointer make_metaspace(char32_t replacement, PrependScheme scheme, bool split) {
  return std::make_unique<MetaspaceCut>(replacement, scheme, split);
}
PreTokenizerPointer make_whitespace() {
  return std::make_unique<WhitespaceCut>();
}
PreTokenizerPointer make_whitespace_split() {
  return std::make_unique<WhitespaceSplitCut>();
}
PreTokenizerPointer make_bert_pre_tokenizer() {
  return std::make_unique<BertCut>();
}
PreTokenizerPointer make_punctuation(SplitBehavior behavior) {
  return std::make_unique<PunctuationCut>(behavior);
}
PreTokenizerPointer make_digits(bool individual) {
  return std::make_unique<DigitsCut>(individual);
}
PreTokenizerPointer make_char_delimiter_split(char32_t delimiter) {
  return std::make_unique<CharDelimiterCut>(delimiter);
}
PreTokenizerPointer make_unicode_scripts() {
  return std::make_unique<UnicodeScriptsCut>();
}
PreTokenizerPointer make_fixed_length(size_t length) {
  LEVIN_CHECK(length > 0, "[tokenizer] FixedLength needs a length of 1 or more");
  return std::make_unique<FixedLengthCut>(length);
}
PreTokenizerPointer make_pre_tokenizer_sequence(std::vector<PreTokenizerPointer> parts) {
  return std::make_unique<CutSequence>(std::move(parts));
}

}  // namespace levin::text
