#include "levin/data/transforms/pixels.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

Interpolation interpolation_of(std::string_view word) {
  static const std::vector<std::string> known = {"nearest", "nearest-exact", "bilinear", "bicubic",
                                                 "box",     "hamming",       "lanczos"};
  for (size_t i = 0; i < known.size(); ++i)
    if (known[i] == word) return static_cast<Interpolation>(i);
  fail_unknown("transforms", "interpolation", word, known);
}

namespace detail {

bool is_bytes(const at::Tensor& image) {
  return image.scalar_type() == at::kByte;
}

void check_image(const at::Tensor& image, const char* operation) {
  LEVIN_CHECK(image.defined() && image.dim() == 3 && (is_bytes(image) || image.is_floating_point()), "[", operation,
              "] an image is [C, H, W] of uint8 or of floating point numbers; this is ",
              image.defined() ? levin::detail::concat(image.scalar_type(), " ", image.sizes()) : "empty");
}

Pixels::Pixels(const at::Tensor& image, const char* operation) {
  check_image(image, operation);
  LEVIN_CHECK(is_bytes(image), "[", operation, "] needs an image of uint8, not of ", image.scalar_type());
  channels = image.size(0);
  height = image.size(1);
  width = image.size(2);
  const bool interleaved =
      (channels == 1 || image.stride(0) == 1) && image.stride(2) == channels && image.stride(1) >= width * channels;
  keep_ = interleaved ? image : image.permute({1, 2, 0}).contiguous();
  data = keep_.const_data_ptr<uint8_t>();
  stride = interleaved && height > 1 ? image.stride(1) : width * channels;
}

at::Tensor new_pixels(int64_t channels, int64_t height, int64_t width) {
  return at::empty_strided({channels, height, width}, {1, width * channels, channels}, at::kByte);
}

at::Tensor with_alpha_in(const at::Tensor& image, const char* operation) {
  const Pixels in(image, operation);
  at::Tensor result = new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    for (int64_t x = 0; x < in.width; ++x, from += in.channels, out += in.channels) {
      const int alpha = from[in.channels - 1];
      for (int64_t c = 0; c + 1 < in.channels; ++c) {
        const int product = from[c] * alpha + 128;
        out[c] = static_cast<uint8_t>((product + (product >> 8)) >> 8);
      }
      out[in.channels - 1] = static_cast<uint8_t>(alpha);
    }
  }
  return result;
}

void take_alpha_out(at::Tensor& pixels) {
  const int64_t channels = pixels.size(0), count = pixels.size(1) * pixels.size(2);
  auto* pixel = pixels.mutable_data_ptr<uint8_t>();
  for (int64_t i = 0; i < count; ++i, pixel += channels) {
    const int alpha = pixel[channels - 1];
    if (alpha == 0 || alpha == 255) continue;
    for (int64_t c = 0; c + 1 < channels; ++c) pixel[c] = static_cast<uint8_t>(std::min(255 * pixel[c] / alpha, 255));
  }
}

}  // namespace detail

}  // namespace levin::transforms
