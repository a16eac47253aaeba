#pragma once

// What a training step has to do, from the sizes of its model: operations and bytes of each class of kernels, and the
// time that a device needs for them at the very least.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "levin/models/decoder.h"
#include "levin/models/resnet.h"
#include "levin/models/vit.h"

namespace levin::bench {

enum class KernelClass {
  kGemm,
  kAttention,
  kConvolution,
  kNorm,
  kElementwise,
  kReduction,
  kOptimizer,
  kLoss,
  kCopy,
  kOther
};
inline constexpr std::array<std::string_view, 10> kKernelClassNames = {
    "gemm", "attention", "convolution", "norm", "elementwise", "reduction", "optimizer", "loss", "copy", "other"};
inline constexpr size_t kKernelClasses = kKernelClassNames.size();

inline std::string_view name_of(KernelClass kind) {
  return kKernelClassNames[static_cast<size_t>(kind)];
}

/// What a device can do. The defaults were measured on an H200: products of bfloat16 matrices, and a copy.
struct Roof {
  double flops_per_s = 750e12;
  double bytes_per_s = 4.27e12;
};

/// The dtypes and the optimizer of a step, in bytes.
struct StepBytes {
  /// An element of what products, convolutions and attention read and write.
  double activation = 2;
  /// An element of the sum that runs through the blocks of a transformer; float32 under autocast.
  double residual = 2;
  /// What the optimizer reads and writes for a parameter.
  double optimizer = 0;
  /// What is read and written to cast a parameter for the products and its gradient back; 0 without autocast.
  double casts = 0;
};

/// Bytes of a step in `precision` ("bf16-true", "bf16-mixed", "fp8-mixed", "32-true") with an optimizer that keeps
/// `moments` tensors of state: value and moments are read and written, the gradient is read.
inline StepBytes step_bytes(std::string_view precision, int moments) {
  const double tensors = 3 + 2 * moments;
  if (precision == "bf16-true") return {.activation = 2, .residual = 2, .optimizer = 2 * tensors};
  if (precision == "bf16-mixed") return {.activation = 2, .residual = 4, .optimizer = 4 * tensors, .casts = 12};
  // Casts of weights alone, to two layouts; those of activations and gradients are what float8 costs.
  if (precision == "fp8-mixed") return {.activation = 2, .residual = 4, .optimizer = 4 * tensors, .casts = 6};
  return {.activation = 4, .residual = 4, .optimizer = 4 * tensors};
}

/// The work of a step. Gemms and convolutions count their operations and their bytes, the others their bytes. Each
/// class is counted as if its kernels ran alone: a GELU that a gemm computes at its end leaves its class, which can
/// then be below its limit.
class Work {
 public:
  struct Sum {
    double flops = 0, bytes = 0, seconds = 0;
  };

  Work(StepBytes bytes, Roof roof = {}) : bytes_(bytes), roof_(roof) {}

  const Sum& operator[](KernelClass kind) const { return sums_[static_cast<size_t>(kind)]; }
  const StepBytes& bytes() const { return bytes_; }

  void add(KernelClass kind, double flops, double bytes) {
    auto& sum = sums_[static_cast<size_t>(kind)];
    sum.flops += flops, sum.bytes += bytes;
    sum.seconds += std::max(flops / roof_.flops_per_s, bytes / roof_.bytes_per_s);
  }

  /// A linear layer on `rows` rows: forward, the gradient of the weight, and that of the input where it is needed. Its
  /// bias gradient is a sum over the rows.
  void linear(double rows, double in, double out, bool input_gradient = true, bool bias = true) {
    for (int i = 0; i < (input_gradient ? 3 : 2); ++i)
      add(KernelClass::kGemm, 2 * rows * in * out, bytes_.activation * (rows * in + in * out + rows * out));
    if (bias) add(KernelClass::kReduction, 0, bytes_.activation * rows * out);
  }

