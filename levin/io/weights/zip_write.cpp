#include "levin/core/error.h"
#include "levin/io/weights/zip_file.h"
#include "levin/io/weights/zip_format.h"

namespace levin {
namespace {

using detail::zip_put;

// 1980-01-01, the first day there is: archives of the same content have the same bytes.
constexpr uint16_t kZipDate = 0x0021;
constexpr uint16_t kZipUtf8 = 0x0800;
/// An extra field that readers skip; torch's own archives are padded under this mark.
constexpr uint16_t kZipPadding = 0x4246;
constexpr uint16_t kZipVersion = 45;

uint32_t zip_narrow(uint64_t value) {
  return value >= detail::kZipFull32 ? detail::kZipFull32 : static_cast<uint32_t>(value);
}

}  // namespace

void ZipWriter::add(std::string_view name, std::span<const std::byte> bytes) {
  LEVIN_CHECK(name.size() < detail::kZipFull16 / 2, "[zip] a name of ", name.size(), " bytes cannot be written");
  Written written{{std::string(name), 0, bytes.size(), detail::crc32_zip(bytes)}, writer_.size() - start_};
  const bool wide = bytes.size() >= detail::kZipFull32;
  std::string extra;
  if (wide) {
    zip_put<uint16_t>(extra, detail::kZip64Extra);
    zip_put<uint16_t>(extra, 16);
    zip_put<uint64_t>(extra, bytes.size());
    zip_put<uint64_t>(extra, bytes.size());
  }
  const auto head = written.header + detail::kZipLocalBytes + name.size() + extra.size() + 4;
  const auto padding = (detail::kZipAlignment - head % detail::kZipAlignment) % detail::kZipAlignment;
  zip_put<uint16_t>(extra, kZipPadding);
  zip_put<uint16_t>(extra, static_cast<uint16_t>(padding));
  extra.append(padding, 'Z');

  std::string header;
  zip_put<uint32_t>(header, detail::kZipLocal);
  zip_put<uint16_t>(header, kZipVersion);
  zip_put<uint16_t>(header, kZipUtf8);
  zip_put<uint16_t>(header, 0);  // stored
  zip_put<uint16_t>(header, 0);
  zip_put<uint16_t>(header, kZipDate);
  zip_put<uint32_t>(header, written.entry.crc);
  zip_put<uint32_t>(header, zip_narrow(bytes.size()));
  zip_put<uint32_t>(header, zip_narrow(bytes.size()));
  zip_put<uint16_t>(header, static_cast<uint16_t>(name.size()));
  zip_put<uint16_t>(header, static_cast<uint16_t>(extra.size()));
  header += name;
  header += extra;
  writer_.write(header);
  written.entry.offset = writer_.size() - start_;
  writer_.write(bytes);
  written_.push_back(std::move(written));
}

void ZipWriter::finish() {
  const auto begin = writer_.size() - start_;
  for (const auto& [entry, header] : written_) {
    std::string extra;
    const bool wide = entry.bytes >= detail::kZipFull32;
    const bool far = header >= detail::kZipFull32;
    if (wide || far) {
      zip_put<uint16_t>(extra, detail::kZip64Extra);
      zip_put<uint16_t>(extra, static_cast<uint16_t>((wide ? 16 : 0) + (far ? 8 : 0)));
      if (wide) zip_put<uint64_t>(extra, entry.bytes);
      if (wide) zip_put<uint64_t>(extra, entry.bytes);
      if (far) zip_put<uint64_t>(extra, header);
    }
    std::string record;
    zip_put<uint32_t>(record, detail::kZipCentral);
    zip_put<uint16_t>(record, kZipVersion);
    zip_put<uint16_t>(record, kZipVersion);
    zip_put<uint16_t>(record, kZipUtf8);
    zip_put<uint16_t>(record, 0);  // stored
    zip_put<uint16_t>(record, 0);
    zip_put<uint16_t>(record, kZipDate);
    zip_put<uint32_t>(record, entry.crc);
    zip_put<uint32_t>(record, zip_narrow(entry.bytes));
    zip_put<uint32_t>(record, zip_narrow(entry.bytes));
    zip_put<uint16_t>(record, static_cast<uint16_t>(entry.name.size()));
    zip_put<uint16_t>(record, static_cast<uint16_t>(extra.size()));
    zip_put<uint16_t>(record, 0);  // comment
    zip_put<uint16_t>(record, 0);  // disk
    zip_put<uint16_t>(record, 0);
    zip_put<uint32_t>(record, 0);
    zip_put<uint32_t>(record, zip_narrow(header));
    record += entry.name;
    record += extra;
    writer_.write(record);
  }
  const auto end = writer_.size() - start_;
  const auto count = written_.size();
  std::string tail;
  if (count >= detail::kZipFull16 || begin >= detail::kZipFull32 || end - begin >= detail::kZipFull32) {
    zip_put<uint32_t>(tail, detail::kZip64End);
    zip_put<uint64_t>(tail, detail::kZip64EndBytes - 12);
    zip_put<uint16_t>(tail, kZipVersion);
    zip_put<uint16_t>(tail, kZipVersion);
    zip_put<uint64_t>(tail, 0);  // two numbers of disks
    zip_put<uint64_t>(tail, count);
    zip_put<uint64_t>(tail, count);
    zip_put<uint64_t>(tail, end - begin);
    zip_put<uint64_t>(tail, begin);
    zip_put<uint32_t>(tail, detail::kZip64Locator);
    zip_put<uint32_t>(tail, 0);
    zip_put<uint64_t>(tail, end);
    zip_put<uint32_t>(tail, 1);
  }
  const auto count16 = static_cast<uint16_t>(std::min<uint64_t>(count, detail::kZipFull16));
  zip_put<uint32_t>(tail, detail::kZipEnd);
  zip_put<uint32_t>(tail, 0);  // two numbers of disks
  zip_put<uint16_t>(tail, count16);
  zip_put<uint16_t>(tail, count16);
  zip_put<uint32_t>(tail, zip_narrow(end - begin));
  zip_put<uint32_t>(tail, zip_narrow(begin));
  zip_put<uint16_t>(tail, 0);  // comment
  writer_.write(tail);
}

}  // namespace levin
