#include "levin/loggers/records.h"

#include "levin/core/checksum.h"

namespace levin::detail {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;

// Checksums are masked since data may itself hold checksums.
uint32_t masked(std::string_view bytes) {
  const auto crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void append_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) out += static_cast<char>(value & 0xff);
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

void append_record(std::string& out, std::string_view data) {
  const auto start = out.size();
  append_little_endian(out, data.size(), 8);
  append_little_endian(out, masked(std::string_view(out).substr(start, 8)), 4);
  out += data;
  append_little_endian(out, masked(data), 4);
}

WholeRecords whole_records(std::string_view file) {
  WholeRecords found;
  while (file.size() - found.bytes >= kHeaderBytes + kFooterBytes) {
    const auto rest = file.substr(found.bytes);
    const auto length = little_endian(rest.substr(0, 8));
    if (masked(rest.substr(0, 8)) != little_endian(rest.substr(8, 4))) break;
    if (length > rest.size() - kHeaderBytes - kFooterBytes) break;
    if (masked(rest.substr(kHeaderBytes, length)) != little_endian(rest.substr(kHeaderBytes + length, 4))) break;
    found.bytes += kHeaderBytes + length + kFooterBytes;
    ++found.count;
  }
  return found;
}

}  // namespace levin::detail
