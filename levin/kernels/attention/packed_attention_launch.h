#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

namespace levin::kernels::detail {

/// What attention kernels of packed queries, keys and values with heads of 64 are told, without a header of torch.
/// Numbers are float16 or bfloat16. Every pointer is a multiple of 16.
struct PackedAttentionLaunch {
  const void* qkv = nullptr;  // [batch, tokens, 3, heads, 64]
  void* out = nullptr;        // [batch, tokens, heads, 64]; read by backward
  float* sums = nullptr;      // [batch, heads, tokens]: logarithms of sums of exponentials; read by backward
  // ---- backward
  const void* grad = nullptr;  // of out
  void* qkv_grad = nullptr;
  float* scratch = nullptr;     // where the kernel needs some
  void* column_sums = nullptr;  // [3, heads, 64] of qkv_grad, or null
  NumberType column_sums_type = NumberType::kNone;
  float* column_partials = nullptr;  // [batch * parts, 3, heads, 64], as many parts as the kernel has
  bool half = false;
  int32_t batch = 0;
  int32_t tokens = 0;
  int32_t heads = 0;
  int32_t processors = 0;  // of the device
};

}  // namespace levin::kernels::detail
