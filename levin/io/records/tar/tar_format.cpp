#include "levin/io/records/tar/tar_format.h"

#include <array>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr uint64_t kTarBlock = 512;
/// Names and attributes beyond this are nothing that a tool writes.
constexpr uint64_t kMostTarText = uint64_t{1} << 20;

struct TarField {
  size_t at, size;
};
constexpr TarField kTarName{0, 100}, kTarMode{100, 8}, kTarUid{108, 8}, kTarGid{116, 8}, kTarSize{124, 12},
    kTarTime{136, 12}, kTarSum{148, 8}, kTarUser{265, 32}, kTarGroup{297, 32}, kTarPrefix{345, 155};
constexpr size_t kTarType = 156, kTarMagic = 257;

class TarScan {
 public:
  TarScan(const ReadAt& read, uint64_t size, std::string_view where)
      : window_(read, size), read_(read), where_(where) {}

  void run(const std::function<void(TarMember&&)>& each) {
    while (!is_empty_block()) {
      check_sum();
      step(each);
    }
    // What was cut off at the end of a member would go unnoticed without this; what follows the two blocks is padding.
    at_ += kTarBlock;
    check(is_empty_block(), "has a member after an empty block, which ends an archive,");
    check(!long_name_ && !pax_size_, "is truncated: a name or attributes have no member");
  }

 private:
  /// Reads the block here.
  bool is_empty_block() {
    check(window_.size() > at_, "is truncated: the two empty blocks that end an archive are missing");
    check(window_.size() - at_ >= kTarBlock, "is truncated: it ends within the header");
    const auto block = window_.get(at_, kTarBlock);
    head_ = std::string_view(reinterpret_cast<const char*>(block.data()), kTarBlock);
    return head_.find_first_not_of('\0') == std::string_view::npos;
  }

  void check(bool good, std::string_view what) const {
    LEVIN_CHECK(good, "[records] \"", where_, "\" ", what, " at byte ", at_);
  }

  std::string_view field(TarField f) const {
    const auto raw = head_.substr(f.at, f.size);
    return raw.substr(0, raw.find('\0'));
  }

  /// Octal digits, or a number in base 256 whose first byte is 0x80.
  uint64_t number(TarField f, std::string_view what) const {
    auto raw = head_.substr(f.at, f.size);
    const auto first = static_cast<uint8_t>(raw[0]);
    if ((first & 0x80) != 0) {
      uint64_t value = first & 0x7f;
      for (const char c : raw.substr(1)) {
        check((value >> 56) == 0, what);
        value = value << 8 | static_cast<uint8_t>(c);
      }
      return value;
    }
    while (!raw.empty() && raw.front() == ' ') raw.remove_prefix(1);
    raw = raw.substr(0, raw.find_first_of(std::string_view("\0 ", 2)));
    uint64_t value = 0;
    for (const char c : raw) {
      check(c >= '0' && c <= '7', what);
      value = value << 3 | static_cast<uint64_t>(c - '0');  // 12 digits are 36 bits
    }
    return value;
  }

  void check_sum() const {
    uint64_t unsigned_sum = 0;
    int64_t signed_sum = 0;  // of some old tools
    for (size_t i = 0; i < kTarBlock; ++i) {
      const char c = i >= kTarSum.at && i < kTarSum.at + kTarSum.size ? ' ' : head_[i];
      unsigned_sum += static_cast<uint8_t>(c);
      signed_sum += static_cast<int8_t>(c);
    }
    const auto sum = number(kTarSum, "has a bad checksum in the header");
    check(sum == unsigned_sum || (signed_sum >= 0 && sum == static_cast<uint64_t>(signed_sum)),
          "has a bad checksum in the header");
  }

