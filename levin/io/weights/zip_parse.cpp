#include <algorithm>
#include <optional>
#include <unordered_set>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/io/weights/zip_file.h"
#include "levin/io/weights/zip_format.h"

namespace levin::detail {
namespace {

constexpr uint64_t kMostZipEntries = 1'000'000;
constexpr uint64_t kLongestZipDirectory = uint64_t{256} << 20;
constexpr uint64_t kLongestZipComment = 65535;

using ReadAt = std::function<void(uint64_t, std::span<std::byte>)>;
using Wanted = std::function<bool(std::string_view)>;

struct ZipDirectory {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

struct ZipRecord {
  ZipEntry entry;
  uint64_t header = 0;
  uint16_t flags = 0;
  uint16_t method = 0;
  uint32_t size32 = 0;
  bool wanted = true;
};

bool leads_outside(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find_first_of(std::string_view("\\\0", 2)) != name.npos) return true;
  if (name.size() > 1 && name[1] == ':') return true;
  for (size_t at = 0; at <= name.size();) {
    const auto end = std::min(name.find('/', at), name.size());
    const auto part = name.substr(at, end - at);
    if (part == ".." || part == ".") return true;
    at = end + 1;
  }
  return false;
}

class ZipParser {
 public:
  ZipParser(uint64_t size, const ReadAt& read, const std::string& where, const Wanted& wanted)
      : size_(size), read_(read), where_(where), wanted_(wanted) {}

  std::vector<ZipEntry> run() {
    find_end();
    auto records = read_directory();
    std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.header < b.header; });
    std::vector<ZipEntry> entries;
    uint64_t free_from = 0;
    for (auto& record : records) {
      if (record.header < free_from) refuse("\"", shown(record.entry.name), "\" overlaps the file before it");
      check_local(record);
      free_from = record.entry.offset + record.entry.bytes;
      if (record.wanted) entries.push_back(std::move(record.entry));
    }
    return entries;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(const Args&... args) const {
    throw Error(concat("[zip] \"", where_, "\": ", args...));
  }

  std::string bytes(uint64_t offset, uint64_t count) const {
    if (offset > size_ || count > size_ - offset) refuse("ends too early, or is no zip archive");
    std::string text(count, '\0');
    read_(offset, std::as_writable_bytes(std::span(text)));
    return text;
  }

  void find_end() {
    if (size_ < kZipEndBytes) refuse("is no zip archive: it has ", size_, " bytes");
    const auto tail_bytes = std::min(size_, kLongestZipComment + kZipEndBytes);
    const auto tail = bytes(size_ - tail_bytes, tail_bytes);
    std::optional<size_t> found;
    for (size_t at = tail.size() - kZipEndBytes + 1; at-- > 0;) {
      if (zip_number<uint32_t>(tail, at) != kZipEnd) continue;
      if (zip_number<uint16_t>(tail, at + 20) != tail.size() - at - kZipEndBytes) continue;
      found = at;
      break;
    }
    if (!found) refuse("is no zip archive: it has no end record, or was cut off");
    const auto end = std::string_view(tail).substr(*found, kZipEndBytes);
    end_ = size_ - tail_bytes + *found;
    directory_ = {zip_number<uint32_t>(end, 16), zip_number<uint32_t>(end, 12), zip_number<uint16_t>(end, 10)};
    if (zip_number<uint16_t>(end, 4) != 0 || zip_number<uint16_t>(end, 6) != 0 ||
        zip_number<uint16_t>(end, 8) != directory_.entries)
      refuse("is a part of a split archive, which cannot be read");
    find_zip64_end();
    if (directory_.entries > kMostZipEntries) refuse("announces ", directory_.entries, " files");
    if (directory_.bytes > kLongestZipDirectory) refuse("announces a directory of ", directory_.bytes, " bytes");
    if (directory_.offset > end_ || directory_.bytes != end_ - directory_.offset)
      refuse("its directory does not lie where its end record says");
  }

  void find_zip64_end() {
    const bool full =
        directory_.offset == kZipFull32 || directory_.bytes == kZipFull32 || directory_.entries == kZipFull16;
    std::string locator;
    if (end_ >= kZip64LocatorBytes) locator = bytes(end_ - kZip64LocatorBytes, kZip64LocatorBytes);
    if (locator.empty() || zip_number<uint32_t>(locator, 0) != kZip64Locator) {
      if (full) refuse("has no zip64 record, and needs one");
      return;
    }
    if (zip_number<uint32_t>(locator, 4) != 0 || zip_number<uint32_t>(locator, 16) > 1)
      refuse("is a part of a split archive, which cannot be read");
    const auto at = zip_number<uint64_t>(locator, 8);
    const auto record = bytes(at, kZip64EndBytes);
    if (zip_number<uint32_t>(record, 0) != kZip64End) refuse("its zip64 record does not lie where its locator says");
    const auto length = zip_number<uint64_t>(record, 4);
    if (length < kZip64EndBytes - 12 || at > end_ || length != end_ - kZip64LocatorBytes - at - 12)
      refuse("its zip64 record has a wrong length");
    const ZipDirectory wide{zip_number<uint64_t>(record, 48), zip_number<uint64_t>(record, 40),
                            zip_number<uint64_t>(record, 32)};
    const auto differs = [](uint64_t narrow, uint64_t mark, uint64_t value) {
      return narrow != mark && narrow != value;
    };
    if (zip_number<uint32_t>(record, 16) != 0 || zip_number<uint32_t>(record, 20) != 0 ||
        zip_number<uint64_t>(record, 24) != wide.entries || differs(directory_.offset, kZipFull32, wide.offset) ||
        differs(directory_.bytes, kZipFull32, wide.bytes) || differs(directory_.entries, kZipFull16, wide.entries))
      refuse("its two end records differ");
    directory_ = wide;
    end_ = at;
  }

