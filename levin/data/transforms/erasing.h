#pragma once

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// A copy with `value` in a rectangle: [C, 1, 1] or [C, height, width], of any dtype.
Tensor erase(const Tensor& image, const ImageRegion& region, const Tensor& value);

/// The rectangle that RandomErasing takes: ten tries, then none.
std::optional<ImageRegion> erased_region(int64_t height, int64_t width, const Range& scale, const Range& ratio,
                                         Random& random);

/// Use it after Normalize, as papers do, or on bytes.
struct RandomErasing {
  double p = 0.5;
  Range scale = {0.02, 0.33};
  Range ratio = {0.3, 3.3};
  Fill value = 0;
  /// Numbers of a normal distribution in place of `value` (torchvision's value="random").
  bool random_value = false;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
