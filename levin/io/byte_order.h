#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace levin::detail {

/// Turns each number of `width` bytes around.
inline void swap_bytes(std::span<std::byte> bytes, size_t width) {
  if (width < 2) return;
  for (size_t at = 0; at + width <= bytes.size(); at += width)
    for (size_t i = 0; i < width / 2; ++i) std::swap(bytes[at + i], bytes[at + width - 1 - i]);
}

}  // namespace levin::detail
