#pragma once

#include <array>

#include "levin/data/transforms/resample.h"
#include "levin/data/transforms/values.h"

/// The arithmetic of Pillow's `Image.transform` on interleaved 8-bit pixels; geometry.h speaks tensors.
namespace levin::transforms::detail {

/// From a pixel of the new image to a place in the old one:
/// (x, y) -> ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1)).
struct WarpMap {
  std::array<double, 8> at = {};  // a to h; affine when the last two are 0
  bool is_affine = true;
};

/// Writes height * width * channels bytes; `blank` is the pixel for places outside. Nearest, bilinear and bicubic.
void warp(const PixelRows& in, uint8_t* out, int64_t height, int64_t width, const WarpMap& map,
          Interpolation interpolation, const uint8_t* blank);

}  // namespace levin::transforms::detail