  /// Attention of `asking` tokens over `asked`, `dim` wide over all heads: two products forward, five backward. Nothing
  /// of size asking x asked goes through memory. Causal attention needs half of the products.
  void attention(double batch, double asking, double asked, double dim, bool causal = false) {
    const double product = 2 * batch * asking * asked * dim * (causal ? 0.5 : 1);
    const double queries = batch * asking * dim * bytes_.activation, keys = batch * asked * dim * bytes_.activation;
    add(KernelClass::kAttention, 2 * product, 2 * queries + 2 * keys);
    add(KernelClass::kAttention, 5 * product, 4 * queries + 4 * keys);
  }

  /// A residual sum and the norm of it, forward and backward: what the branch gave and the sum so far are read, the new
  /// sum and its norm written; backward reads both gradients and the sum, and writes one gradient.
  void add_norm(double rows, double dim) {
    const double elements = rows * dim;
    add(KernelClass::kNorm, 0, elements * (2 * bytes_.residual + 2 * bytes_.activation));
    add(KernelClass::kNorm, 0, elements * (3 * bytes_.residual + bytes_.activation));
  }

  /// An activation function: one tensor in and one out, backward two in and one out.
  void activation(double elements) { add(KernelClass::kElementwise, 0, 5 * elements * bytes_.activation); }

  /// Logits are read once and their gradient is written once.
  void cross_entropy(double rows, double classes) {
    add(KernelClass::kLoss, 0, 2 * rows * classes * bytes_.activation);
  }

  /// A convolution of stride `stride` over images of `side` pixels; returns the side of what it gives.
  double convolution(double batch, double side, double in, double out, double kernel, double stride, double groups = 1,
                     bool input_gradient = true) {
    const double after = static_cast<double>((static_cast<int64_t>(side) - 1) / static_cast<int64_t>(stride) + 1);
    const double flops = 2 * batch * after * after * out * (in / groups) * kernel * kernel;
    const double moved = batch * side * side * in + out * (in / groups) * kernel * kernel + batch * after * after * out;
    for (int i = 0; i < (input_gradient ? 3 : 2); ++i) add(KernelClass::kConvolution, flops, bytes_.activation * moved);
    return after;
  }

  /// Statistics over a batch and the normalization of it, ReLU included: read twice and written once; backward reads
  /// two tensors twice and writes one.
  void batch_norm(double elements) { add(KernelClass::kNorm, 0, 8 * elements * bytes_.activation); }

  void optimizer(double parameters) {
    add(KernelClass::kOptimizer, 0, parameters * bytes_.optimizer);
    if (bytes_.casts > 0) add(KernelClass::kCopy, 0, parameters * bytes_.casts);
  }

  /// The linear layers, the attention and the activation of one layer of a transformer.
  void transformer_layer(double batch, double tokens, double dim, double mlp, bool causal = false) {
    const double rows = batch * tokens;
    linear(rows, dim, 3 * dim);
    attention(batch, tokens, tokens, dim, causal);
    linear(rows, dim, dim);
    linear(rows, dim, mlp);
    activation(rows * mlp);
    linear(rows, mlp, dim);
  }

