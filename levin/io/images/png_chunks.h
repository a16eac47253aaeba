#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace levin::detail {

/// A PNG file is a row of these after eight bytes of signature.
struct PngChunk {
  std::string_view type;
  std::span<const std::byte> data;
  bool whole = false;  // the file does not end within it
  size_t next = 0;     // where the next one begins
};

/// The chunk that begins at `at`; its type is empty when the file ends before it.
PngChunk png_chunk(std::span<const std::byte> file, size_t at);

}  // namespace levin::detail
