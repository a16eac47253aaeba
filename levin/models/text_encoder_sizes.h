#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levin/models/text_encoder_options.h"

namespace levin::models {

/// "bert_base", "distilbert", "roberta_base", "big_bird": encoders of known sizes, that tell two classes of text apart.
std::vector<std::string> text_encoder_names();
/// The config.json of such a name, as new_model takes it. An unknown name is an Error with the nearest one.
std::string text_encoder_config(std::string_view name);
/// Its options.
TextEncoderOptions text_encoder_options(std::string_view name);

}  // namespace levin::models
