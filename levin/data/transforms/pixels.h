#pragma once

#include <ATen/core/Tensor.h>

#include "levin/data/transforms/resample.h"

namespace levin::transforms::detail {

/// The pixels of an image of bytes [C, H, W], row by row and interleaved, without a copy where its memory is so already
/// (a decoder's image and any crop of one).
class Pixels : public PixelRows {
 public:
  Pixels(const at::Tensor& image, const char* operation);
  const uint8_t* row(int64_t y) const { return data + y * stride; }
  int64_t row_bytes() const { return width * channels; }
  /// No gap between rows.
  bool packed() const { return stride == row_bytes(); }

 private:
  at::Tensor keep_;
};

/// uint8 [C, H, W] whose memory is [H, W, C].
at::Tensor new_pixels(int64_t channels, int64_t height, int64_t width);

bool is_bytes(const at::Tensor& image);

/// Whether the last channel is how opaque a pixel is: of 2 (grey) or 4 (RGB) channels.
inline bool has_alpha(int64_t channels) {
  return channels == 2 || channels == 4;
}

/// Colours times alpha, and back in place: what Pillow mixes pixels in, so that invisible ones leave no trace.
at::Tensor with_alpha_in(const at::Tensor& image, const char* operation);
void take_alpha_out(at::Tensor& pixels);

/// An Error unless it is [C, H, W], of bytes or of floating point numbers.
void check_image(const at::Tensor& image, const char* operation);

}  // namespace levin::transforms::detail
