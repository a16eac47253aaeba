#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

struct CrossEntropyStep {
  /// Columns that are classes; those after them are padding.
  int64_t classes = 0;
  /// Targets of this value count for nothing.
  int64_t ignore_index = -100;
  /// A factor of the gradient, float32 [] on the logits' device; 1 if there is none.
  std::optional<Tensor> scale = {};
};

/// The cross entropy of each row of logits [N, C] with targets int64 [N], into losses [N] (float32; double for double
/// logits). The gradient of the logits takes their place: (softmax - one-hot) * scale, zero in rows that are ignored
/// and in padding. Rows may lie further apart than C. All rows are one kernel on CUDA, which computes in float32 and
/// reads the logits from memory once. A target that is no class is an error on the CPU and NaN on CUDA.
///
/// Autograd does not see it: it is a part of autograd functions.
void cross_entropy_step(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                        const CrossEntropyStep& options);

/// The losses alone: the logits stay as they are.
void cross_entropy_losses(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                          const CrossEntropyStep& options);

/// x *= factor, one number of x's dtype on its device. On CUDA a factor of 1, which the gradient of a loss mostly is,
/// takes no pass over x. Autograd does not see it.
void scale_in_place(const Tensor& x, const Tensor& factor);

/// out = x * factors of its rows: x [N, D] and factors [N] float32, out [N, D] of any floating dtype; it may be x.
/// Autograd does not see it.
void scale_rows(const Tensor& out, const Tensor& x, const Tensor& factors);

}  // namespace levin::kernels
