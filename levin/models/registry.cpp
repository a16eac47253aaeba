#include "levin/models/registry.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/models/decoder_sizes.h"
#include "levin/models/resnet.h"
#include "levin/models/text_encoder.h"
#include "levin/models/text_encoder_sizes.h"
#include "levin/models/vit.h"

namespace levin::models {
namespace {

template <auto kMake>
ImageModel make_vit(std::string_view name, const ModelOptions& o) {
  LEVIN_CHECK(!o.zero_init_residual && !o.small_images, "[models.make] ", name,
              " has no zero_init_residual and no small_images: these are of residual networks");
  LEVIN_CHECK(o.channels_last, "[models.make] ", name, " has no channels_last: this is of residual networks");
  return kMake({.image_size = o.image_size,
                .dropout = o.dropout,
                .attention_dropout = o.attention_dropout,
                .num_classes = o.num_classes,
                .in_channels = o.in_channels});
}

template <auto kMake>
ImageModel make_resnet(std::string_view name, const ModelOptions& o) {
  LEVIN_CHECK(o.dropout == 0 && o.attention_dropout == 0, "[models.make] ", name,
              " has no dropout: this is of vision transformers");
  return kMake({.num_classes = o.num_classes,
                .zero_init_residual = o.zero_init_residual,
                .in_channels = o.in_channels,
                .small_images = o.small_images,
                .channels_last = o.channels_last});
}

struct Entry {
  const char* name;
  /// Refuses options that the model does not have.
  ImageModel (*make)(std::string_view name, const ModelOptions& options);
};

constexpr Entry kModels[] = {
    {"vit_b_16", make_vit<vit_b_16>},
    {"vit_b_32", make_vit<vit_b_32>},
    {"vit_l_16", make_vit<vit_l_16>},
    {"vit_l_32", make_vit<vit_l_32>},
    {"vit_h_14", make_vit<vit_h_14>},
    {"resnet18", make_resnet<resnet18>},
    {"resnet34", make_resnet<resnet34>},
    {"resnet50", make_resnet<resnet50>},
    {"resnet101", make_resnet<resnet101>},
    {"resnet152", make_resnet<resnet152>},
    {"resnext50_32x4d", make_resnet<resnext50_32x4d>},
    {"resnext101_32x8d", make_resnet<resnext101_32x8d>},
    {"resnext101_64x4d", make_resnet<resnext101_64x4d>},
    {"wide_resnet50_2", make_resnet<wide_resnet50_2>},
    {"wide_resnet101_2", make_resnet<wide_resnet101_2>},
};

}  // namespace

ImageModel make(std::string_view name, const ModelOptions& o) {
  for (const auto& entry : kModels)
    if (name == entry.name) return entry.make(name, o);
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
  const auto encoders = text_encoder_names();
  if (std::find(encoders.begin(), encoders.end(), name) != encoders.end())
    return TextEncoder(text_encoder_options(name)).ptr();
  const auto images = names();
  if (std::find(images.begin(), images.end(), name) != images.end()) return make(name).ptr();
  fail_unknown("models.make_module", "model", name, module_names());
}

std::vector<std::string> module_names() {
  auto all = names();
  for (auto& name : decoder_names()) all.push_back(std::move(name));
  for (auto& name : text_encoder_names()) all.push_back(std::move(name));
  return all;
}

}  // namespace levin::models
