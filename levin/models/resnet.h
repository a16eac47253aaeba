#pragma once

#include <array>
#include <cstdint>

#include <torch/nn/modules/container/sequential.h>

#include "levin/models/image_model.h"
#include "levin/nn/layers.h"
#include "levin/nn/unit.h"

namespace levin::models {

/// Any residual network, in torchvision's words.
struct ResNetOptions {
  /// Blocks of the four stages.
  std::array<int64_t, 4> layers = {3, 4, 6, 3};
  /// Bottleneck blocks (1x1, 3x3, 1x1); without, two 3x3 convolutions.
  bool bottleneck = true;
  int64_t num_classes = 1000;
  /// Each block begins as the identity: the last normalization of it starts at zero.
  bool zero_init_residual = false;
  /// Groups of the 3x3 convolutions, and channels of a group in the first stage (bottleneck blocks only).
  int64_t groups = 1;
  int64_t width_per_group = 64;
  /// For stages 2, 3 and 4: keep the resolution and spread the kernels instead (bottleneck blocks only).
  std::array<bool, 3> replace_stride_with_dilation = {};
  int64_t in_channels = 3;
  /// For pictures of about 32 x 32: begins with a 3x3 convolution of stride 1 and no pooling.
  bool small_images = false;
  /// Activations in the memory format channels_last where convolutions are faster with it: on CUDA, and on the CPU for
  /// large batches (nn::channels_last_where_faster). False: in that of the images.
  bool channels_last = true;
};

/// Where a block stands: what it gets, what it gives, and how.
struct ResNetBlockOptions {
  int64_t in_planes = 64;
  /// The block gives planes (BasicBlock) or 4 planes (Bottleneck).
  int64_t planes = 64;
  int64_t stride = 1;
  int64_t groups = 1;
  int64_t base_width = 64;
  int64_t dilation = 1;
  /// Projects the input where shapes differ; first of a stage.
  bool downsample = false;
};

/// Two 3x3 convolutions and what came in: [B, C, H, W] to [B, planes, H / stride, W / stride].
struct BasicBlockImpl : torch::nn::Module {
  static constexpr int64_t kExpansion = 1;
  explicit BasicBlockImpl(const ResNetBlockOptions& options);
  Tensor forward(const Tensor& x);

  nn::Conv2d conv1 = nullptr, conv2 = nullptr;
  nn::BatchNorm2d bn1 = nullptr, bn2 = nullptr;
  torch::nn::Sequential downsample = nullptr;
};
LEVIN_MODULE(BasicBlock);

/// 1x1, 3x3 (with the stride) and 1x1 convolutions and what came in: [B, C, H, W] to [B, 4 planes, H / stride, W /
/// stride].
struct BottleneckImpl : torch::nn::Module {
  static constexpr int64_t kExpansion = 4;
  explicit BottleneckImpl(const ResNetBlockOptions& options);
  Tensor forward(const Tensor& x);

  nn::Conv2d conv1 = nullptr, conv2 = nullptr, conv3 = nullptr;
  nn::BatchNorm2d bn1 = nullptr, bn2 = nullptr, bn3 = nullptr;
  torch::nn::Sequential downsample = nullptr;
};
LEVIN_MODULE(Bottleneck);

/// A residual network with torchvision's parameter names, shapes and initialization (bit by bit, from the same seed).
/// Images [B, C, H, W] of any size to logits [B, num_classes].
struct ResNetImpl : ImageModelImpl {
  explicit ResNetImpl(const ResNetOptions& options = {});
  Tensor forward(const Tensor& images) override;
  void replace_head(int64_t num_classes) override;
  int64_t num_classes() const override { return options.num_classes; }

  ResNetOptions options;
  nn::Conv2d conv1 = nullptr;
  nn::BatchNorm2d bn1 = nullptr;
  torch::nn::Sequential layer1 = nullptr, layer2 = nullptr, layer3 = nullptr, layer4 = nullptr;
  nn::Linear fc = nullptr;
};
LEVIN_MODULE(ResNet);

/// What can be chosen about a residual network of a named size.
struct ResNetVariant {
  int64_t num_classes = 1000;
  bool zero_init_residual = false;
  std::array<bool, 3> replace_stride_with_dilation = {};
  int64_t in_channels = 3;
  bool small_images = false;
  bool channels_last = true;
};

///     auto model = levin::models::resnet50({.num_classes = 10});
ResNet resnet(const ResNetOptions& options);
ResNet resnet18(const ResNetVariant& variant = {});
ResNet resnet34(const ResNetVariant& variant = {});
ResNet resnet50(const ResNetVariant& variant = {});
ResNet resnet101(const ResNetVariant& variant = {});
ResNet resnet152(const ResNetVariant& variant = {});
ResNet resnext50_32x4d(const ResNetVariant& variant = {});
ResNet resnext101_32x8d(const ResNetVariant& variant = {});
ResNet resnext101_64x4d(const ResNetVariant& variant = {});
ResNet wide_resnet50_2(const ResNetVariant& variant = {});
ResNet wide_resnet101_2(const ResNetVariant& variant = {});

}  // namespace levin::models
