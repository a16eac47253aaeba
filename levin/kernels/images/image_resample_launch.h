#pragma once

#include <cstdint>

/// What the kernels of image_resample.cu and jpeg_colors.cu are told: pointers, sizes and a stream, without a header of
/// torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// One image of bytes, and which part of it becomes what. Upright: where EXIF turns it, the strides are turned.
struct ResampleEntry {
  const uint8_t* origin = nullptr;  // the first pixel of the part that is resized
  int64_t row = 0;                  // strides in bytes; may be negative
  int64_t column = 0;
  int64_t channel = 0;
  int32_t in_height = 0;  // of the part
  int32_t in_width = 0;
  int32_t resized_height = 0;
  int32_t resized_width = 0;
  int32_t top = 0;  // what the first pixel of the result shows, in the resized part; outside is the fill
  int32_t left = 0;
  int32_t flip_x = 0;
  int32_t flip_y = 0;
};

enum class ResampleType { kByte, kFloat, kHalf, kBFloat16 };

struct ResampleLaunch {
  const ResampleEntry* entries = nullptr;  // [batch]
  void* out = nullptr;
  ResampleType type = ResampleType::kByte;
  bool channels_last = false;
  bool bicubic = false;
  int32_t batch = 0;
  int32_t channels = 0;  // 1 or 3
  int32_t height = 0;
  int32_t width = 0;
  int32_t taps = 0;  // the most that a pixel of any image is made of, along one side
  float mean[3] = {};
  float std[3] = {};
  uint8_t fill[3] = {};
};

/// The planes of a decoded JPEG file, and the part of it that is wanted as RGB.
struct JpegPlanesEntry {
  const uint8_t* luma = nullptr;
  const uint8_t* blue = nullptr;
  const uint8_t* red = nullptr;
  int32_t luma_pitch = 0;
  int32_t chroma_pitch = 0;
  int32_t chroma_height = 0;
  int32_t chroma_width = 0;
  int32_t half_height = 0;  // 1: chroma has half of the rows (4:2:0, 4:4:0)
  int32_t half_width = 0;   // 1: half of the columns (4:2:0, 4:2:2)
  int32_t top = 0;
  int32_t left = 0;
  int32_t height = 0;
  int32_t width = 0;
  int32_t gray = 0;        // 1: the luma of the colors, as of Pillow, in place of them
  uint8_t* out = nullptr;  // [height, width, 3], or [height, width]
};

/// In image_resample.cu and jpeg_colors.cu; both return a cudaError_t.
int launch_resample_images(const ResampleLaunch& launch, CUstream_st* stream);
int launch_jpeg_colors(const JpegPlanesEntry* entries, int32_t batch, int64_t most_pixels, CUstream_st* stream);

}  // namespace levin::kernels::detail
