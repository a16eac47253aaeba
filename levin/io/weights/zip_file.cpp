#include "levin/io/weights/zip_file.h"

#include <algorithm>

#include <zlib.h>

#include "levin/core/error.h"

namespace levin {
namespace {

constexpr size_t kZipChunk = size_t{4} << 20;

}  // namespace

uint32_t detail::crc32_zip(std::span<const std::byte> bytes, uint32_t before) {
  return static_cast<uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

ZipFile::ZipFile(const std::filesystem::path& path, const std::function<bool(std::string_view)>& wanted) : file_(path) {
  entries_ = detail::parse_zip(
      file_.size(), [&](uint64_t offset, std::span<std::byte> into) { file_.read(offset, into); }, path.string(),
      wanted);
  for (size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].name, i);
}

const ZipEntry* ZipFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const ZipEntry& ZipFile::at(std::string_view name) const {
  const auto* entry = find(name);
  LEVIN_CHECK(entry, "[zip] \"", path().string(), "\" has no file \"", name, "\"");
  return *entry;
}

std::string ZipFile::read(const ZipEntry& entry, uint64_t limit) const {
  LEVIN_CHECK(entry.bytes <= limit, "[zip] \"", path().string(), "\": \"", entry.name, "\" has ", entry.bytes,
              " bytes; at most ", limit, " are read");
  std::string text(entry.bytes, '\0');
  file_.read(entry.offset, std::as_writable_bytes(std::span(text)));
  return text;
}

void ZipFile::read(const ZipEntry& entry, uint64_t begin, std::span<std::byte> into) const {
  LEVIN_CHECK(begin <= entry.bytes && into.size() <= entry.bytes - begin, "[zip] \"", path().string(), "\": \"",
              entry.name, "\" has ", entry.bytes, " bytes; asked for ", into.size(), " from ", begin, " on");
  file_.read(entry.offset + begin, into);
}

void ZipFile::verify(const ZipEntry& entry) const {
  std::vector<std::byte> buffer(std::min<uint64_t>(entry.bytes, kZipChunk));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < entry.bytes;) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), entry.bytes - at));
    read(entry, at, part);
    crc = detail::crc32_zip(part, crc);
    at += part.size();
  }
  LEVIN_CHECK(crc == entry.crc, "[zip] \"", path().string(), "\": \"", entry.name,
              "\" is damaged: its checksum differs");
}

}  // namespace levin
