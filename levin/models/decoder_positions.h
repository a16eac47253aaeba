#pragma once

#include <ATen/core/Tensor.h>

#include "levin/models/decoder_options.h"
#include "levin/nn/context/share.h"

namespace levin::models {

using at::Tensor;

/// The place of each token among those of its text: mask [B, T] (0 padding, else the number of a text, rising along the
/// row) to int64 [B, T]. Padding before the first token has 0.
Tensor token_positions(const Tensor& mask);

/// Cosines and sines of rotary positions, float32: [2, T, R / 2] of the positions 0 to length - 1, or [2, B, T, R / 2]
/// with a mask [B, T]. A row of a batch has the angles that it would have alone, also under dynamic scaling. With a
/// context those of this rank's tokens.
Tensor rotary_angles(const DecoderOptions& options, int64_t length, const Tensor& mask, c10::Device device,
                     const ContextShare* context = nullptr);

/// The longest sequence that frequencies were made for: beyond it dynamic scaling changes them.
int64_t trained_positions(const DecoderOptions& options);

/// Inverse frequencies of the angles for sequences of that length, float32 [R / 2].
Tensor rotary_frequencies(const DecoderOptions& options, int64_t length, c10::Device device);

/// The slope of each head, float32 [H].
Tensor alibi_slopes(int64_t heads, c10::Device device = c10::kCPU);
/// Those of the heads that the model has.
Tensor alibi_slopes(const DecoderOptions& options, c10::Device device = c10::kCPU);

/// What attention adds to its scores, or a boolean of what is seen. Undefined: nothing but the causal flag.
struct AttentionMasks {
  Tensor full, windowed;
};
/// `mask` [B, T] may be undefined. Masks are [B or 1, H or 1, T or 1, T]. In a causal model every position sees itself,
/// padding too, so that no row of scores is empty.
AttentionMasks attention_masks(const DecoderOptions& options, int64_t length, const Tensor& mask, const Tensor& like);

/// The lowest finite number of a floating dtype.
double lowest_number(at::ScalarType dtype);

/// Throws an Error where a mask is not of integers or booleans, or not of the shape of the tokens.
void check_mask(const Tensor& mask, const Tensor& tokens);

}  // namespace levin::models
