#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernel of cross_entropy.cu is told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

struct CrossEntropyLaunch {
  void* logits = nullptr;                // [rows, columns]
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16
  int64_t stride = 0;                    // numbers from row to row
  const int64_t* targets = nullptr;
  float* losses = nullptr;
  const float* scale = nullptr;  // or null
  int64_t rows = 0;
  int32_t columns = 0;
  int32_t classes = 0;
  int64_t ignore_index = 0;
  bool gradient = false;
};

struct ScaleLaunch {
  void* x = nullptr;
  const void* factor = nullptr;  // one number
  NumberType type = NumberType::kFloat;
  int64_t count = 0;
  int32_t processors = 1;
};

struct ScaleRowsLaunch {
  void* out = nullptr;  // [rows, 4 * packs], of `type`
  NumberType type = NumberType::kFloat;
  const float* x = nullptr;
  const float* factors = nullptr;
  int64_t rows = 0;
  int32_t packs = 0;
};

/// In cross_entropy.cu; all return a cudaError_t.
int launch_cross_entropy(const CrossEntropyLaunch& launch, CUstream_st* stream);
int launch_scale(const ScaleLaunch& launch, CUstream_st* stream);
int launch_scale_rows(const ScaleRowsLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
