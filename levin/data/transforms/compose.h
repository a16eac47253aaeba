#pragma once

#include <vector>

#include "levin/data/transforms/transform.h"

namespace levin::transforms {

/// All of the steps, or none of them.
struct RandomApply {
  std::vector<Transform> transforms = {};
  double p = 0.5;
  Tensor operator()(const Tensor& image, Random& random) const;
};

/// One of the steps; `p` weighs them, and need not add up to 1.
struct RandomChoice {
  std::vector<Transform> transforms = {};
  std::vector<double> p = {};
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
