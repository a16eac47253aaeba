#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernel of rotary.cu is told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Three matrices of rows of heads * size numbers into one, side by side, the first two turned.
struct PackHeadsLaunch {
  const void* parts[3] = {};
  int64_t strides[3] = {};               // numbers from row to row
  void* out = nullptr;                   // [rows, 3, heads, size]
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16
  int64_t rows = 0;
  int32_t heads = 0;
  int32_t size = 0;               // even
  const float* angles = nullptr;  // [2, length, size / 2], or null: nothing is turned
  int32_t length = 0;             // row r has position r % length
  bool inverse = false;
};

/// Returns a cudaError_t.
int launch_pack_heads(const PackHeadsLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
