#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "levin/core/each_tensor.h"

namespace levin::models {

/// What all models of images have in common: images [B, C, H, W] to logits [B, num_classes].
struct ImageModelImpl : torch::nn::Module {
  virtual Tensor forward(const Tensor& images) = 0;
  /// A new last layer for that many classes, as the model's constructor would make it, where the old one is (device and
  /// dtype).
  virtual void replace_head(int64_t num_classes) = 0;
  virtual int64_t num_classes() const = 0;
};

/// Any of them, chosen at run time; VisionTransformer and ResNet convert to it.
///
///     levin::models::ImageModel model = levin::models::make("resnet50", {.num_classes = 10});
///     auto logits = model(images);
class ImageModel : public torch::nn::ModuleHolder<ImageModelImpl> {
 public:
  using torch::nn::ModuleHolder<ImageModelImpl>::ModuleHolder;
  template <class Model>
  requires std::derived_from<typename Model::ContainedType, ImageModelImpl> ImageModel(const Model& model)
      : torch::nn::ModuleHolder<ImageModelImpl>(std::shared_ptr<ImageModelImpl>(model.ptr())) {}

  Tensor operator()(const Tensor& images) const { return ptr()->forward(images); }
};

/// Makes a model that was trained for one set of classes ready for another: all but the last layer stays. Call it
/// before an optimizer is made.
void replace_head(const ImageModel& model, int64_t num_classes);

/// Lays out the weights of convolutions as [H, W, C] in memory, in place; give such a model images that are laid out so
/// too (`images.contiguous(at::MemoryFormat::ChannelsLast)`). The numbers stay; on a GPU with tensor cores, and mostly
/// on a CPU, convolutions become faster.
void to_channels_last(torch::nn::Module& module);

}  // namespace levin::models
