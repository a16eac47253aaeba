#pragma once

#include <vector>

#include "levin/data/transforms/transform.h"

namespace levin::transforms {

/// Another dtype. With `scale`, bytes become numbers between 0 and 1 and the other way round; the memory of the result
/// is [C, H, W].
Tensor to_dtype(const Tensor& image, at::ScalarType dtype, bool scale = false);

/// (x - mean) / std, per channel, into memory [C, H, W] or [H, W, C]. Bytes are brought between 0 and 1 on the way, in
/// the same pass, with the very numbers of ToTensor and then Normalize.
Tensor normalize(const Tensor& image, const std::vector<double>& mean, const std::vector<double>& std,
                 bool channels_last = false);

struct ToDtype {
  at::ScalarType dtype = at::kFloat;
  bool scale = false;
  void plan(PixelPlan& plan, Random& random) const;
  std::string unplanned() const;
  Tensor operator()(const Tensor& image, Random& random) const;
};

/// Bytes to float between 0 and 1. Not needed before Normalize.
struct ToTensor {
  void plan(PixelPlan& plan, Random& random) const;
  Tensor operator()(const Tensor& image, Random& random) const;
};

/// ImageNet's mean and std unless others are given.
struct Normalize {
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};
  /// The memory of what comes of bytes: [H, W, C] if set.
  bool channels_last = false;
  void plan(PixelPlan& plan, Random& random) const;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
