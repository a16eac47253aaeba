#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of image_batch.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

constexpr int kMaxChannels = 8;
constexpr int kMaxBatch = 65535;  // blocks along y

/// Bytes in, numbers out: pointers to device memory.
struct NormalizeLaunch {
  const uint8_t* in = nullptr;
  int64_t in_image = 0;  // strides of the images, in bytes
  int64_t in_channel = 0;
  int64_t in_row = 0;
  int64_t in_column = 0;
  int32_t in_height = 0;
  int32_t in_width = 0;
  void* out = nullptr;
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16
  bool channels_last = false;
  int32_t batch = 0;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  const int32_t* placements = nullptr;  // [batch, 3], or null
  float mean[kMaxChannels] = {};
  float std[kMaxChannels] = {};
  uint8_t fill = 0;
};

struct EraseLaunch {
  void* images = nullptr;
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16
  int64_t image = 0;                     // strides, in numbers
  int64_t channel = 0;
  int64_t row = 0;
  int64_t column = 0;
  int32_t batch = 0;
  int32_t channels = 0;
  const int32_t* boxes = nullptr;  // [batch, 4]
  float value[kMaxChannels] = {};
};

/// In image_batch.cu; both return a cudaError_t.
int launch_normalize_images(const NormalizeLaunch& launch, CUstream_st* stream);
int launch_erase_images(const EraseLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
