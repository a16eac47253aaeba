#pragma once

#include <ATen/core/Tensor.h>

namespace levin::nn::init {

/// Fills with a normal distribution cut off at [low, high] (absolute values), as torch.nn.init.trunc_normal_ does.
at::Tensor trunc_normal_(at::Tensor tensor, double mean = 0, double std = 1, double low = -2, double high = 2);

}  // namespace levin::nn::init
