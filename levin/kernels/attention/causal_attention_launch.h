#pragma once

#include <cstdint>

#include "levin/kernels/attention/packed_attention_launch.h"

/// The kernels of causal_attention_hopper.cu, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Logarithms of sums of all tokens of a head are in shared memory.
inline constexpr int kCausalAttentionSize = 64, kCausalAttentionMinTokens = 129, kCausalAttentionMaxTokens = 2048;

/// Queries and keys of a tile, and sums of columns of a sequence.
inline constexpr int kCausalAttentionTile = 128, kCausalAttentionParts = 2;

/// Numbers of `scratch`: what blocks add up in.
constexpr int64_t causal_attention_scratch(int64_t processors, int64_t tokens) {
  return processors * ((tokens + kCausalAttentionTile - 1) / kCausalAttentionTile * kCausalAttentionTile) *
         kCausalAttentionSize;
}

/// Returns a cudaError_t.
int launch_causal_attention(const PackedAttentionLaunch& launch, CUstream_st* stream);
int launch_causal_attention_backward(const PackedAttentionLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
