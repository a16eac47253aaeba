#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "levin/models/image_model.h"

namespace levin::models {

/// What can be chosen about a model by name. What the chosen one does not have is refused.
struct ModelOptions {
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  /// Vision transformers: the side of the images. A residual network takes any.
  int64_t image_size = 224;
  /// Vision transformers.
  double dropout = 0;
  double attention_dropout = 0;
  /// Residual networks.
  bool zero_init_residual = false;
  bool small_images = false;
  bool channels_last = true;
};

/// The model of that name: "vit_b_16", "resnet50", ...; an unknown name is an Error with the nearest one.
ImageModel make(std::string_view name, const ModelOptions& options = {});

/// All of them.
std::vector<std::string> names();

/// Any model as it stands, images or text: what `make` knows with its defaults, the decoders of
/// models/decoder_sizes.h ("gpt2", ...) and the encoders of models/text_encoder_sizes.h ("distilbert", ...). For tools
/// that look at modules from outside.
std::shared_ptr<torch::nn::Module> make_module(std::string_view name);
/// What make_module knows.
std::vector<std::string> module_names();

}  // namespace levin::models
