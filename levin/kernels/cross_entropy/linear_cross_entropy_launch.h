#pragma once

#include <cstdint>

/// What the kernels of linear_cross_entropy_hopper.cu are told: pointers, sizes and a stream, without a header of
/// torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// All numbers but float32 are bfloat16. Matrices are at multiples of 16 bytes, as are their rows.
struct LinearCrossEntropyLaunch {
  const void* x = nullptr;  // [rows, depth]
  const void* w = nullptr;  // [classes, depth]
  const int64_t* targets = nullptr;
  float* losses = nullptr;
  const float* scale = nullptr;  // or null
  void* grads = nullptr;         // [rows, columns], or null
  float* factors = nullptr;      // [rows]
  void* scaled_x = nullptr;      // [rows, depth], or null as grads
  float* scratch = nullptr;      // linear_cross_entropy_scratch
  int32_t rows = 0;
  int32_t columns = 0;
  int32_t classes = 0;
  int32_t depth = 0;
  int64_t ignore_index = 0;
  int32_t processors = 0;  // of the device
};

/// Columns of a tile of the product.
constexpr int64_t kLinearCrossEntropyColumns = 256;

/// Numbers of float32: for each row of a tile a sum and the largest logit, for each row two logits, and a flag.
constexpr int64_t linear_cross_entropy_scratch(int64_t rows, int64_t columns) {
  const int64_t tiles = (columns + kLinearCrossEntropyColumns - 1) / kLinearCrossEntropyColumns;
  return rows * (2 * tiles + 2) + 1;
}

/// Returns a cudaError_t.
int launch_linear_cross_entropy(const LinearCrossEntropyLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
