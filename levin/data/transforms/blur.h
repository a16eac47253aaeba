#pragma once

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// 0 is smooth, 1 as it is, 2 sharper. Bytes get the numbers of Pillow's ImageEnhance.Sharpness.
Tensor adjust_sharpness(const Tensor& image, double factor);

/// With a kernel of odd height and width and the border mirrored. torchvision blurs tensors, also for images of files;
/// a byte may differ from its by 1 where it lies between two.
Tensor gaussian_blur(const Tensor& image, const Size& kernel_size, double sigma_x, double sigma_y);

struct GaussianBlur {
  /// Odd; {height, width} may differ.
  Size kernel_size = 3;
  Range sigma = {0.1, 2.0};
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomAdjustSharpness {
  double sharpness_factor = 2;
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
