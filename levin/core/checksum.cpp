#include "levin/core/checksum.h"

#include <array>
#include <cstring>

#include <fmt/format.h>

#if defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace levin {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78U : 0U);
    tables[0][i] = value;
  }
  for (uint32_t i = 0; i < 256; ++i)
    for (size_t k = 1; k < 8; ++k) tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

uint64_t load_word(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

#if defined(__aarch64__) && defined(__linux__)
#define LEVIN_HAS_CRC32C __attribute__((target("+crc")))
bool has_instruction() {
  return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
LEVIN_HAS_CRC32C inline uint32_t with_word(uint32_t crc, uint64_t word) {
  return __crc32cd(crc, word);
}
LEVIN_HAS_CRC32C inline uint32_t with_byte(uint32_t crc, std::byte byte) {
  return __crc32cb(crc, static_cast<uint8_t>(byte));
}
#elif defined(__x86_64__)
#define LEVIN_HAS_CRC32C __attribute__((target("sse4.2")))
bool has_instruction() {
  return __builtin_cpu_supports("sse4.2");
}
LEVIN_HAS_CRC32C inline uint32_t with_word(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
LEVIN_HAS_CRC32C inline uint32_t with_byte(uint32_t crc, std::byte byte) {
  return _mm_crc32_u8(crc, static_cast<uint8_t>(byte));
}
#endif

#ifdef LEVIN_HAS_CRC32C
constexpr size_t kLaneBytes = 2048;

/// The checksum of bytes and kLaneBytes zeros behind them, by that of the bytes. It is linear in the bits, so
/// four tables do.
class ZerosBehind {
 public:
  ZerosBehind() {
    std::array<uint32_t, 32> of_bit{};
    for (size_t bit = 0; bit < of_bit.size(); ++bit) {
      uint32_t crc = uint32_t{1} << bit;
      for (size_t i = 0; i < kLaneBytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
      of_bit[bit] = crc;
    }
    for (size_t table = 0; table < 4; ++table)
      for (uint32_t byte = 0; byte < 256; ++byte)
        for (size_t bit = 0; bit < 8; ++bit)
          if (byte >> bit & 1U) tables_[table][byte] ^= of_bit[8 * table + bit];
  }
  uint32_t operator()(uint32_t crc) const {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^ tables_[3][crc >> 24];
  }

 private:
  std::array<std::array<uint32_t, 256>, 4> tables_{};
};

/// The instruction takes three cycles, and one can begin in each: three lanes, one behind the other in memory.
LEVIN_HAS_CRC32C uint32_t crc32c_hardware(std::span<const std::byte> bytes, uint32_t before) {
  static const ZerosBehind zeros_behind;
  uint32_t crc = ~before;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 3 * kLaneBytes; at += 3 * kLaneBytes, left -= 3 * kLaneBytes) {
    uint32_t second = 0, third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      crc = with_word(crc, load_word(at + i));
      second = with_word(second, load_word(at + kLaneBytes + i));
      third = with_word(third, load_word(at + 2 * kLaneBytes + i));
    }
    crc = zeros_behind(zeros_behind(crc) ^ second) ^ third;
  }
  for (; left >= 8; at += 8, left -= 8) crc = with_word(crc, load_word(at));
  for (; left > 0; ++at, --left) crc = with_byte(crc, *at);
  return ~crc;
}
#else
bool has_instruction() {
  return false;
}
uint32_t crc32c_hardware(std::span<const std::byte> bytes, uint32_t before) {
  return detail::crc32c_portable(bytes, before);
}
#endif

}  // namespace

uint32_t detail::crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    const uint64_t word = load_word(at) ^ crc;
    crc = kTables[7][word & 0xff] ^ kTables[6][(word >> 8) & 0xff] ^ kTables[5][(word >> 16) & 0xff] ^
          kTables[4][(word >> 24) & 0xff] ^ kTables[3][(word >> 32) & 0xff] ^ kTables[2][(word >> 40) & 0xff] ^
          kTables[1][(word >> 48) & 0xff] ^ kTables[0][word >> 56];
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*at)) & 0xff];
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const bool hardware = has_instruction();
  return hardware ? crc32c_hardware(bytes, before) : detail::crc32c_portable(bytes, before);
}

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  return crc32c(std::as_bytes(std::span(bytes)), before);
}

std::string checksum_text(uint32_t checksum) {
  return fmt::format("{:08x}", checksum);
}

}  // namespace levin