  std::string text(uint64_t size) const {
    check(size <= kMostTarText, "has a name or attributes of more than 1 MiB in the header");
    std::string bytes(static_cast<size_t>(size), '\0');
    read_(at_ + kTarBlock, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  /// "27 path=a/very/long/name\n"...
  void read_pax(std::string_view rest) {
    while (!rest.empty() && rest.front() != '\0') {
      size_t length = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
      const auto digits = static_cast<size_t>(end - rest.data());
      check(error == std::errc() && length <= rest.size() && length >= digits + 3 && *end == ' ' &&
                rest[length - 1] == '\n',
            "has broken PAX attributes in the header");
      const auto pair = rest.substr(digits + 1, length - digits - 2);
      const auto equals = pair.find('=');
      check(equals != std::string_view::npos, "has broken PAX attributes in the header");
      const auto name = pair.substr(0, equals), value = pair.substr(equals + 1);
      if (name == "path") {
        long_name_ = value;
      } else if (name == "size") {
        uint64_t size = 0;
        const auto [stop, bad] = std::from_chars(value.data(), value.data() + value.size(), size);
        check(bad == std::errc() && stop == value.data() + value.size(), "has a bad size in the header");
        pax_size_ = size;
      }
      check(!name.starts_with("GNU.sparse"), "has a sparse file, which is not read,");
      rest.remove_prefix(length);
    }
  }

  std::string name() const {
    if (long_name_) return *long_name_;
    const auto prefix = head_.substr(kTarMagic, 6) == std::string_view("ustar\0", 6) ? field(kTarPrefix) : "";
    return prefix.empty() ? std::string(field(kTarName)) : concat(prefix, "/", field(kTarName));
  }

  void step(const std::function<void(TarMember&&)>& each) {
    const char type = head_[kTarType];
    const bool describes = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    uint64_t size = number(kTarSize, "has a bad size in the header");
    if (!describes && pax_size_) size = *pax_size_;
    const bool empty = type >= '1' && type <= '6';  // links, devices and folders have no content, whatever they say
    if (empty) size = 0;
    const uint64_t left = window_.size() - at_ - kTarBlock;
    check(size <= left && tar_padding(size) <= left - size, "is truncated: it ends within the member");
    check(type != 'S', "has a sparse file, which is not read,");
    if (type == 'x') {
      read_pax(text(size));
    } else if (type == 'L') {
      const auto name_bytes = text(size);
      long_name_ = name_bytes.substr(0, name_bytes.find('\0'));
    } else if (!describes) {
      auto full = name();
      const bool regular = type == '0' || type == '7' || (type == '\0' && !full.ends_with('/'));
      long_name_.reset();
      pax_size_.reset();
      if (regular) each({std::move(full), at_ + kTarBlock, size});
    }
    at_ += kTarBlock + size + tar_padding(size);
  }

  RecordWindow window_;
  const ReadAt& read_;
  std::string_view where_;
  std::string_view head_;
  uint64_t at_ = 0;
  std::optional<std::string> long_name_;
  std::optional<uint64_t> pax_size_;
};

void put_text(std::string& block, TarField f, std::string_view text) {
  std::memcpy(block.data() + f.at, text.data(), std::min(text.size(), f.size));
}

void put_octal(std::string& block, TarField f, uint64_t value) {
  put_text(block, f, fmt::format("{:0{}o}", value, f.size - 1));
}

std::string tar_block(std::string_view prefix, std::string_view name, uint64_t size, char type) {
  std::string block(kTarBlock, '\0');
  put_text(block, kTarName, name);
  put_octal(block, kTarMode, 0444);
  put_octal(block, kTarUid, 0);
  put_octal(block, kTarGid, 0);
  put_octal(block, kTarSize, size);
  put_octal(block, kTarTime, 0);
  block[kTarType] = type;
  put_text(block, {kTarMagic, 8}, std::string_view("ustar\00000", 8));
  put_text(block, kTarUser, "bigdata");
  put_text(block, kTarGroup, "bigdata");
  put_text(block, kTarPrefix, prefix);
  put_text(block, kTarSum, "        ");
  uint64_t sum = 0;
  for (const char c : block) sum += static_cast<uint8_t>(c);
  put_text(block, kTarSum, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return block;
}

/// The length at the front counts its own digits.
std::string pax_line(std::string_view name, std::string_view value) {
  const size_t rest = name.size() + value.size() + 3;
  size_t length = rest + 1;
  while (fmt::formatted_size("{}", length) + rest != length) ++length;
  return fmt::format("{} {}={}\n", length, name, value);
}

}  // namespace

void scan_tar(const ReadAt& read, uint64_t file_size, std::string_view where,
              const std::function<void(TarMember&&)>& each) {
  TarScan(read, file_size, where).run(each);
}

std::optional<TarName> split_tar_name(std::string_view name) {
  if (name.starts_with("__")) {
    // "__x__" alone, or the folder "__x__/".
    const auto first = name.substr(0, name.find('/'));
    if (first.size() >= 4 && first.ends_with("__")) return std::nullopt;
  }
  const auto slash = name.rfind('/');
  const size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const auto dot = name.find('.', base);
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  if (dot == base) {
    // "a/.b" belongs to "a/", unless that folder has a dot itself.
    const auto folder = name.substr(0, slash);
    const auto above = folder.rfind('/');
    if (folder.find('.', above == std::string_view::npos ? 0 : above) != std::string_view::npos) return std::nullopt;
  }
  return TarName{name.substr(0, dot), name.substr(dot + 1)};
}

std::string tar_header(std::string_view name, uint64_t size) {
  constexpr uint64_t kMostOctal = (uint64_t{1} << 33) - 1;
  std::string_view prefix, rest = name;
  bool fits = name.size() <= kTarName.size;
  if (!fits && name.size() <= kTarName.size + kTarPrefix.size + 1) {
    const auto slash = name.find('/', name.size() - kTarName.size - 1);
    if (slash != std::string_view::npos && slash > 0 && slash <= kTarPrefix.size && slash + 1 < name.size()) {
      prefix = name.substr(0, slash);
      rest = name.substr(slash + 1);
      fits = true;
    }
  }
  if (fits && size <= kMostOctal) return tar_block(prefix, rest, size, '0');
  std::string attributes;
  if (!fits) attributes += pax_line("path", name);
  if (size > kMostOctal) attributes += pax_line("size", fmt::format("{}", size));
  auto blocks = tar_block("", "././@PaxHeader", attributes.size(), 'x') + attributes;
  blocks.append(tar_padding(attributes.size()), '\0');
  return blocks +
         tar_block(fits ? prefix : "", fits ? rest : name.substr(0, kTarName.size), size > kMostOctal ? 0 : size, '0');
}

}  // namespace levin::detail
