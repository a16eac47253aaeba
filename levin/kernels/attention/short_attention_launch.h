#pragma once

#include "levin/kernels/attention/packed_attention_launch.h"

/// The kernels of short_attention_hopper.cu, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// The kernels keep a whole head in shared memory.
inline constexpr int kShortAttentionSize = 64, kShortAttentionMinTokens = 129, kShortAttentionMaxTokens = 208;

/// Both return a cudaError_t.
int launch_short_attention(const PackedAttentionLaunch& launch, CUstream_st* stream);
int launch_short_attention_backward(const PackedAttentionLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
