#include "levin/program/recipes/bible.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "levin/core/error.h"

namespace levin::cli {
namespace {

constexpr uint32_t kClear = 256, kFirstFree = 257;

/// Codes of a stream, from the lowest bit on.
class CodeReader {
 public:
  explicit CodeReader(std::string_view bytes) : bytes_(bytes) {}

  /// -1 at the end.
  int32_t next(uint32_t width) {
    if (width != width_) align(width);
    if ((at_ + width) > 8 * bytes_.size()) return -1;
    uint32_t bits = 0;
    for (uint64_t i = 0; i < 3 && at_ / 8 + i < bytes_.size(); ++i)
      bits |= static_cast<uint32_t>(static_cast<uint8_t>(bytes_[at_ / 8 + i])) << (8 * i);
    const auto code = bits >> (at_ % 8) & ((uint32_t{1} << width) - 1);
    at_ += width;
    return static_cast<int32_t>(code);
  }
  /// The writer gives out groups of eight codes, and fills up the last one of a width.
  void align(uint32_t width) {
    const uint64_t group = uint64_t{8} * width_;
    if (width_ > 0) at_ = begin_ + (at_ - begin_ + group - 1) / group * group;
    begin_ = at_;
    width_ = width;
  }

 private:
  std::string_view bytes_;
  uint64_t at_ = 0, begin_ = 0;  // bits
  uint32_t width_ = 0;
};

/// The words that codes stand for: each is another one and a byte behind it.
class CodeTable {
 public:
  explicit CodeTable(uint32_t limit) : limit_(limit) { clear(); }

  void clear() { words_.resize(kFirstFree); }
  uint32_t size() const { return static_cast<uint32_t>(words_.size()); }
  bool is_full() const { return words_.size() >= limit_; }
  void add(uint32_t prefix, char last) {
    if (!is_full()) words_.push_back({prefix, last});
  }
  /// Appends a word, and gives its first byte.
  char append(uint32_t code, std::string& out) const {
    const auto begin = out.size();
    for (; code > 255; code = words_[code].prefix) out.push_back(words_[code].last);
    out.push_back(static_cast<char>(code));
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end());
    return out[begin];
  }

 private:
  struct Word {
    uint32_t prefix;
    char last;
  };
  std::vector<Word> words_;
  uint32_t limit_;
};

}  // namespace

std::string decompress_lzw(std::string_view data) {
  LEVIN_CHECK(data.size() > 3 && data.starts_with("\x1f\x9d") && (data[2] & 0x80), "[lzw] this was not compressed");
  const uint32_t most = static_cast<uint8_t>(data[2]) & 0x1f;
  LEVIN_CHECK(most >= 9 && most <= 16, "[lzw] codes of ", most, " bits are not known");
  CodeReader codes(data.substr(3));
  CodeTable table(uint32_t{1} << most);
  std::string out;
  uint32_t width = 9;
  int32_t before = -1;
  for (int32_t code; (code = codes.next(width)) >= 0;) {
    if (code == static_cast<int32_t>(kClear)) {
      codes.align(width = 9);
      table.clear();
      before = -1;
      continue;
    }
    const auto word = static_cast<uint32_t>(code);
    LEVIN_CHECK(word < table.size() || (before >= 0 && word == table.size() && !table.is_full()),
                "[lzw] the stream is damaged");
    if (before >= 0) {
      // A word may be the one that it makes: then it begins as the word before it.
      const auto at = out.size();
      const char first =
          word < table.size() ? table.append(word, out) : table.append(static_cast<uint32_t>(before), out);
      if (word >= table.size()) out.push_back(first);
      table.add(static_cast<uint32_t>(before), out[at]);
    } else {
      LEVIN_CHECK(word < 256, "[lzw] the stream is damaged");
      out.push_back(static_cast<char>(word));
    }
    before = code;
    if (table.size() >= (uint32_t{1} << width) && width < most) ++width;
  }
  return out;
}

std::string bible_text(std::string_view data) {
  constexpr std::string_view kMagic = "\x1f\x9d";
  const auto begin = data.find(kMagic);
  LEVIN_CHECK(data.starts_with("EC02") && begin != data.npos, "[bible] this is not the text of bible-kjv-text");
  const auto verses = decompress_lzw(data.substr(begin));
  std::string out;
  std::string_view chapter;
  // "Ge1:3 And God said, ..."; the first line is a title.
  for (size_t at = verses.find('\n') + 1; at < verses.size();) {
    const auto end = std::min(verses.find('\n', at), verses.size());
    const std::string_view line = std::string_view(verses).substr(at, end - at);
    const auto colon = line.find(':'), blank = line.find(' ');
    LEVIN_CHECK(colon < blank && blank != line.npos, "[bible] a verse without a number");
    if (!chapter.empty() && chapter != line.substr(0, colon)) out += '\n';
    chapter = line.substr(0, colon);
    out += line.substr(blank + 1);
    out += '\n';
    at = end + 1;
  }
  return out;
}

}  // namespace levin::cli
