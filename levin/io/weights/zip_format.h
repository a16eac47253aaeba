#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// The records of a zip archive, little-endian; for the reader and the writer.
namespace levin::detail {

inline constexpr uint32_t kZipLocal = 0x04034b50, kZipCentral = 0x02014b50, kZipEnd = 0x06054b50;
inline constexpr uint32_t kZip64End = 0x06064b50, kZip64Locator = 0x07064b50;
inline constexpr size_t kZipLocalBytes = 30, kZipCentralBytes = 46, kZipEndBytes = 22;
inline constexpr size_t kZip64EndBytes = 56, kZip64LocatorBytes = 20;
inline constexpr uint32_t kZipFull32 = 0xffffffff;
inline constexpr uint16_t kZipFull16 = 0xffff;
inline constexpr uint16_t kZip64Extra = 0x0001;
inline constexpr uint64_t kZipAlignment = 64;

/// A little-endian number at a place that the caller has checked.
template <class T>
T zip_number(std::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value =
        static_cast<T>(value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[at + i])) << (8 * i)));
  return value;
}

template <class T>
void zip_put(std::string& into, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) into.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

}  // namespace levin::detail
