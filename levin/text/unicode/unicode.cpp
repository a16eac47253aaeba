#include "levin/text/unicode/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <unordered_map>

#include "levin/core/error.h"
#include "levin/text/unicode/unicode_data.h"

namespace levin::text {
namespace {

// Reads the numbers that make_unicode_tables.py wrote.
class NumberReader {
 public:
  explicit NumberReader(const char* text) : at_(text) {
    values_.fill(0);
    constexpr std::string_view digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-";
    for (size_t i = 0; i < digits.size(); ++i) values_[static_cast<unsigned char>(digits[i])] = static_cast<uint8_t>(i);
  }
  bool more() const { return *at_ != 0; }
  uint32_t next() {
    uint32_t value = 0;
    for (uint32_t shift = 0;; shift += 5) {
      const uint32_t digit = values_[static_cast<unsigned char>(*at_++)];
      value |= (digit & 31) << shift;
      if (digit < 32) return value;
    }
  }

 private:
  const char* at_;
  std::array<uint8_t, 256> values_;
};

using PointMap = std::unordered_map<char32_t, std::u32string>;

PointMap read_mapping(const char* text) {
  PointMap map;
  NumberReader numbers(text);
  for (char32_t point = 0; numbers.more();) {
    point += numbers.next();
    std::u32string value(numbers.next(), 0);
    for (auto& c : value) c = numbers.next();
    map.emplace(point, std::move(value));
  }
  return map;
}

const PointMap& canonical_map() {
  static const PointMap map = read_mapping(detail::kCanonical);
  return map;
}

const PointMap& compatible_map() {
  static const PointMap map = read_mapping(detail::kCompatible);
  return map;
}

const PointMap& lower_map() {
  static const PointMap map = read_mapping(detail::kLower);
  return map;
}

const std::unordered_map<uint64_t, char32_t>& composition_map() {
  static const auto map = [] {
    std::unordered_map<uint64_t, char32_t> pairs;
    for (const auto& [point, parts] : read_mapping(detail::kCompositions))
      pairs.emplace(static_cast<uint64_t>(parts.at(0)) << 32 | parts.at(1), point);
    return pairs;
  }();
  return map;
}

uint8_t combining_class(char32_t point) {
  static const auto classes = [] {
    std::unordered_map<char32_t, uint8_t> map;
    NumberReader numbers(detail::kCombining);
    for (char32_t at = 0; numbers.more();) {
      at += numbers.next();
      map.emplace(at, static_cast<uint8_t>(numbers.next()));
    }
    return map;
  }();
  if (point < 0x300) return 0;
  const auto found = classes.find(point);
  return found == classes.end() ? 0 : found->second;
}

constexpr char32_t kHangul = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11a7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

void decompose(char32_t point, bool compatible, std::u32string& out) {
  if (point < 0x80) {
    out.push_back(point);
    return;
  }
  if (point - kHangul < kSyllables) {
    const uint32_t index = point - kHangul;
    out.push_back(kLead + index / (kVowels * kTails));
    out.push_back(kVowel + index % (kVowels * kTails) / kTails);
    if (index % kTails) out.push_back(kTail + index % kTails);
    return;
  }
  if (compatible) {
    if (const auto found = compatible_map().find(point); found != compatible_map().end()) {
      out += found->second;
      return;
    }
  }
  const auto found = canonical_map().find(point);
  if (found == canonical_map().end())
    out.push_back(point);
  else
    out += found->second;
}

// 0 when the two do not compose.
char32_t compose(char32_t first, char32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kHangul + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  if (first - kHangul < kSyllables && (first - kHangul) % kTails == 0 && second > kTail && second - kTail < kTails)
    return first + (second - kTail);
  const auto found = composition_map().find(static_cast<uint64_t>(first) << 32 | second);
  return found == composition_map().end() ? 0 : found->second;
}

struct Mark {
  Change change;
  uint8_t ccc = 0;
};

// How many code points of the source a change stands for.
int32_t taken(const Change& change) {
  return change.change > 0 ? 0 : 1 - change.change;
}

// Composes one starter and what follows it up to the next starter, in place.
void compose_all(std::vector<Mark>& marks) {
  size_t starter = marks.size(), out = 0;
  uint8_t last = 0;
  for (size_t i = 0; i < marks.size(); ++i) {
    const auto now = marks[i];
    if (starter < out) {
      const bool blocked = out - 1 > starter && (last >= now.ccc || last == 0);
      if (!blocked) {
        if (const auto composed = compose(marks[starter].change.point, now.change.point)) {
          auto& into = marks[starter].change;
          const int32_t sum = taken(into) + taken(now.change);
          into = {composed, sum == 0 ? 1 : 1 - sum};
          continue;
        }
      }
    }
    if (now.ccc == 0) starter = out;
    last = now.ccc;
    marks[out++] = now;
  }
  marks.resize(out);
}

}  // namespace

void append_utf8(std::string& out, char32_t point) {
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xc0 | point >> 6);
    out += static_cast<char>(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    out += static_cast<char>(0xe0 | point >> 12);
    out += static_cast<char>(0x80 | (point >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (point & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | point >> 18);
    out += static_cast<char>(0x80 | (point >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (point >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (point & 0x3f));
  }
}

std::string to_utf8(char32_t point) {
  std::string out;
  append_utf8(out, point);
  return out;
}

std::u32string to_points(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto [point, bytes] = decode_utf8(text, at);
    out.push_back(point);
    at += bytes;
  }
  return out;
}

size_t count_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string replace_broken_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const size_t good = valid_utf8_prefix(bytes.substr(at));
    out += bytes.substr(at, good);
    at += good;
    if (at >= bytes.size()) break;
    size_t broken = 1;
    utf8_character(bytes, at, broken);
    out += "\xef\xbf\xbd";
    at += broken;
  }
  return out;
}

const detail::PropertyTable& detail::property_table() {
  static const PropertyTable table = [] {
    std::vector<uint32_t> values;
    for (NumberReader numbers(kPropertyValues); numbers.more();) values.push_back(numbers.next());
    std::vector<uint32_t> all;
    all.reserve(0x110000);
    for (NumberReader numbers(kPropertyRanges); numbers.more();) {
      const auto count = numbers.next();
      all.insert(all.end(), count, values.at(numbers.next()));
    }
    LEVIN_CHECK(all.size() == 0x110000, "[text] the Unicode tables are damaged: ", all.size(), " code points");
    PropertyTable made;
    std::map<std::vector<uint32_t>, uint16_t> pages;
    for (size_t at = 0; at < all.size(); at += 256) {
      std::vector<uint32_t> page(all.begin() + static_cast<long>(at), all.begin() + static_cast<long>(at + 256));
      const auto [place, is_new] = pages.try_emplace(std::move(page), static_cast<uint16_t>(pages.size()));
      if (is_new) made.bits.insert(made.bits.end(), place->first.begin(), place->first.end());
      made.page.push_back(place->second);
    }
    return made;
  }();
  return table;
}

const std::vector<std::string>& script_names() {
  static const auto names = [] {
    std::vector<std::string> all(1);
    for (const char* at = detail::kScriptNames; *at; ++at) {
      if (*at == ' ')
        all.emplace_back();
      else
        all.back() += *at;
    }
    return all;
  }();
  return names;
}

uint32_t category_bits(std::string_view name) {
  constexpr std::string_view all = "CnCcCfCoCsLlLmLoLtLuMcMeMnNdNlNoPcPdPePfPiPoPsScSkSmSoZlZpZs";
  uint32_t bits = 0;
  for (uint32_t i = 0; i * 2 < all.size(); ++i) {
    const auto code = all.substr(i * 2, 2);
    if (code == name || code.substr(0, 1) == name) bits |= 1u << i;
  }
  return bits;
}

void append_lower(std::u32string& out, char32_t point) {
  if (point < 0x80) {
    out.push_back(point >= 'A' && point <= 'Z' ? point + 32 : point);
    return;
  }
  const auto found = lower_map().find(point);
  if (found == lower_map().end())
    out.push_back(point);
  else
    out += found->second;
}

char32_t fold_case(char32_t point) {
  if (point < 0x80) return point >= 'A' && point <= 'Z' ? point + 32 : point;
  static const PointMap special = read_mapping(detail::kFold);
  if (const auto found = special.find(point); found != special.end()) return found->second.at(0);
  const auto found = lower_map().find(point);
  return found == lower_map().end() || found->second.size() != 1 ? point : found->second[0];
}

std::vector<Change> normal_form(std::string_view text, NormalForm form) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  std::vector<Change> out;
  out.reserve(text.size());
  std::vector<Mark> run;  // code points since the last one that cannot compose with what is before it
  const auto by_class = [](const Mark& a, const Mark& b) { return a.ccc < b.ccc; };
  size_t ordered = 0;  // marks before this one have their order
  const auto order = [&] { std::stable_sort(run.begin() + static_cast<long>(ordered), run.end(), by_class); };
  const auto flush = [&] {
    order();
    if (composed) compose_all(run);
    for (const auto& mark : run) out.push_back(mark.change);
    run.clear();
    ordered = 0;
  };
  std::u32string parts;
  for (size_t at = 0; at < text.size();) {
    const auto [point, bytes] = decode_utf8(text, at);
    at += bytes;
    parts.clear();
    decompose(point, compatible, parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Mark mark{{parts[i], i > 0 ? 1 : 0}, combining_class(parts[i])};
      if (mark.ccc == 0) {
        order();
        // Below U+0300 nothing composes with what is before it, so the run may end here.
        if (!composed || parts[i] < 0x300) flush();
        run.push_back(mark);
        ordered = run.size();
      } else {
        run.push_back(mark);
      }
    }
  }
  flush();
  return out;
}

