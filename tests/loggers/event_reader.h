#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/checksum.h"

namespace levin::testing {

/// The data of the records of a file. Throws when a length or a checksum is wrong, or the last one is torn.
inline std::vector<std::string> read_records(std::string_view file) {
  const auto masked = [](std::string_view bytes) {
    const auto crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  const auto take = [&](size_t count) {
    if (file.size() < count) throw std::runtime_error("torn record");
    const auto bytes = file.substr(0, count);
    file.remove_prefix(count);
    return bytes;
  };
  const auto check = [&](std::string_view bytes) {
    uint32_t expected = 0;
    std::memcpy(&expected, take(4).data(), 4);
    if (masked(bytes) != expected) throw std::runtime_error("wrong checksum");
  };
  std::vector<std::string> records;
  while (!file.empty()) {
    const auto header = take(8);
    uint64_t length = 0;
    std::memcpy(&length, header.data(), 8);
    check(header);
    const auto data = take(length);
    check(data);
    records.emplace_back(data);
  }
  return records;
}

/// The fields of a protocol buffer, by number: the bytes of texts and numbers of fixed width, and varints as 8 bytes.
inline std::multimap<int, std::string> read_fields(std::string_view bytes) {
  std::multimap<int, std::string> fields;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (bytes.empty()) throw std::runtime_error("torn message");
      const auto byte = static_cast<uint8_t>(bytes.front());
      bytes.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (!bytes.empty()) {
    const auto tag = varint();
    const auto kind = tag & 7;
    if (kind == 0) {
      const auto value = varint();
      fields.emplace(static_cast<int>(tag >> 3), std::string(reinterpret_cast<const char*>(&value), 8));
      continue;
    }
    const auto size = kind == 1 ? 8 : kind == 5 ? 4 : varint();
    if (bytes.size() < size) throw std::runtime_error("torn message");
    fields.emplace(static_cast<int>(tag >> 3), std::string(bytes.substr(0, size)));
    bytes.remove_prefix(size);
  }
  return fields;
}

template <class T>
T as(const std::string& bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace levin::testing
