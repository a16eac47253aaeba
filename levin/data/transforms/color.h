#pragma once

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// Each takes an image of 1 or 3 channels, or 2 or 4 of which the last is left alone. Bytes get the numbers of Pillow's
/// ImageEnhance, and of its HSV for the hue; floating point images those of torchvision's tensors. A factor of 1 (0 for
/// the hue, from -0.5 to 0.5) changes nothing.
Tensor adjust_brightness(const Tensor& image, double factor);
Tensor adjust_contrast(const Tensor& image, double factor);
Tensor adjust_saturation(const Tensor& image, double factor);
Tensor adjust_hue(const Tensor& image, double factor);
/// 1 or 3 channels, all alike.
Tensor to_grayscale(const Tensor& image, int64_t num_output_channels = 1);

/// How far a factor may stray from 1: `0.4` is from 0.6 to 1.4, `{0.8, 1.2}` is as it says, nothing is not at all.
struct Jitter {
  Jitter() = default;
  Jitter(double by) : by_one(true), low(by), high(by) {}
  Jitter(int by) : Jitter(static_cast<double>(by)) {}
  Jitter(double from, double to) : by_one(false), low(from), high(to) {}
  bool by_one = true;
  double low = 0;
  double high = 0;
  /// What to draw from, around `center`; nothing when that is the center alone.
  std::optional<Range> range(double center) const;
};

/// The factors are drawn in the order of the fields, and used in a random order.
struct ColorJitter {
  Jitter brightness = {};
  Jitter contrast = {};
  Jitter saturation = {};
  /// At most 0.5.
  Jitter hue = {};
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct Grayscale {
  int64_t num_output_channels = 1;
  Tensor operator()(const Tensor& image, Random& random) const;
};

/// Keeps the number of channels.
struct RandomGrayscale {
  double p = 0.1;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
