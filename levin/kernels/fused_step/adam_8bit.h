#pragma once

#include <array>

#include "levin/kernels/fused_step/adam.h"

namespace levin::kernels {

/// Elements that share one scale.
inline constexpr int64_t kCodeBlock = 256;

/// How many blocks a parameter of that many elements has; the last may be short.
constexpr int64_t code_blocks(int64_t numel) {
  return (numel + kCodeBlock - 1) / kCodeBlock;
}

/// What the 256 codes stand for, ascending, between -1 (or 0) and 1: seven decades, each with twice the values of the
/// one below it, and 0 and 1 (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022).
const std::array<float, 256>& dynamic_codes(bool with_sign);

/// As AdamTensors, with averages in codes: uint8 [blocks, 256] in the memory order of the parameter, and the largest
/// magnitude of each block, float [blocks]. A square that is not zero never gets the code of zero.
struct Adam8bitTensors {
  std::span<const Tensor> params;
  std::span<const Tensor> grads;
  std::span<const Tensor> averages;
  std::span<const Tensor> squares;
  std::span<const Tensor> average_scales;
  std::span<const Tensor> square_scales;
  std::span<const Tensor> steps;
  std::span<const Tensor> copies = {};
};

/// One step in float; `amsgrad` is not known here. `refreshed` as in StepReplay.
void fused_adam_8bit(const Adam8bitTensors& tensors, const AdamNumbers& numbers, const StepScale& scale = {},
                     const AdamNumbers* refreshed = nullptr);

/// Codes [blocks, 256] and scales [blocks] of the averages of `numel` elements, as float [numel].
Tensor from_codes(const Tensor& codes, const Tensor& scales, bool with_sign, int64_t numel);

}  // namespace levin::kernels
