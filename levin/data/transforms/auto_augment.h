#pragma once

#include <string>

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// One of the operations that the three below choose from, by torchvision's name ("ShearX", "Color", ...), with its
/// magnitude: a factor is 1 + magnitude, angles are degrees, moves are pixels, "Solarize" is a part of the largest
/// value.
Tensor augment(const Tensor& image, std::string_view operation, double magnitude,
               Interpolation interpolation = Interpolation::kNearest, const Fill& fill = 0);

/// `num_ops` operations, one after the other, all of one magnitude.
struct RandAugment {
  int num_ops = 2;
  int magnitude = 9;
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = 0;
  Tensor operator()(const Tensor& image, Random& random) const;
};

/// One operation of a random, wide magnitude.
struct TrivialAugmentWide {
  int num_magnitude_bins = 31;
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = 0;
  Tensor operator()(const Tensor& image, Random& random) const;
};

/// One of 25 learned pairs of operations.
struct AutoAugment {
  /// "imagenet", "cifar10" or "svhn".
  std::string policy = "imagenet";
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = 0;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
