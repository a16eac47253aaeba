#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of short_attention_hopper.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// The kernels keep a whole head in shared memory.
inline constexpr int kShortAttentionSize = 64, kShortAttentionMinTokens = 129, kShortAttentionMaxTokens = 208;

/// Sums of columns come in as many parts for each sequence.
inline constexpr int kShortAttentionParts = 8;

/// Numbers are float16 or bfloat16. Every pointer is a multiple of 16.
struct ShortAttentionLaunch {
  const void* qkv = nullptr;  // [batch, tokens, 3, heads, 64]
  void* out = nullptr;        // [batch, tokens, heads, 64]; read by backward
  float* sums = nullptr;      // [batch, heads, tokens]; read by backward
  // ---- backward
  const void* grad = nullptr;  // of out
  void* qkv_grad = nullptr;
  void* column_sums = nullptr;  // [3, heads, 64] of qkv_grad, or null
  NumberType column_sums_type = NumberType::kNone;
  float* column_partials = nullptr;  // [batch * kShortAttentionParts, 3, heads, 64]
  bool half = false;
  int32_t batch = 0;
  int32_t tokens = 0;
  int32_t heads = 0;
  int32_t processors = 0;  // of the device
};

/// Both return a cudaError_t.
int launch_short_attention(const ShortAttentionLaunch& launch, CUstream_st* stream);
int launch_short_attention_backward(const ShortAttentionLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
