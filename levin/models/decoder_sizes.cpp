#include "levin/models/decoder_sizes.h"

#include <cmath>
#include <map>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/nn/experts/experts.h"

namespace levin::models {
namespace {

struct DecoderSize {
  const char* name;
  int64_t layers, heads, dim, mlp, vocab, positions;
};

constexpr DecoderSize kSizes[] = {
    {"gpt2", 12, 12, 768, 3072, 50257, 1024},        {"gpt2_medium", 24, 16, 1024, 4096, 50257, 1024},
    {"gpt2_large", 36, 20, 1280, 5120, 50257, 1024}, {"gpt2_xl", 48, 25, 1600, 6400, 50257, 1024},
    {"gpt_6_7b", 32, 32, 4096, 16384, 50272, 2048},
};

}  // namespace

std::vector<std::string> decoder_names() {
  std::vector<std::string> all;
  for (const auto& size : kSizes) all.emplace_back(size.name);
  return all;
}

DecoderOptions decoder_options(std::string_view name, const DecoderVariant& variant) {
  for (const auto& size : kSizes)
    if (name == size.name)
      return {.vocab_size = variant.vocab_size > 0 ? variant.vocab_size : size.vocab,
              .max_positions = variant.max_positions > 0 ? variant.max_positions : size.positions,
              .num_layers = size.layers,
              .num_heads = size.heads,
              .hidden_dim = size.dim,
              .mlp_dim = size.mlp,
              .dropout = variant.dropout,
              .attention_dropout = variant.attention_dropout,
              .loss_rows = variant.loss_rows};
  fail_unknown("decoder", "size", name, decoder_names());
}

Decoder gpt2(const DecoderVariant& variant) {
  return decoder(decoder_options("gpt2", variant));
}
Decoder gpt2_medium(const DecoderVariant& variant) {
  return decoder(decoder_options("gpt2_medium", variant));
}
Decoder gpt2_large(const DecoderVariant& variant) {
  return decoder(decoder_options("gpt2_large", variant));
}
Decoder gpt2_xl(const DecoderVariant& variant) {
  return decoder(decoder_options("gpt2_xl", variant));
}
Decoder gpt_6_7b(const DecoderVariant& variant) {
  return decoder(decoder_options("gpt_6_7b", variant));
}

nn::ExpertsOptions experts_of(const DecoderOptions& o) {
  static const std::map<std::string, kernels::Activation> known{{"silu_gated", kernels::Activation::kSilu},
                                                                {"gelu_gated", kernels::Activation::kGelu},
                                                                {"gelu_tanh_gated", kernels::Activation::kGeluTanh},
                                                                {"relu_gated", kernels::Activation::kRelu}};
  const auto found = known.find(o.activation);
  LEVIN_CHECK(found != known.end(), "[decoder] experts have a gated activation (\"silu_gated\"), not \"", o.activation,
              "\"");
  auto experts = o.experts;
  experts.dim = o.hidden_dim;
  experts.activation = found->second;
  if (experts.width == 0) experts.width = o.mlp_width();
  experts.down_std = experts.std / std::sqrt(2.0 * static_cast<double>(o.num_layers));
  nn::check_experts(experts);
  LEVIN_CHECK(!o.mlp_bias.value_or(o.bias), "[decoder] experts have no biases; set mlp_bias to false");
  LEVIN_CHECK(o.expert_layers.empty() || static_cast<int64_t>(o.expert_layers.size()) == o.num_layers,
              "[decoder] expert_layers names ", o.expert_layers.size(), " layers, there are ", o.num_layers);
  LEVIN_CHECK(o.shared_expert_dim >= 0, "[decoder] shared_expert_dim must not be negative");
  for (const auto value : {o.balance_loss, o.router_z_loss})
    LEVIN_CHECK(std::isfinite(value) && value >= 0,
                "[decoder] balance_loss and router_z_loss must be 0 or more, and finite");
  return experts;
}

}  // namespace levin::models
