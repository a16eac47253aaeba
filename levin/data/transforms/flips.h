#pragma once

#include "levin/data/transforms/transform.h"

namespace levin::transforms {

/// Left becomes right.
Tensor horizontal_flip(const Tensor& image);
/// Top becomes bottom.
Tensor vertical_flip(const Tensor& image);

struct RandomHorizontalFlip {
  double p = 0.5;
  void plan(PixelPlan& plan, Random& random) const;
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomVerticalFlip {
  double p = 0.5;
  void plan(PixelPlan& plan, Random& random) const;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
