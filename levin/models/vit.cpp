#include "levin/models/vit.h"

#include <cmath>
#include <utility>

#include <ATen/ops/dropout.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>

#include "levin/core/error.h"
#include "levin/kernels/activation.h"
#include "levin/kernels/attention/attention.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/linear/product_dtype.h"
#include "levin/kernels/tokens/prepend_token.h"
#include "levin/nn/context/attention.h"
#include "levin/nn/fp8_mlp.h"
#include "levin/nn/init.h"

namespace levin::models {
namespace {

/// A name in the tree of parameters, nothing else ("encoder.layers", "heads").
struct GroupImpl : torch::nn::Module {};

nn::ResidualNorm layer_norm(int64_t size) {
  return nn::ResidualNorm(nn::ResidualNormOptions{.size = size, .eps = 1e-6});
}

Tensor drop(const Tensor& x, double p, bool training) {
  return p > 0 && training ? at::dropout(x, p, true) : x;
}

ViTOptions with(const ViTVariant& variant, ViTOptions size) {
  size.image_size = variant.image_size;
  size.dropout = variant.dropout;
  size.attention_dropout = variant.attention_dropout;
  size.num_classes = variant.num_classes;
  size.in_channels = variant.in_channels;
  return size;
}

}  // namespace

// ---- patches

ViTPatchesImpl::ViTPatchesImpl(const ViTOptions& options) {
  const auto fan_in = options.in_channels * options.patch_size * options.patch_size;
  weight = register_parameter(
      "weight", torch::empty({options.hidden_dim, options.in_channels, options.patch_size, options.patch_size}));
  bias = register_parameter("bias", torch::empty({options.hidden_dim}));
  // A convolution's own initialization. VisionTransformer replaces it; the numbers it draws are part of what a seed
  // means.
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  torch::nn::init::uniform_(bias, -1 / std::sqrt(fan_in), 1 / std::sqrt(fan_in));
}

namespace {

/// The dtype of the largest size as which `run` neighbours can be copied: bits, not numbers. At worst that of `from`.
at::ScalarType widest_word(const Tensor& from, int64_t run) {
  const auto bytes = run * static_cast<int64_t>(from.element_size());
  const auto place = from.is_meta() ? 0 : reinterpret_cast<uintptr_t>(from.const_data_ptr());
  for (const auto word : {at::kComplexDouble, at::kLong, at::kInt}) {
    const auto size = static_cast<int64_t>(at::elementSize(word));
    if (bytes % size == 0 && place % static_cast<uintptr_t>(size) == 0) return word;
  }
  return from.scalar_type();
}

/// Images [B, C, H, W] to [B, patches, C * p * p].
Tensor patches_of(const Tensor& images, int64_t p) {
  const auto b = images.size(0), c = images.size(1), rows = images.size(2) / p, columns = images.size(3) / p;
  const auto cut = [&](const Tensor& pixels, int64_t wide) {
    return pixels.reshape({b, c, rows, p, columns, wide})
        .permute({0, 2, 4, 1, 3, 5})
        .reshape({b, rows * columns, c * p * wide});
  };
  if (images.requires_grad() || images.numel() == 0) return cut(images, p);
  // In the dtype of the product, and a row of a patch as few words: a copy of small numbers one by one is slow.
  const auto pixels = images.to(kernels::product_dtype(images)).contiguous();
  const auto words = pixels.view(widest_word(pixels, p));
  return cut(words, words.size(3) / columns).view(pixels.scalar_type());
}

}  // namespace

Tensor ViTPatchesImpl::forward(const Tensor& images) {
  return kernels::linear(patches_of(images, weight.size(2)), weight.flatten(1), bias);
}

// ---- attention

ViTAttentionImpl::ViTAttentionImpl(const ViTOptions& options)
    : num_heads(options.num_heads),
      head_dim(options.hidden_dim / options.num_heads),
      length(options.image_size / options.patch_size * (options.image_size / options.patch_size) + 1),
      dropout(options.attention_dropout) {
  const auto dim = options.hidden_dim;
  in_proj_weight = register_parameter("in_proj_weight", torch::empty({3 * dim, dim}));
  in_proj_bias = register_parameter("in_proj_bias", torch::empty({3 * dim}));
  out_proj = register_module("out_proj", nn::Linear(dim, dim));
  torch::nn::init::xavier_uniform_(in_proj_weight);
  torch::nn::init::zeros_(in_proj_bias);
  torch::nn::init::zeros_(out_proj->bias);
}

Tensor ViTAttentionImpl::forward(const Tensor& x, bool first_only) {
  const auto b = x.size(0), s = x.size(1), size = head_dim, d = num_heads * size;
  const double p = is_training() ? dropout : 0.0;
  if (context) {
    LEVIN_CHECK(p == 0, "[context_parallel] attention_dropout ", p,
                " is not possible where keys are on several ranks; set it to 0 (dropout of activations may stay)");
    const auto parts = kernels::linear(x, in_proj_weight, in_proj_bias).view({b, s, 3, num_heads, size}).unbind(2);
    const nn::ContextAttentionOptions plain{.scale = 1 / std::sqrt(static_cast<double>(size))};
    return out_proj(nn::context_attention(parts[0], parts[1], parts[2], length, plain, context));
  }
  // Queries, keys and values are views of one product.
  if (!first_only)
    return out_proj(kernels::attention(
        kernels::linear(x, in_proj_weight, in_proj_bias).view({b, s, 3, num_heads, size}), {.dropout = p}));
  const auto q = kernels::linear(x.narrow(1, 0, 1), in_proj_weight.narrow(0, 0, d), in_proj_bias.narrow(0, 0, d))
                     .view({b, 1, num_heads, size});
  const auto both = kernels::linear(x, in_proj_weight.narrow(0, d, 2 * d), in_proj_bias.narrow(0, d, 2 * d));
  const auto parts = both.view({b, s, 2, num_heads, size}).unbind(2);
  const auto mixed =
      at::scaled_dot_product_attention(q.transpose(1, 2), parts[0].transpose(1, 2), parts[1].transpose(1, 2), {}, p);
  return out_proj(mixed.transpose(1, 2).reshape({b, 1, d}));
}

// ---- block

ViTMlpImpl::ViTMlpImpl(const ViTOptions& options) : dropout(options.dropout) {
  up = register_module("0", nn::Linear(options.hidden_dim, options.mlp_dim));
  down = register_module("3", nn::Linear(options.mlp_dim, options.hidden_dim));
  for (auto* layer : {&up, &down}) {
    torch::nn::init::xavier_uniform_((*layer)->weight);
    torch::nn::init::normal_((*layer)->bias, 0, 1e-6);
  }
}

Tensor ViTMlpImpl::forward(const Tensor& x) {
  constexpr auto kGelu = kernels::Activation::kGelu;
  if (dropout == 0 || !is_training())
    if (const auto result = nn::fp8_mlp(x, up, kGelu, down)) return *result;
  const auto hidden = drop(up->num_interceptors() > 0 ? kernels::activation(up(x), kGelu)
                                                      : kernels::linear_activation(x, up->weight, up->bias, kGelu),
                           dropout, is_training());
  return drop(down(hidden), dropout, is_training());
}

EncoderBlockImpl::EncoderBlockImpl(const ViTOptions& options) : dropout(options.dropout) {
  ln_1 = register_module("ln_1", layer_norm(options.hidden_dim));
  self_attention = register_module("self_attention", ViTAttention(options));
  ln_2 = register_module("ln_2", layer_norm(options.hidden_dim));
  mlp = register_module("mlp", ViTMlp(options));
}

nn::OpenStream EncoderBlockImpl::open(nn::OpenStream stream, bool first_only) {
  auto [normed, x] = ln_1(stream.sum, stream.branch);
  stream = {};  // nobody needs it any more
  if (first_only) x = x.narrow(1, 0, 1);
  const auto [inner, h] = ln_2(x, self_attention(std::exchange(normed, {}), first_only), dropout);
  return {h, mlp(inner)};
}

Tensor EncoderBlockImpl::forward(const Tensor& x, bool first_only) {
  return open({x, {}}, first_only).closed();
}

// ---- the whole

ViTEncoderImpl::ViTEncoderImpl(const ViTOptions& options) : dropout(options.dropout) {
  const auto side = options.image_size / options.patch_size;
  pos_embedding = register_parameter("pos_embedding", torch::empty({1, side * side + 1, options.hidden_dim}));
  torch::nn::init::normal_(pos_embedding, 0, 0.02);
  auto layers = register_module("layers", std::make_shared<GroupImpl>());
  for (int64_t i = 0; i < options.num_layers; ++i) {
    blocks.push_back(EncoderBlock(options));
    layers->register_module("encoder_layer_" + std::to_string(i), blocks.back());
  }
  ln = register_module("ln", layer_norm(options.hidden_dim));
}

Tensor ViTEncoderImpl::forward(Tensor x, bool first_only, const Tensor& token) {
  if (context) {
    if (token.defined()) x = kernels::prepend_token(x, token, {});
    context->check_tokens(x);
    first_only = false;  // one rank has that token, and the others wait for it
  }
  const auto length = x.size(1);
  const auto placed = [&] {
    if (context) return context->take(x, 1) + context->take(pos_embedding, 1);
    return token.defined() ? kernels::prepend_token(x, token, pos_embedding) : x + pos_embedding;
  };
  nn::OpenStream h{drop(placed(), dropout, is_training()), {}};
  x.reset();  // nobody needs it any more
  for (const auto& block : blocks)
    h = nn::open_block<&EncoderBlockImpl::open>(block, std::move(h), first_only && &block == &blocks.back());
  const auto states = std::get<0>(ln(h.sum, h.branch));
  return context ? context->gathered(states, 1, length) : states;
}

VisionTransformerImpl::VisionTransformerImpl(const ViTOptions& asked) : options(asked) {
  LEVIN_CHECK(options.patch_size > 0 && options.image_size > 0 && options.image_size % options.patch_size == 0,
              "[vit] image_size ", options.image_size, " is not a multiple of patch_size ", options.patch_size);
  LEVIN_CHECK(options.num_heads > 0 && options.hidden_dim % options.num_heads == 0, "[vit] hidden_dim ",
              options.hidden_dim, " is not a multiple of num_heads ", options.num_heads);
  LEVIN_CHECK(options.num_layers > 0 && options.num_classes > 0 && options.in_channels > 0 && options.mlp_dim > 0,
              "[vit] num_layers, num_classes, in_channels and mlp_dim must be positive");
  class_token = register_parameter("class_token", torch::zeros({1, 1, options.hidden_dim}));
  conv_proj = register_module("conv_proj", ViTPatches(options));
  encoder = register_module("encoder", ViTEncoder(options));
  auto heads = register_module("heads", std::make_shared<GroupImpl>());
  head = heads->register_module("head", nn::Linear(options.hidden_dim, options.num_classes));
  const auto fan_in = options.in_channels * options.patch_size * options.patch_size;
  nn::init::trunc_normal_(conv_proj->weight, 0, std::sqrt(1.0 / static_cast<double>(fan_in)));
  torch::nn::init::zeros_(conv_proj->bias);
  torch::nn::init::zeros_(head->weight);
  torch::nn::init::zeros_(head->bias);
}

Tensor VisionTransformerImpl::forward(const Tensor& images) {
  LEVIN_CHECK(images.dim() == 4 && images.size(1) == options.in_channels && images.size(2) == options.image_size &&
                  images.size(3) == options.image_size,
              "[vit] images must be [B, ", options.in_channels, ", ", options.image_size, ", ", options.image_size,
              "], got ", images.sizes());
  return head(encoder(conv_proj(images), /*first_only=*/true, class_token).select(1, 0));
}

TensorPlan VisionTransformerImpl::tensor_plan() const {
  return {{"encoder.layers.*.self_attention", TensorRole::kQkv},
          {"encoder.layers.*.self_attention.out_proj", TensorRole::kHeadRow},
          {"encoder.layers.*.mlp", TensorRole::kRegion},
          {"encoder.layers.*.mlp.0", TensorRole::kColumn},
          {"encoder.layers.*.mlp.3", TensorRole::kRow}};
}

void VisionTransformerImpl::replace_head(int64_t num_classes) {
  const auto& old = head->weight;
  nn::Linear fresh(old.size(1), num_classes);
  torch::nn::init::zeros_(fresh->weight);
  torch::nn::init::zeros_(fresh->bias);
  fresh->to(old.device(), old.scalar_type());
  head = children().back()->replace_module("head", fresh);
  options.num_classes = num_classes;
}

VisionTransformer vit(const ViTOptions& options) {
  return VisionTransformer(options);
}

VisionTransformer vit_b_16(const ViTVariant& variant) {
  return vit(with(variant, {.patch_size = 16, .num_layers = 12, .num_heads = 12, .hidden_dim = 768, .mlp_dim = 3072}));
}
VisionTransformer vit_b_32(const ViTVariant& variant) {
  return vit(with(variant, {.patch_size = 32, .num_layers = 12, .num_heads = 12, .hidden_dim = 768, .mlp_dim = 3072}));
}
VisionTransformer vit_l_16(const ViTVariant& variant) {
  return vit(with(variant, {.patch_size = 16, .num_layers = 24, .num_heads = 16, .hidden_dim = 1024, .mlp_dim = 4096}));
}
VisionTransformer vit_l_32(const ViTVariant& variant) {
  return vit(with(variant, {.patch_size = 32, .num_layers = 24, .num_heads = 16, .hidden_dim = 1024, .mlp_dim = 4096}));
}
VisionTransformer vit_h_14(const ViTVariant& variant) {
  return vit(with(variant, {.patch_size = 14, .num_layers = 32, .num_heads = 16, .hidden_dim = 1280, .mlp_dim = 5120}));
}

}  // namespace levin::models
