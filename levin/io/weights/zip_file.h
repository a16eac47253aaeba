#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/core/files.h"

namespace levin {

/// One file of an archive: where its bytes begin in the archive, and how many there are.
struct ZipEntry {
  std::string name;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  /// CRC-32 of the bytes (IEEE, as zip has it).
  uint32_t crc = 0;
};

/// An archive of stored files, open for reading, with more than 4 GB too. What is compressed, encrypted or split is
/// refused, and so are names that stand twice, lead out of the archive or differ between the two places that a zip
/// keeps them, and files that overlap: two readers must not see two different things in one archive.
///
///     levin::ZipFile zip("weights.pt");
///     auto version = zip.read(zip.at("archive/version"));
class ZipFile {
 public:
  /// `wanted` sees each name before anything else of it is looked at. Files that it does not want are left out, and may
  /// be compressed.
  explicit ZipFile(const std::filesystem::path& path, const std::function<bool(std::string_view)>& wanted = {});

  /// In the order of their bytes.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  const std::filesystem::path& path() const { return file_.path(); }
  /// Null when there is none of that name.
  const ZipEntry* find(std::string_view name) const;
  const ZipEntry& at(std::string_view name) const;

  /// The whole of a file; one of more than `limit` bytes is refused before anything is read.
  std::string read(const ZipEntry& entry, uint64_t limit = uint64_t{1} << 30) const;
  /// Bytes from `begin` of a file on.
  void read(const ZipEntry& entry, uint64_t begin, std::span<std::byte> into) const;
  /// Reads a file and compares its CRC; an Error when it differs.
  void verify(const ZipEntry& entry) const;

 private:
  FileReader file_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

/// Writes an archive of stored files into a writer that the caller closes. Data begin at multiples of 64 bytes.
class ZipWriter {
 public:
  explicit ZipWriter(FileWriter& writer) : writer_(writer), start_(writer.size()) {}

  void add(std::string_view name, std::span<const std::byte> bytes);
  void add(std::string_view name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }
  /// Writes the directory; nothing can be added after it.
  void finish();

 private:
  struct Written {
    ZipEntry entry;
    uint64_t header = 0;
  };
  FileWriter& writer_;
  uint64_t start_;
  std::vector<Written> written_;
};

namespace detail {
/// CRC-32 as zip has it; can be continued.
uint32_t crc32_zip(std::span<const std::byte> bytes, uint32_t before = 0);
/// Checks an archive of `size` bytes that `read` reads, and lists it in the order of its bytes.
std::vector<ZipEntry> parse_zip(uint64_t size, const std::function<void(uint64_t, std::span<std::byte>)>& read,
                                const std::string& where, const std::function<bool(std::string_view)>& wanted = {});
}  // namespace detail

}  // namespace levin