 private:
  StepBytes bytes_;
  Roof roof_;
  std::array<Sum, kKernelClasses> sums_{};
};

/// A vision transformer whose last block computes the class token alone.
inline Work vit_work(const models::ViTOptions& o, int64_t images, StepBytes bytes, Roof roof = {}) {
  Work work(bytes, roof);
  const auto batch = static_cast<double>(images), dim = static_cast<double>(o.hidden_dim),
             mlp = static_cast<double>(o.mlp_dim), side = static_cast<double>(o.image_size / o.patch_size),
             tokens = side * side + 1, rows = batch * tokens;
  work.linear(batch * side * side, static_cast<double>(o.in_channels * o.patch_size * o.patch_size), dim,
              /*input_gradient=*/false);
  for (int64_t i = 0; i + 1 < o.num_layers; ++i) {
    work.add_norm(rows, dim);
    work.transformer_layer(batch, tokens, dim, mlp);
    work.add_norm(rows, dim);
  }
  work.add_norm(rows, dim);
  work.linear(batch, dim, dim);
  work.linear(rows, dim, 2 * dim);
  work.attention(batch, 1, tokens, dim);
  work.linear(batch, dim, dim);
  work.add_norm(batch, dim);
  work.linear(batch, dim, mlp);
  work.activation(batch * mlp);
  work.linear(batch, mlp, dim);
  work.add_norm(batch, dim);
  work.linear(batch, dim, static_cast<double>(o.num_classes));
  work.cross_entropy(batch, static_cast<double>(o.num_classes));
  return work;
}

/// A decoder with plain MLPs, learned positions and its loss.
inline Work decoder_work(const models::DecoderOptions& o, int64_t sequences, int64_t length, StepBytes bytes,
                         Roof roof = {}) {
  Work work(bytes, roof);
  const auto batch = static_cast<double>(sequences), tokens = static_cast<double>(length),
             dim = static_cast<double>(o.hidden_dim), vocabulary = static_cast<double>(o.vocab_size);
  for (int64_t i = 0; i < o.num_layers; ++i) {
    work.add_norm(batch * tokens, dim);
    work.transformer_layer(batch, tokens, dim, o.mlp_dim > 0 ? static_cast<double>(o.mlp_dim) : 4 * dim, true);
    work.add_norm(batch * tokens, dim);
  }
  work.add_norm(batch * tokens, dim);
  work.linear(batch * tokens, dim, vocabulary, true, /*bias=*/false);
  work.cross_entropy(batch * tokens, vocabulary);
  return work;
}

/// A residual network on square images. The sum of a block is one more tensor for its last norm to read; backward adds
/// two gradients where the block began.
inline Work resnet_work(const models::ResNetOptions& o, int64_t images, int64_t pixels, StepBytes bytes,
                        Roof roof = {}) {
  Work work(bytes, roof);
  const auto batch = static_cast<double>(images);
  const auto conv = [&](double side, double in, double out, double kernel, double stride, double groups = 1,
                        bool gradient = true) {
    const auto after = work.convolution(batch, side, in, out, kernel, stride, groups, gradient);
    work.batch_norm(batch * after * after * out);
    return after;
  };
  auto side = conv(static_cast<double>(pixels), static_cast<double>(o.in_channels), 64, o.small_images ? 3 : 7,
                   o.small_images ? 1 : 2, 1, /*gradient=*/false);
  if (!o.small_images) {
    const auto before = side;
    side = static_cast<double>((static_cast<int64_t>(before) - 1) / 2 + 1);
    // The largest of nine, and the gradient back to where it was.
    work.add(KernelClass::kOther, 0, 2 * batch * 64 * (before * before + side * side) * bytes.activation);
  }
  double in = 64;
  for (size_t stage = 0; stage < 4; ++stage) {
    const auto planes = static_cast<double>(64 << stage), out = o.bottleneck ? 4 * planes : planes;
    const double stride = stage == 0 || (stage > 0 && o.replace_stride_with_dilation[stage - 1]) ? 1 : 2;
    for (int64_t block = 0; block < o.layers[stage]; ++block) {
      const auto step = block == 0 ? stride : 1;
      if (block == 0 && (step != 1 || in != out)) conv(side, in, out, 1, step);
      if (o.bottleneck) {
        const auto groups = static_cast<double>(o.groups),
                   width = planes * static_cast<double>(o.width_per_group) / 64 * groups;
        conv(side, in, width, 1, 1);
        side = conv(side, width, width, 3, step, groups);
        conv(side, width, out, 1, 1);
      } else {
        side = conv(side, in, planes, 3, step);
        conv(side, planes, planes, 3, 1);
      }
      work.add(KernelClass::kElementwise, 0, 4 * batch * side * side * out * bytes.activation);
      in = out;
    }
  }
  work.add(KernelClass::kReduction, 0, 2 * batch * side * side * in * bytes.activation);
  work.linear(batch, in, static_cast<double>(o.num_classes));
  work.cross_entropy(batch, static_cast<double>(o.num_classes));
  return work;
}

}  // namespace levin::bench
