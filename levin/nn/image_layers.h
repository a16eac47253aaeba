#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>

#include "levin/nn/unit.h"

namespace levin::nn {

using torch::nn::BatchNormOptions;
using torch::nn::Conv2dOptions;
using torch::nn::MaxPool2dOptions;

/// torch's Conv2d. On CUDA, under autocast and with channels-last input, it casts the weight straight to channels-last.
struct Conv2dImpl : torch::nn::Conv2dImpl {
  using torch::nn::Conv2dImpl::Conv2dImpl;
  Tensor forward(const Tensor& x);
};
LEVIN_MODULE(Conv2d);

/// torch's BatchNorm2d, which can also add a residual of the shape of x, and apply a ReLU to the result: on CUDA in the
/// same pass over memory (kernels/norm/batch_norm.h), elsewhere one after the other, bit by bit.
///
///     y = bn(conv(x), identity, /*relu=*/true);
struct BatchNorm2dImpl : torch::nn::BatchNorm2dImpl {
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;
  Tensor forward(const Tensor& x, const Tensor& residual = {}, bool relu = false);

 protected:
  // For torch::nn::Sequential.
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())}, {2, torch::nn::AnyValue(false)})
};
LEVIN_MODULE(BatchNorm2d);

/// A BatchNorm2d and the ReLU after it.
struct BatchNormReLU2dImpl : BatchNorm2dImpl {
  using BatchNorm2dImpl::BatchNorm2dImpl;
  Tensor forward(const Tensor& x) { return BatchNorm2dImpl::forward(x, {}, true); }
  bool _forward_has_default_args() override { return false; }  // public: torch::nn::AnyModule asks the class itself
};
LEVIN_MODULE(BatchNormReLU2d);

/// torch's MaxPool2d. On CUDA, with channels-last input, a kernel of Levin's (kernels/max_pool.h), which keeps one byte
/// of each output for backward.
struct MaxPool2dImpl : torch::nn::MaxPool2dImpl {
  using torch::nn::MaxPool2dImpl::MaxPool2dImpl;
  Tensor forward(const Tensor& x);
};
LEVIN_MODULE(MaxPool2d);

/// Images [B, C, H, W] in the memory format that convolutions are fastest with, by one copy at most. On CUDA that is
/// channels-last, under autocast in its dtype. On a CPU with AVX-512 it is channels-last for large batches of float32:
/// from 256k pixels on (six images of 224 x 224) where images have 128 x 128 or more, and where most convolutions are
/// of 1 x 1 (`mostly_pointwise`) from 64k on. Other images stay as they are.
Tensor channels_last_where_faster(const Tensor& images, bool mostly_pointwise = false);

}  // namespace levin::nn
