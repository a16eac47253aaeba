#pragma once

#include <algorithm>
#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of rotary.cu are told: pointers, sizes and a stream, without a header of torch.
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

/// Three matrices into one, side by side, whose columns are added up on the way.
struct PackSumsLaunch {
  const void* parts[3] = {};             // [rows, size] each
  void* out = nullptr;                   // [rows, 3, size]
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16
  int64_t rows = 0;
  int64_t size = 0;
  float* partials = nullptr;  // [slices, 3, size]
  int64_t slices = 1;
  int64_t per_slice = 0;  // rows of each, but for the last ones
  void* sums = nullptr;   // [3, size]
  NumberType sums_type = NumberType::kNone;
};

/// Into how many slices the rows are divided: one wave of blocks, of 32 rows at least.
inline int64_t pack_sums_slices(int64_t rows, int64_t size, NumberType type, int processors) {
  const int64_t across = std::max<int64_t>(1, 3 * size / (32 * (16 / number_size(type))));
  return std::clamp<int64_t>(4 * static_cast<int64_t>(processors) / across, 1, std::max<int64_t>(1, rows / 32));
}

/// Returns a cudaError_t.
int launch_pack_sums(const PackSumsLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
