#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

/// Crop, resize, flip and normalize images of unequal sizes into one batch: one kernel on CUDA, and the same numbers on
/// the CPU.
namespace levin::kernels {

using at::Tensor;

/// What becomes of one image. A part of the upright image is resized; the result is a window of that, mirrored.
struct ResamplePlacement {
  /// The part, in pixels of the upright image.
  int32_t top = 0;
  int32_t left = 0;
  int32_t height = 0;
  int32_t width = 0;
  /// What the part is resized to.
  int32_t resized_height = 0;
  int32_t resized_width = 0;
  /// Where the window begins in the resized part; outside of it there is the fill.
  int32_t window_top = 0;
  int32_t window_left = 0;
  bool flip_x = false;
  bool flip_y = false;
  /// EXIF's number, 1 to 8: how the pixels are turned upright.
  int32_t orientation = 1;
};

struct ResampleImages {
  /// Of the result.
  int64_t height = 0;
  int64_t width = 0;
  /// Byte: the pixels as they are. Float, Half, BFloat16: (x / 255 - mean) / std.
  at::ScalarType dtype = at::kByte;
  /// Of values between 0 and 1; one for all channels or one each. Empty: 0 and 1.
  std::vector<double> mean = {};
  std::vector<double> std = {};
  /// The memory of the result: [B, H, W, C], or [B, C, H, W].
  bool channels_last = true;
  /// Outside of the images, 0 to 255; one for all channels or one each. Empty: 0.
  std::vector<double> fill = {};
  /// Bicubic in place of bilinear. Both are as wide as the image shrinks (antialias), as Pillow's are.
  bool bicubic = false;
};

/// [B, C, height, width] of B images uint8 [C, H, W] (1 or 3 channels, any size and strides, all on one device). The
/// bytes are those of transforms::crop, resize and the flips, and so Pillow's.
Tensor resample_images(std::span<const Tensor> images, std::span<const ResamplePlacement> placements,
                       const ResampleImages& options);

}  // namespace levin::kernels
