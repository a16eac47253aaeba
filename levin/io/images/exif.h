#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "levin/io/images/image_options.h"

namespace levin::detail {

/// The orientation that EXIF data declare (TIFF, with or without "Exif\0\0" before it), 1 to 8; 1 when they declare
/// none or cannot be read.
int exif_orientation(std::span<const std::byte> exif);

/// Whether height and width change places when an image is turned upright.
constexpr bool swaps_sides(int orientation) {
  return orientation >= 5;
}

/// The part of the stored image, `height` x `width`, that a part of the upright image comes from.
ImageRegion stored_region(const ImageRegion& upright, int orientation, int64_t height, int64_t width);

/// Turns stored pixels [height, width, channels] upright; `out` has room for as many and lies elsewhere.
void turn_upright(const uint8_t* stored, int64_t height, int64_t width, int channels, int orientation, uint8_t* out);

}  // namespace levin::detail
