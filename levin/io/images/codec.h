#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "levin/io/images/image_options.h"

/// What the codecs share. They know neither tensors nor files: bytes go in, rows of pixels come out.
namespace levin::detail {

struct CodecRequest {
  /// Of the pixels wanted: 1 (grey), 2 (grey and alpha; only of a PNG that has them), 3 (RGB) or 4 (RGBA).
  int channels = 3;
  /// Of the stored image, after scaling; within it, and not empty.
  ImageRegion region;
  /// Of a JPEG: 1, 2, 4 or 8 divides its sides.
  int scale = 1;
  bool allow_truncated = false;
};

/// ITU-R 601-2 in the whole numbers that Pillow uses.
constexpr uint8_t luma(uint8_t red, uint8_t green, uint8_t blue) {
  return static_cast<uint8_t>((red * 19595u + green * 38470u + blue * 7471u + 0x8000u) >> 16);
}

/// What lies beyond the end of a file that is read all the same.
constexpr uint8_t kMissingPixel = 128;

}  // namespace levin::detail
