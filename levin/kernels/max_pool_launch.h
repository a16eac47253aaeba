#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of max_pool.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Channels-last images and windows over them.
struct MaxPoolLaunch {
  NumberType type = NumberType::kFloat;
  /// Channels are whole vectors of 16 bytes, and every pointer stands at one.
  bool vectors = false;
  int64_t images = 0, channels = 0;
  int height = 0, width = 0, out_height = 0, out_width = 0;
  int kernel_height = 1, kernel_width = 1, stride_height = 1, stride_width = 1, padding_height = 0, padding_width = 0;
  void* in = nullptr;   // x, or its gradient
  void* out = nullptr;  // y, or its gradient
  /// For each output, which pixel of its window was the largest: row * kernel_width + column.
  uint8_t* chosen = nullptr;
};

/// In max_pool.cu; each returns a cudaError_t. Forward writes `out` and `chosen`, backward `in`.
int launch_max_pool(const MaxPoolLaunch& launch, CUstream_st* stream);
int launch_max_pool_backward(const MaxPoolLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
