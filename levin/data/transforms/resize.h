#pragma once

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// To height x width. An image of bytes gets Pillow's numbers, bit by bit, in every mode (torchvision resizes images
/// that were read from files with it); without `antialias`, or a floating point image, torch's. Floating point images
/// know nearest, nearest-exact, bilinear and bicubic.
Tensor resize(const Tensor& image, int64_t height, int64_t width,
              Interpolation interpolation = Interpolation::kBilinear, bool antialias = true);

/// The size that Resize makes of height x width: `size` for the shorter side keeps the proportions, and `max_size`
/// bounds the longer one; {0, 0} with a max_size gives the longer side.
Size resized_size(int64_t height, int64_t width, const Size& size, int64_t max_size = 0);

struct Resize {
  /// The shorter side, or {height, width}; left out, max_size is the longer side.
  Size size = {};
  Interpolation interpolation = Interpolation::kBilinear;
  /// 0: no bound.
  int64_t max_size = 0;
  bool antialias = true;
  void plan(PixelPlan& plan, Random& random) const;
  std::string unplanned() const;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
