#pragma once

#include "levin/data/transforms/transform.h"

namespace levin::transforms {

/// What depends on the value of a pixel alone, or on how often values come. Bytes get the numbers of Pillow's ImageOps,
/// floating point images (between 0 and 1) those of torchvision's tensors.
Tensor invert(const Tensor& image);
/// Keeps this many bits of a byte, 0 to 8.
Tensor posterize(const Tensor& image, int bits);
/// Inverts what is at least `threshold` (0 to 255 for bytes, 0 to 1 for others).
Tensor solarize(const Tensor& image, double threshold);
/// Stretches each channel from its darkest to its lightest value.
Tensor autocontrast(const Tensor& image);
/// Makes values as frequent as each other, channel by channel.
Tensor equalize(const Tensor& image);

struct RandomInvert {
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomPosterize {
  int bits = 4;
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomSolarize {
  double threshold = 128;
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomAutocontrast {
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomEqualize {
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
