#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of causal_attention_hopper.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Logarithms of sums of all tokens of a head are in shared memory.
inline constexpr int kCausalAttentionSize = 64, kCausalAttentionMinTokens = 129, kCausalAttentionMaxTokens = 2048;

/// Queries and keys of a tile, and sums of columns of a sequence.
inline constexpr int kCausalAttentionTile = 128, kCausalAttentionParts = 16;

/// Blocks of an H200, for an estimate without a device.
inline constexpr int kCausalAttentionBlocks = 132;

/// Numbers that blocks add up in.
constexpr int64_t causal_attention_scratch(int64_t processors, int64_t tokens) {
  return processors * ((tokens + kCausalAttentionTile - 1) / kCausalAttentionTile * kCausalAttentionTile) *
         kCausalAttentionSize;
}

/// Numbers are float16 or bfloat16. Every pointer is a multiple of 16.
struct CausalAttentionLaunch {
  const void* qkv = nullptr;    // [batch, tokens, 3, heads, 64]
  const void* out = nullptr;    // [batch, tokens, heads, 64]
  const float* sums = nullptr;  // [batch, heads, tokens]: logarithms of sums of exponentials
  const void* grad = nullptr;   // of out
  void* qkv_grad = nullptr;
  float* scratch = nullptr;     // causal_attention_scratch
  void* column_sums = nullptr;  // [3, heads, 64] of qkv_grad, or null
  NumberType column_sums_type = NumberType::kNone;
  float* column_partials = nullptr;  // [batch * kCausalAttentionParts, 3, heads, 64]
  bool half = false;
  int32_t batch = 0;
  int32_t tokens = 0;
  int32_t heads = 0;
  int32_t processors = 0;  // of the device
};

/// Returns a cudaError_t.
int launch_causal_attention_backward(const CausalAttentionLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
