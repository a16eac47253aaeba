#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace levin::detail {

/// An image [C, H, W] or [H, W] as uint8 [H, W, C] on the CPU: floating point 0..1 becomes 0..255, clipped. An Error
/// when it is none.
at::Tensor to_pixels(const std::string& name, const at::Tensor& image);

/// A PNG file of pixels [H, W, C], with 1 (gray), 3 (RGB) or 4 (RGBA) channels.
std::string encode_png(const at::Tensor& pixels);

}  // namespace levin::detail
