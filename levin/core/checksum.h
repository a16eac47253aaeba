#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace levin {

/// CRC-32C (Castagnoli), the one checksum of Levin's files: processors compute it in hardware, and TFRecord and
/// TensorBoard files use it too. `crc32c("123456789")` is 0xe3069283.
///
/// A checksum can be continued: `crc32c(b, crc32c(a))` is that of a followed by b.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

/// "e3069283"
std::string checksum_text(uint32_t checksum);

namespace detail {
/// The table-driven twin of the hardware instruction, for machines without it.
uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before);
}  // namespace detail

}  // namespace levin
