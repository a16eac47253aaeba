#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levin/models/decoder.h"

namespace levin::models {

/// What can be chosen about a decoder of a named size; 0 is the size's own, loss_rows as in DecoderOptions.
struct DecoderVariant {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;
  double dropout = 0;
  double attention_dropout = 0;
  int64_t loss_rows = -1;
};

/// The options of a named size: "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl", "gpt_6_7b" (OPT-6.7B's sizes). An
/// unknown name is an Error with the nearest one.
DecoderOptions decoder_options(std::string_view name, const DecoderVariant& variant = {});
std::vector<std::string> decoder_names();

Decoder gpt2(const DecoderVariant& variant = {});
Decoder gpt2_medium(const DecoderVariant& variant = {});
Decoder gpt2_large(const DecoderVariant& variant = {});
Decoder gpt2_xl(const DecoderVariant& variant = {});
Decoder gpt_6_7b(const DecoderVariant& variant = {});

}  // namespace levin::models
