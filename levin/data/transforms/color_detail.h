#pragma once

#include <array>

#include "levin/data/transforms/pixels.h"
#include "levin/io/images/codec.h"

namespace levin::transforms::detail {

/// A new value for each of a byte.
using ByteTable = std::array<uint8_t, 256>;

/// The image with `tables[c]` applied to channel c, or one table to all; the last of 2 or 4 channels (alpha) stays.
at::Tensor apply_tables(const Pixels& in, const std::vector<ByteTable>& tables);

/// 1 or 3: how many channels have colour in them.
int64_t color_channels(int64_t channels, const char* operation);

/// Pillow's `Image.blend(degenerate, image, factor)` of two bytes. Its product is rounded before the sum, as Pillow
/// compiled for x86 does (other machines join the two), and so is looked up here.
class Blend {
 public:
  explicit Blend(double factor);
  uint8_t operator()(int degenerate, int image) const {
    const float value = static_cast<float>(degenerate) + product_[static_cast<size_t>(image - degenerate + 255)];
    return value <= 0 ? 0 : value >= 255 ? 255 : static_cast<uint8_t>(value);
  }

 private:
  std::array<float, 511> product_;
};

/// Brightness as Pillow's mode L has it.
inline int luma(const uint8_t* rgb) {
  return levin::detail::luma(rgb[0], rgb[1], rgb[2]);
}

/// torchvision's mixture of two floating point images, kept between 0 and 1.
at::Tensor blend_float(const at::Tensor& image, const at::Tensor& other, double factor);

}  // namespace levin::transforms::detail
