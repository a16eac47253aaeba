#pragma once

#include <cstdint>
#include <vector>

#include "levin/models/image_model.h"
#include "levin/nn/checkpointing/returns_last_layer.h"
#include "levin/nn/context/share.h"
#include "levin/nn/layers.h"
#include "levin/nn/residual_norm.h"
#include "levin/nn/tensor/part.h"
#include "levin/nn/unit.h"

namespace levin::models {

struct ViTOptions {
  int64_t image_size = 224;
  int64_t patch_size = 16;
  int64_t num_layers = 12;
  int64_t num_heads = 12;
  int64_t hidden_dim = 768;
  int64_t mlp_dim = 3072;
  double dropout = 0;
  double attention_dropout = 0;
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
};

/// Cuts images [B, C, H, W] into patches and projects each: [B, N, D]. The weight is that of a convolution whose stride
/// is its kernel, [D, C, P, P]; the work is one matrix product.
struct ViTPatchesImpl : torch::nn::Module {
  explicit ViTPatchesImpl(const ViTOptions& options);
  Tensor forward(const Tensor& images);

  Tensor weight, bias;
};
LEVIN_MODULE(ViTPatches);

/// Self attention with one projection for queries, keys and values: [B, S, D] to [B, S, D]. With `first_only` only the
/// first token asks (all are asked): [B, 1, D].
struct ViTAttentionImpl : torch::nn::Module, TensorParallelPart, ContextParallelPart {
  explicit ViTAttentionImpl(const ViTOptions& options);
  Tensor forward(const Tensor& x, bool first_only = false);
  HeadCounts heads() const override { return {num_heads, num_heads, head_dim}; }
  void take_heads(const HeadShare& share) override { num_heads = share.heads.count; }
  bool draws() const override { return dropout > 0; }
  void take_context(const SharedContext& share) override { context = share; }

  int64_t num_heads, head_dim;
  /// Tokens of an image.
  int64_t length;
  double dropout;
  /// The ranks that have the tokens of an image together; null: this one has all of them.
  SharedContext context;
  Tensor in_proj_weight, in_proj_bias;
  nn::Linear out_proj = nullptr;
};
LEVIN_MODULE(ViTAttention);

/// Linear, GELU, Linear, with dropout after each: [B, S, D] to [B, S, D]. Its layers are called "0" and "3".
struct ViTMlpImpl : torch::nn::Module, TensorParallelPart {
  explicit ViTMlpImpl(const ViTOptions& options);
  Tensor forward(const Tensor& x);
  bool draws() const override { return dropout > 0; }

  double dropout;
  nn::Linear up = nullptr, down = nullptr;
};
LEVIN_MODULE(ViTMlp);

/// One layer of the encoder: what is sharded, checkpointed and streamed as one. [B, S, D] to the same; with
/// `first_only` to the first token of it, [B, 1, D], without the work for the others.
struct EncoderBlockImpl : torch::nn::Module, nn::ReturnsLastLayer {
  explicit EncoderBlockImpl(const ViTOptions& options);
  Tensor forward(const Tensor& x, bool first_only = false);
  /// The same without the last sum, and with that of the block before.
  nn::OpenStream open(nn::OpenStream stream, bool first_only);

  double dropout;
  nn::ResidualNorm ln_1 = nullptr, ln_2 = nullptr;
  ViTAttention self_attention = nullptr;
  ViTMlp mlp = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(false)})  // for torch::nn::Sequential
};
LEVIN_MODULE(EncoderBlock);

/// Adds positions and runs the blocks: [B, S, D] to [B, S, D], or to the first token [B, 1, D]. Nobody looks at the
/// other tokens of the last block of a classifier, so it need not compute them: numbers and gradients are the same.
/// With a `token` [1, 1, D], which comes first in every image, x are the other tokens, [B, S - 1, D].
struct ViTEncoderImpl : torch::nn::Module, ContextParallelPart {
  explicit ViTEncoderImpl(const ViTOptions& options);
  Tensor forward(Tensor x, bool first_only = false, const Tensor& token = {});
  bool takes_sequence() const override { return true; }
  bool sees_both_ways() const override { return true; }
  void take_context(const SharedContext& share) override { context = share; }

  double dropout;
  SharedContext context;
  Tensor pos_embedding;
  std::vector<EncoderBlock> blocks;
  nn::ResidualNorm ln = nullptr;
};
LEVIN_MODULE(ViTEncoder);

/// The Vision Transformer, with torchvision's parameter names, shapes and initialization (bit by bit, from the same
/// seed). Images [B, C, H, W] to logits [B, num_classes].
struct VisionTransformerImpl : ImageModelImpl, TensorParallelPart {
  explicit VisionTransformerImpl(const ViTOptions& options = {});
  Tensor forward(const Tensor& images) override;
  void replace_head(int64_t num_classes) override;
  int64_t num_classes() const override { return options.num_classes; }
  TensorPlan tensor_plan() const override;

  ViTOptions options;
  Tensor class_token;
  ViTPatches conv_proj = nullptr;
  ViTEncoder encoder = nullptr;
  nn::Linear head = nullptr;
};
LEVIN_MODULE(VisionTransformer);

/// What can be chosen about a Vision Transformer of a named size.
struct ViTVariant {
  int64_t image_size = 224;
  double dropout = 0;
  double attention_dropout = 0;
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
};

///     auto model = levin::models::vit_b_16({.num_classes = 10});
VisionTransformer vit(const ViTOptions& options);
VisionTransformer vit_b_16(const ViTVariant& variant = {});
VisionTransformer vit_b_32(const ViTVariant& variant = {});
VisionTransformer vit_l_16(const ViTVariant& variant = {});
VisionTransformer vit_l_32(const ViTVariant& variant = {});
VisionTransformer vit_h_14(const ViTVariant& variant = {});

}  // namespace levin::models
