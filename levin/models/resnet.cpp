#include "levin/models/resnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <torch/nn/init.h>

#include "levin/core/error.h"
#include "levin/kernels/max_pool.h"

namespace levin::models {
namespace {

nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride = 1, int64_t groups = 1, int64_t dilation = 1) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, 3).stride(stride).padding(dilation).dilation(dilation).groups(groups).bias(false));
}

nn::Conv2d conv1x1(int64_t in, int64_t out, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 1).stride(stride).bias(false));
}

// Made before the layers of its block, whose last child it is: the order in which random numbers are drawn is part of
// what a seed means.
torch::nn::Sequential downsampling(const ResNetBlockOptions& o, int64_t out) {
  if (!o.downsample) return nullptr;
  return torch::nn::Sequential(conv1x1(o.in_planes, out, o.stride), nn::BatchNorm2d(out));
}

Tensor activated(nn::BatchNorm2d& norm, const Tensor& x) {
  return norm(x, Tensor(), /*relu=*/true);
}

template <class Block>
torch::nn::Sequential stage(const ResNetOptions& options, int64_t index, int64_t& in_planes, int64_t& dilation) {
  const int64_t planes = 64 << index;
  const int64_t out = planes * Block::Impl::kExpansion;
  ResNetBlockOptions block{.in_planes = in_planes,
                           .planes = planes,
                           .stride = index == 0 ? 1 : 2,
                           .groups = options.groups,
                           .base_width = options.width_per_group,
                           .dilation = dilation};
  if (index > 0 && options.replace_stride_with_dilation[static_cast<size_t>(index - 1)]) {
    dilation *= block.stride;
    block.stride = 1;
  }
  block.downsample = block.stride != 1 || in_planes != out;
  torch::nn::Sequential blocks(Block{block});
  in_planes = block.in_planes = out;
  block.stride = 1, block.downsample = false, block.dilation = dilation;
  for (int64_t i = 1; i < options.layers[static_cast<size_t>(index)]; ++i) blocks->push_back(Block{block});
  return blocks;
}

ResNet named(const ResNetVariant& variant, ResNetOptions size) {
  size.num_classes = variant.num_classes;
  size.zero_init_residual = variant.zero_init_residual;
  size.replace_stride_with_dilation = variant.replace_stride_with_dilation;
  size.in_channels = variant.in_channels;
  size.small_images = variant.small_images;
  size.channels_last = variant.channels_last;
  return resnet(size);
}

}  // namespace

// ---- blocks

BasicBlockImpl::BasicBlockImpl(const ResNetBlockOptions& o) {
  LEVIN_CHECK(o.groups == 1 && o.base_width == 64 && o.dilation == 1,
              "[resnet] groups, width_per_group and replace_stride_with_dilation need bottleneck blocks");
  auto projection = downsampling(o, o.planes);
  conv1 = register_module("conv1", conv3x3(o.in_planes, o.planes, o.stride));
  bn1 = register_module("bn1", nn::BatchNorm2d(o.planes));
  conv2 = register_module("conv2", conv3x3(o.planes, o.planes));
  bn2 = register_module("bn2", nn::BatchNorm2d(o.planes));
  if (o.downsample) downsample = register_module("downsample", projection);
}

Tensor BasicBlockImpl::forward(const Tensor& x) {
  const auto out = conv2(activated(bn1, conv1(x)));
  return bn2(out, downsample ? downsample->forward(x) : x, /*relu=*/true);
}

BottleneckImpl::BottleneckImpl(const ResNetBlockOptions& o) {
  const int64_t width = o.planes * o.base_width / 64 * o.groups, out = o.planes * kExpansion;
  LEVIN_CHECK(width > 0, "[resnet] groups ", o.groups, " and width_per_group ", o.base_width, " must be positive");
  auto projection = downsampling(o, out);
  conv1 = register_module("conv1", conv1x1(o.in_planes, width));
  bn1 = register_module("bn1", nn::BatchNorm2d(width));
  conv2 = register_module("conv2", conv3x3(width, width, o.stride, o.groups, o.dilation));
  bn2 = register_module("bn2", nn::BatchNorm2d(width));
  conv3 = register_module("conv3", conv1x1(width, out));
  bn3 = register_module("bn3", nn::BatchNorm2d(out));
  if (o.downsample) downsample = register_module("downsample", projection);
}