  std::vector<ZipRecord> read_directory() const {
    const auto text = bytes(directory_.offset, directory_.bytes);
    std::vector<ZipRecord> records;
    std::unordered_set<std::string> names;
    size_t at = 0;
    for (uint64_t i = 0; i < directory_.entries; ++i) {
      if (text.size() - at < kZipCentralBytes || zip_number<uint32_t>(text, at) != kZipCentral)
        refuse("entry ", i, " of its directory is damaged");
      const uint64_t name_bytes = zip_number<uint16_t>(text, at + 28);
      const uint64_t extra_bytes = zip_number<uint16_t>(text, at + 30);
      const uint64_t comment_bytes = zip_number<uint16_t>(text, at + 32);
      const auto whole = kZipCentralBytes + name_bytes + extra_bytes + comment_bytes;
      if (whole > text.size() - at) refuse("entry ", i, " of its directory is cut off");
      const auto entry = std::string_view(text).substr(at, whole);
      records.push_back(read_central(entry, name_bytes, extra_bytes));
      const auto& name = records.back().entry.name;
      if (!names.insert(name).second) refuse("the name \"", shown(name), "\" stands twice");
      at += whole;
    }
    if (at != text.size()) refuse("its directory is longer than its entries");
    return records;
  }

  ZipRecord read_central(std::string_view text, uint64_t name_bytes, uint64_t extra_bytes) const {
    ZipRecord record;
    auto& entry = record.entry;
    entry.name = text.substr(kZipCentralBytes, name_bytes);
    const auto name = shown(entry.name);
    if (leads_outside(entry.name)) refuse("the name \"", name, "\" leads out of the archive");
    record.wanted = !wanted_ || wanted_(entry.name);
    record.flags = zip_number<uint16_t>(text, 8);
    if ((record.flags & 0x2041) != 0) refuse("\"", name, "\" is encrypted, which cannot be read");
    record.method = zip_number<uint16_t>(text, 10);
    if (record.method != 0 && record.wanted)
      refuse("\"", name, "\" is compressed (method ", record.method, "); only stored files are read");
    entry.crc = zip_number<uint32_t>(text, 16);
    uint64_t packed = zip_number<uint32_t>(text, 20);
    entry.bytes = zip_number<uint32_t>(text, 24);
    record.size32 = zip_number<uint32_t>(text, 24);
    uint64_t disk = zip_number<uint16_t>(text, 34);
    record.header = zip_number<uint32_t>(text, 42);
    const auto extra = text.substr(kZipCentralBytes + name_bytes, extra_bytes);
    for (size_t at = 0; extra.size() - at >= 4;) {
      const auto kind = zip_number<uint16_t>(extra, at);
      const size_t length = zip_number<uint16_t>(extra, at + 2);
      at += 4;
      if (length > extra.size() - at) refuse("\"", name, "\" has a damaged extra field");
      if (kind == kZip64Extra) {
        auto field = extra.substr(at, length);
        const auto widen = [&](uint64_t& value, uint64_t mark) {
          if (value != mark) return;
          if (field.size() < 8) refuse("\"", name, "\" has a damaged zip64 field");
          value = zip_number<uint64_t>(field, 0);
          field.remove_prefix(8);
        };
        widen(entry.bytes, kZipFull32);
        widen(packed, kZipFull32);
        widen(record.header, kZipFull32);
      }
      at += length;
    }
    if (disk != 0) refuse("\"", name, "\" lies on another disk of a split archive");
    if (packed != entry.bytes && record.method == 0) refuse("\"", name, "\" is stored, yet its two sizes differ");
    entry.bytes = packed;
    return record;
  }

  void check_local(ZipRecord& record) const {
    auto& entry = record.entry;
    const auto name = shown(entry.name);
    const auto limit = directory_.offset;
    if (record.header > limit || limit - record.header < kZipLocalBytes) refuse("\"", name, "\" lies beyond its files");
    const auto local = bytes(record.header, kZipLocalBytes);
    if (zip_number<uint32_t>(local, 0) != kZipLocal) refuse("\"", name, "\" does not lie where the directory says");
    const uint64_t name_bytes = zip_number<uint16_t>(local, 26);
    const uint64_t extra_bytes = zip_number<uint16_t>(local, 28);
    const auto head = kZipLocalBytes + name_bytes + extra_bytes;
    if (head > limit - record.header || entry.bytes > limit - record.header - head)
      refuse("\"", name, "\" ends after the archive's files: ", entry.bytes, " bytes are announced");
    const bool described_after = (zip_number<uint16_t>(local, 6) & 8) != 0;
    const auto size = zip_number<uint32_t>(local, 22);
    const bool same_size = size == record.size32 || size == kZipFull32 || (described_after && size == 0);
    const auto crc = zip_number<uint32_t>(local, 14);
    if (name_bytes != entry.name.size() || bytes(record.header + kZipLocalBytes, name_bytes) != entry.name ||
        zip_number<uint16_t>(local, 8) != record.method || !same_size ||
        (crc != entry.crc && !(described_after && crc == 0)))
      refuse("\"", name, "\" is described otherwise at its data than in the directory");
    entry.offset = record.header + head;
  }

  uint64_t size_;
  const ReadAt& read_;
  const std::string& where_;
  const Wanted& wanted_;
  uint64_t end_ = 0;
  ZipDirectory directory_;
};

}  // namespace

std::vector<ZipEntry> parse_zip(uint64_t size, const ReadAt& read, const std::string& where, const Wanted& wanted) {
  return ZipParser(size, read, where, wanted).run();
}

}  // namespace levin::detail
