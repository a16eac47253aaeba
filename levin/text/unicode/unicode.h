#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/core/words.h"

/// What the tokenizers ask of code points. The tables agree with those of the Python package `tokenizers`.
namespace levin::text {

/// A code point and its length in bytes.
struct Decoded {
  char32_t point = 0;
  uint32_t bytes = 0;
};

/// The code point at `text[at]`; `text` must be valid UTF-8 (see valid_utf8) and `at` the start of one.
inline Decoded decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {static_cast<char32_t>((lead & 0x1f) << 6 | (byte(1) & 0x3f)), 2};
  if (lead < 0xf0) return {static_cast<char32_t>((lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f)), 3};
  return {
      static_cast<char32_t>((lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f)),
      4};
}

/// Bytes of the character that begins with this byte.
inline uint32_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

void append_utf8(std::string& out, char32_t point);
std::string to_utf8(char32_t point);
std::u32string to_points(std::string_view text);
size_t count_points(std::string_view text);

using levin::valid_utf8_prefix;
inline bool valid_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}
/// Every maximal broken part becomes U+FFFD, as Python's and Rust's lossy decoding do it.
std::string replace_broken_utf8(std::string_view bytes);

enum class Category : uint8_t {
  kCn,
  kCc,
  kCf,
  kCo,
  kCs,
  kLl,
  kLm,
  kLo,
  kLt,
  kLu,
  kMc,
  kMe,
  kMn,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPe,
  kPf,
  kPi,
  kPo,
  kPs,
  kSc,
  kSk,
  kSm,
  kSo,
  kZl,
  kZp,
  kZs
};

/// The properties of one code point.
class Properties {
 public:
  explicit constexpr Properties(uint32_t bits) : bits_(bits) {}

  Category category() const { return static_cast<Category>(bits_ & 31); }
  bool is_letter() const { return category() >= Category::kLl && category() <= Category::kLu; }
  bool is_mark() const { return category() >= Category::kMc && category() <= Category::kMn; }
  bool is_number() const { return category() >= Category::kNd && category() <= Category::kNo; }
  uint32_t grapheme_break() const { return bits_ >> 5 & 15; }
  bool is_space() const { return bits_ >> 9 & 1; }
  /// \w of patterns.
  bool is_word() const { return bits_ >> 10 & 1; }
  /// \w of added tokens and of the pre-tokenizer Whitespace, which has more.
  bool is_wide_word() const { return bits_ >> 11 & 1; }
  /// What the pre-tokenizer Digits splits at.
  bool is_numeric() const { return bits_ >> 12 & 1; }
  bool is_punctuation() const { return bits_ >> 13 & 1; }
  /// What BertNormalizer deletes: control characters and others that are not seen.
  bool is_control() const { return bits_ >> 14 & 1; }
  /// What BertNormalizer deletes as accents after decomposition.
  bool is_accent() const { return bits_ >> 15 & 1; }
  /// What StripAccents deletes.
  bool is_combining() const { return bits_ >> 16 & 1; }
  bool is_pictographic() const { return bits_ >> 17 & 1; }
  /// An index of script_names().
  uint32_t script() const { return bits_ >> 18 & 255; }
  bool is_alphabetic() const { return bits_ >> 26 & 1; }

 private:
  uint32_t bits_;
};

namespace detail {
struct PropertyTable {
  std::vector<uint16_t> page;  // of 256 code points each
  std::vector<uint32_t> bits;
};
const PropertyTable& property_table();
}  // namespace detail

inline Properties properties(char32_t point) {
  static const detail::PropertyTable& table = detail::property_table();
  return Properties(table.bits[static_cast<size_t>(table.page[point >> 8]) << 8 | (point & 255)]);
}

const std::vector<std::string>& script_names();
/// "Lu", "L", "Nd": the categories of a name, as bits; 0 when it is no category.
uint32_t category_bits(std::string_view name);

/// Lower case may be several code points.
void append_lower(std::u32string& out, char32_t point);
/// For matching without regard to case.
char32_t fold_case(char32_t point);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// A code point of a changed text. `change` says where it comes from: 0 takes the place of one code point; 1 is added;
/// -n takes the place of one and n more that follow it.
struct Change {
  char32_t point = 0;
  int32_t change = 0;
};
std::vector<Change> normal_form(std::string_view text, NormalForm form);

/// The end of the grapheme cluster that begins at `begin`.
size_t grapheme_end(std::string_view text, size_t begin);

}  // namespace levin::text
