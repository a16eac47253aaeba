#pragma once

#include <cstdint>
#include <memory>
#include <vector>

/// The arithmetic of Pillow's `Image.resize` on interleaved 8-bit pixels: two passes of fixed-point convolution.
/// Pointers and sizes only; levin/data/transforms/resize.h speaks tensors.
namespace levin::transforms::detail {

enum class ResampleFilter { kBox, kBilinear, kHamming, kBicubic, kLanczos };

/// Which pixels of a line make one pixel of the new line, and with what weights (22 bits after the point).
struct ResampleWeights {
  int64_t taps = 0;             // room per pixel; what is not used is 0
  std::vector<int32_t> first;   // [out] the first pixel
  std::vector<int32_t> count;   // [out] how many
  std::vector<int32_t> weight;  // [out, taps]
};

/// Kept per thread for the sizes that came last.
std::shared_ptr<const ResampleWeights> resample_weights(int64_t in, int64_t out, ResampleFilter filter);

struct PixelRows {
  const uint8_t* data = nullptr;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  /// Bytes from a row to the next.
  int64_t stride = 0;
};

/// Writes height * width * channels bytes, rows without a gap.
void resample(const PixelRows& in, uint8_t* out, int64_t height, int64_t width, ResampleFilter filter);

/// The same with the nearest pixel.
void resample_nearest(const PixelRows& in, uint8_t* out, int64_t height, int64_t width);

}  // namespace levin::transforms::detail
