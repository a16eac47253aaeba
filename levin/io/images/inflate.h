#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace levin::detail {

/// Decompresses a zlib stream in one go, with libdeflate where that is there (deflate.cpp, no_deflate.cpp) and with
/// zlib where not. True when exactly `out` came out and the checksum of the stream fits; what was wrong otherwise is
/// for others to find out.
bool inflate_whole(std::span<const std::byte> stream, std::span<uint8_t> out);

}  // namespace levin::detail
