#include "levin/models/registry.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/decoder_sizes.h"
#include "levin/models/resnet.h"
#include "levin/models/vit.h"

namespace levin::models {
namespace {

struct Entry {
  const char* name;
  VisionTransformer (*vit)(const ViTVariant&) = nullptr;
  ResNet (*resnet)(const ResNetVariant&) = nullptr;
};

constexpr Entry kModels[] = {
    {.name = "vit_b_16", .vit = vit_b_16},
    {.name = "vit_b_32", .vit = vit_b_32},
    {.name = "vit_l_16", .vit = vit_l_16},
    {.name = "vit_l_32", .vit = vit_l_32},
    {.name = "vit_h_14", .vit = vit_h_14},
    {.name = "resnet18", .resnet = resnet18},
    {.name = "resnet34", .resnet = resnet34},
    {.name = "resnet50", .resnet = resnet50},
    {.name = "resnet101", .resnet = resnet101},
    {.name = "resnet152", .resnet = resnet152},
    {.name = "resnext50_32x4d", .resnet = resnext50_32x4d},
    {.name = "resnext101_32x8d", .resnet = resnext101_32x8d},
    {.name = "resnext101_64x4d", .resnet = resnext101_64x4d},
    {.name = "wide_resnet50_2", .resnet = wide_resnet50_2},
    {.name = "wide_resnet101_2", .resnet = wide_resnet101_2},
};

}  // namespace

ImageModel make(std::string_view name, const ModelOptions& o) {
  for (const auto& entry : kModels) {
    if (name != entry.name) continue;
    if (entry.vit) {
      LEVIN_CHECK(!o.zero_init_residual && !o.small_images, "[models.make] ", name,
                  " has no zero_init_residual and no small_images: these are of residual networks");
      return entry.vit({.image_size = o.image_size,
                        .dropout = o.dropout,
                        .attention_dropout = o.attention_dropout,
                        .num_classes = o.num_classes,
                        .in_channels = o.in_channels});
    }
    LEVIN_CHECK(o.dropout == 0 && o.attention_dropout == 0, "[models.make] ", name,
                " has no dropout: this is of vision transformers");
    return entry.resnet({.num_classes = o.num_classes,
                         .zero_init_residual = o.zero_init_residual,
                         .in_channels = o.in_channels,
                         .small_images = o.small_images});
  }
  fail_unknown("models.make", "model", name, names());
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& entry : kModels) all.emplace_back(entry.name);
  return all;
}

std::shared_ptr<torch::nn::Module> make_module(std::string_view name) {
  const auto decoders = decoder_names();
  if (std::find(decoders.begin(), decoders.end(), name) != decoders.end()) return decoder(decoder_options(name)).ptr();
  const auto images = names();
  if (std::find(images.begin(), images.end(), name) != images.end()) return make(name).ptr();
  fail_unknown("models.make_module", "model", name, module_names());
}

std::vector<std::string> module_names() {
  auto all = names();
  for (auto& name : decoder_names()) all.push_back(std::move(name));
  return all;
}

}  // namespace levin::models
