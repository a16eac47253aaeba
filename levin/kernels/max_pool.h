#pragma once

#include <array>

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// Of windows over images: {height, width} each, as torch::nn::MaxPool2dOptions has them.
struct MaxPoolWindow {
  std::array<int64_t, 2> kernel{1, 1}, stride{1, 1}, padding{0, 0}, dilation{1, 1};
  bool ceil_mode = false;
};

/// torch's max_pool2d, in number and gradient: of equal numbers the first wins, and what is no number wins over all.
/// Differentiable, twice too.
///
///     auto y = max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
///
/// Fused is channels-last x [B, C, H, W] on CUDA, of float, double and the 16-bit dtypes, with windows of at most 256
/// pixels, without dilation and ceil_mode: for backward one byte is kept for each output, and no x. Everything else is
/// torch's own.
Tensor max_pool2d(const Tensor& x, const MaxPoolWindow& window);

}  // namespace levin::kernels
