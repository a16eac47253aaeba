#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// One token of each row, and the keys and values of those before it. No gradients.
struct DecodeArguments {
  /// [B, 1, H, D] and [B, 1, Hkv, D], without positions.
  Tensor q, k, v;
  /// int64 [B, 1].
  Tensor positions;
  /// Cosines and sines, float32 [2, positions, R / 2]: the first R dimensions of a head are turned. Undefined: none.
  Tensor angles;
  /// [rows, Hkv, capacity, D]: rows from `first_row` on. The slot of the position is written. The dtype of the queries,
  /// or bytes with scales: int8, or fp8 (e4m3) as uint8.
  Tensor keys, values;
  /// Of bytes: float32 [rows, Hkv, capacity].
  Tensor key_scales, value_scales;
  int64_t first_row = 0;
  /// Paged: int64 [B, N], which rows of `keys` a row has in the order of its positions, each of a power of two of
  /// tokens. Undefined: the one from first_row on.
  Tensor blocks;
  /// More than any position.
  int64_t seen = 0;
  double scale = 1;
  /// cap * tanh(x / cap) of the scores; 0: none.
  double softcap = 0;
  /// Keys that a query sees, itself included; 0: all.
  int64_t window = 0;
  /// ALiBi: float32 [H]. Undefined: none.
  Tensor slopes;
};

/// Whether there is a kernel for queries of that dtype: CUDA, float or 16 bit, heads of a multiple of 8 up to 256, and
/// blocks of a power of two of tokens (0: not paged). LEVIN_DECODE_KERNELS=0: never.
bool has_decode_kernel(c10::Device device, at::ScalarType type, int64_t rows, int64_t head_width, int64_t block_tokens);
/// Turns queries and keys, appends keys and values, and attends: [B, 1, H * D].
Tensor decode_attention(const DecodeArguments& arguments);

/// The same on the CPU, for float and 16 bit.
bool has_decode_kernel_cpu(const Tensor& hidden);
Tensor decode_attention_cpu(const DecodeArguments& arguments);

}  // namespace levin::kernels
