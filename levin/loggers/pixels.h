#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace levin::detail {

/// An image [C, H, W] or [H, W] as uint8 [H, W, C] on the CPU: floating point 0..1 becomes 0..255, clipped. An Error
/// when it is none.
at::Tensor to_pixels(const std::string& name, const at::Tensor& image);

}  // namespace levin::detail