namespace {

enum GraphemeBreak : uint32_t {
  kOther,
  kCr,
  kLf,
  kControl,
  kExtend,
  kZwj,
  kRegional,
  kPrepend,
  kSpacing,
  kL,
  kV,
  kT,
  kLv,
  kLvt
};

bool breaks_between(uint32_t a, uint32_t b) {
  if (a == kCr && b == kLf) return false;
  if (a == kCr || a == kLf || a == kControl || b == kCr || b == kLf || b == kControl) return true;
  if (a == kL && (b == kL || b == kV || b == kLv || b == kLvt)) return false;
  if ((a == kLv || a == kV) && (b == kV || b == kT)) return false;
  if ((a == kLvt || a == kT) && b == kT) return false;
  return b != kExtend && b != kZwj && b != kSpacing && a != kPrepend;
}

}  // namespace

size_t grapheme_end(std::string_view text, size_t begin) {
  auto [first, bytes] = decode_utf8(text, begin);
  size_t at = begin + bytes;
  auto before = properties(first);
  bool after_picture = before.is_pictographic();
  size_t regional = before.grapheme_break() == kRegional;
  while (at < text.size()) {
    const auto [point, length] = decode_utf8(text, at);
    const auto now = properties(point);
    bool ends = breaks_between(before.grapheme_break(), now.grapheme_break());
    if (before.grapheme_break() == kZwj && after_picture && now.is_pictographic()) ends = false;
    if (before.grapheme_break() == kRegional && now.grapheme_break() == kRegional && regional % 2 == 1) ends = false;
    if (ends) break;
    if (now.is_pictographic())
      after_picture = true;
    else if (now.grapheme_break() != kExtend && now.grapheme_break() != kZwj)
      after_picture = false;
    regional += now.grapheme_break() == kRegional;
    before = now;
    at += length;
  }
  return at;
}

}  // namespace levin::text
