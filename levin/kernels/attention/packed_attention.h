#pragma once

#include <ATen/core/Tensor.h>

#include "levin/kernels/attention/packed_attention_launch.h"

/// What short_attention and causal_attention share, in packed_attention_cuda.cpp.
namespace levin::kernels::detail {

/// qkv [B, T, 3, H, 64] is aligned, and outlives the launch.
PackedAttentionLaunch launch_of(const at::Tensor& qkv);

}  // namespace levin::kernels::detail
