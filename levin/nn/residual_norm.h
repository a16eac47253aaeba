#pragma once

#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>

#include "levin/nn/unit.h"

namespace levin::nn {

struct ResidualNormOptions {
  /// Of the last dimension.
  int64_t size = 0;
  double eps = 1e-5;
  /// Root mean square norm in place of layer norm.
  bool rms = false;
  bool bias = true;
  /// Whether there are weights at all; without them there is no bias either.
  bool affine = true;
  /// Multiplies by 1 + weight, in float32, with a weight that starts from zeros (Gemma). By plain operators.
  bool unit_offset = false;
};

/// A norm inside a stack of residual branches. It also ends the branch before it, so that the sum and the norm, and in
/// backward their gradients, are one kernel on CUDA (levin/kernels/norm/residual_norm.h). Parameters are those of layer
/// norm: "weight" of ones and "bias" of zeros.
///
///     auto [y, stream] = norm_1(x);
///     auto [z, h] = norm_2(stream, attention(y));   // z = norm(stream + attention(y))
///     return h + mlp(z);                            // or {h, mlp(z)}, for the norm_1 of the next block
struct ResidualNormImpl : torch::nn::Cloneable<ResidualNormImpl> {
  explicit ResidualNormImpl(const ResidualNormOptions& options);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  /// stream [..., size] to {norm(h), h}, h = stream + dropout(branch). `dropout` is the fraction of the branch that is
  /// dropped in training.
  std::tuple<Tensor, Tensor> forward(const Tensor& stream, const Tensor& branch = {}, double dropout = 0);

  ResidualNormOptions options;
  Tensor weight, bias;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Tensor())}, {2, torch::nn::AnyValue(0.0)})
};
LEVIN_MODULE(ResidualNorm);

/// What goes from block to block: `sum`, and the last branch, which nobody has added to it yet, or undefined.
struct OpenStream {
  Tensor sum, branch;
  /// Of a decode step, or undefined: the weight of the RMS norm behind the block, which the block may begin
  /// (kernels::NormedRows), and the norm of `sum` that was begun.
  Tensor next_weight = {}, weighted = {}, squares = {};

  /// sum + branch.
  Tensor closed() const;
};

/// Runs a block's method `open(OpenStream, ...)`, which leaves its last sum to the norm that comes next. A checkpoint
/// keeps what its block is given, and the first block of a pipeline stage is sent it: one tensor is better than two
/// there, so the sum is computed before.
template <auto kOpen, class Block, class... A>
OpenStream open_block(const Block& block, OpenStream stream, A&&... more) {
  if (block->has_interceptor(Order::kCheckpointing) || block->has_interceptor(Order::kStage))
    stream = {stream.closed(), {}};
  return block.template call<kOpen>(std::move(stream), std::forward<A>(more)...);
}

}  // namespace levin::nn