Tensor BottleneckImpl::forward(const Tensor& x) {
  const auto out = conv3(activated(bn2, conv2(activated(bn1, conv1(x)))));
  return bn3(out, downsample ? downsample->forward(x) : x, /*relu=*/true);
}

// ---- the whole

ResNetImpl::ResNetImpl(const ResNetOptions& asked) : options(asked) {
  for (const auto count : options.layers)
    LEVIN_CHECK(count > 0, "[resnet] each of the four stages needs a block; layers has ", count);
  LEVIN_CHECK(options.num_classes > 0 && options.in_channels > 0,
              "[resnet] num_classes and in_channels must be positive");
  auto stem = options.small_images
                  ? conv3x3(options.in_channels, 64)
                  : nn::Conv2d(nn::Conv2dOptions(options.in_channels, 64, 7).stride(2).padding(3).bias(false));
  conv1 = register_module("conv1", stem);
  bn1 = register_module("bn1", nn::BatchNorm2d(64));
  int64_t planes = 64, dilation = 1;
  torch::nn::Sequential* const stages[] = {&layer1, &layer2, &layer3, &layer4};
  for (int64_t i = 0; i < 4; ++i)
    *stages[i] = register_module("layer" + std::to_string(i + 1),
                                 options.bottleneck ? stage<Bottleneck>(options, i, planes, dilation)
                                                    : stage<BasicBlock>(options, i, planes, dilation));
  fc = register_module("fc", nn::Linear(planes, options.num_classes));
  for (const auto& module : modules(/*include_self=*/false))
    if (const auto* conv = module->as<torch::nn::Conv2dImpl>())
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  if (!options.zero_init_residual) return;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (const auto* block = module->as<BottleneckImpl>()) torch::nn::init::zeros_(block->bn3->weight);
    if (const auto* block = module->as<BasicBlockImpl>()) torch::nn::init::zeros_(block->bn2->weight);
  }
}

Tensor ResNetImpl::forward(const Tensor& images) {
  LEVIN_CHECK(images.dim() == 4 && images.size(1) == options.in_channels, "[resnet] images must be [B, ",
              options.in_channels, ", H, W], got ", images.sizes());
  auto x = activated(
      bn1, conv1(options.channels_last ? nn::channels_last_where_faster(images, options.bottleneck) : images));
  if (!options.small_images) x = kernels::max_pool2d(x, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  for (auto* layer : {&layer1, &layer2, &layer3, &layer4}) x = (*layer)->forward(x);
  return fc(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
}

void ResNetImpl::replace_head(int64_t num_classes) {
  const auto& old = fc->weight;
  nn::Linear head(old.size(1), num_classes);
  head->to(old.device(), old.scalar_type());
  fc = replace_module("fc", head);
  options.num_classes = num_classes;
}

ResNet resnet(const ResNetOptions& options) {
  return ResNet(options);
}

ResNet resnet18(const ResNetVariant& variant) {
  return named(variant, {.layers = {2, 2, 2, 2}, .bottleneck = false});
}
ResNet resnet34(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 6, 3}, .bottleneck = false});
}
ResNet resnet50(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 6, 3}});
}
ResNet resnet101(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 23, 3}});
}
ResNet resnet152(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 8, 36, 3}});
}
ResNet resnext50_32x4d(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 6, 3}, .groups = 32, .width_per_group = 4});
}
ResNet resnext101_32x8d(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 23, 3}, .groups = 32, .width_per_group = 8});
}
ResNet resnext101_64x4d(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 23, 3}, .groups = 64, .width_per_group = 4});
}
ResNet wide_resnet50_2(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 6, 3}, .width_per_group = 128});
}
ResNet wide_resnet101_2(const ResNetVariant& variant) {
  return named(variant, {.layers = {3, 4, 23, 3}, .width_per_group = 128});
}

}  // namespace levin::models
