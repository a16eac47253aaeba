#pragma once

#include <cstdint>

/// What the kernel of cross_entropy.cu is told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

enum class LogitType { kFloat, kHalf, kBFloat16 };

struct CrossEntropyLaunch {
  void* logits = nullptr;  // [rows, columns]
  LogitType type = LogitType::kFloat;
  int64_t stride = 0;  // numbers from row to row
  const int64_t* targets = nullptr;
  float* losses = nullptr;
  const float* scale = nullptr;  // or null
  int64_t rows = 0;
  int32_t columns = 0;
  int32_t classes = 0;
  int64_t ignore_index = 0;
  bool gradient = false;
};

/// Returns a cudaError_t.
int launch_cross_entropy(const CrossEntropyLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
