#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

/// Whole batches of images in one kernel on CUDA, and in one pass on the CPU with the same numbers.
namespace levin::kernels {

using at::Tensor;

/// Where a new image begins in the old one (outside of it there is the fill), and whether it is mirrored afterwards.
struct ImagePlacement {
  int32_t top = 0;
  int32_t left = 0;
  int32_t flip = 0;
};

struct NormalizeImages {
  /// Of values between 0 and 1; one for all channels or one each. Empty: 0 and 1.
  std::vector<double> mean = {};
  std::vector<double> std = {};
  /// float, half or bfloat16.
  at::ScalarType dtype = at::kFloat;
  /// The memory of the result: [B, H, W, C], or [B, C, H, W].
  bool channels_last = false;
  /// Of the result; 0 is that of the images.
  int64_t height = 0;
  int64_t width = 0;
  /// What stands outside of an image (0 to 255), for all channels.
  int32_t fill = 0;
};

/// (x / 255 - mean) / std of images of bytes [B, C, H, W], contiguous or channels-last, cast, cut and mirrored on the
/// way. `placements` has one for every image, or none. Every number is that of torchvision's three steps in float, and
/// then rounded to the dtype; on CUDA no host is waited for.
Tensor normalize_images(const Tensor& images, const NormalizeImages& options,
                        std::span<const ImagePlacement> placements = {});

/// A rectangle of an image; nothing where the height is 0.
struct EraseBox {
  int32_t top = 0;
  int32_t left = 0;
  int32_t height = 0;
  int32_t width = 0;
};

/// Writes `value` (one number, or one for each channel) into one rectangle of every image of [B, C, H, W], in place.
void erase_images(Tensor& images, std::span<const EraseBox> boxes, std::span<const double> value);

}  // namespace levin::kernels
