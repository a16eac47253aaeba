#include <cuda_runtime.h>

#include "levin/kernels/images/image_resample_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256;

// The twin of jpeg_colors.cpp, which says why.
__device__ int mixed_rows(const uint8_t* plane, const JpegPlanesEntry& entry, int y, int column) {
  if (!entry.half_height) return plane[static_cast<int64_t>(y) * entry.chroma_pitch + column];
  const int near = y >> 1, far = min(max(near + (y & 1 ? 1 : -1), 0), entry.chroma_height - 1);
  return 3 * plane[static_cast<int64_t>(near) * entry.chroma_pitch + column] +
         plane[static_cast<int64_t>(far) * entry.chroma_pitch + column];
}

__device__ int chroma_at(const uint8_t* plane, const JpegPlanesEntry& entry, int y, int x) {
  if (!entry.half_width) {
    const int sum = mixed_rows(plane, entry, y, x);
    return entry.half_height ? (sum + (y & 1 ? 2 : 1)) >> 2 : sum;
  }
  if (entry.chroma_width <= 2)
    return plane[static_cast<int64_t>(entry.half_height ? y >> 1 : y) * entry.chroma_pitch + (x >> 1)];
  const int near = x >> 1, far = min(max(near + (x & 1 ? 1 : -1), 0), entry.chroma_width - 1);
  const int sum = 3 * mixed_rows(plane, entry, y, near) + mixed_rows(plane, entry, y, far);
  return entry.half_height ? (sum + (x & 1 ? 7 : 8)) >> 4 : (sum + (x & 1 ? 2 : 1)) >> 2;
}

__device__ uint8_t color_byte(int value) {
  return static_cast<uint8_t>(min(max(value, 0), 255));
}

__global__ void __launch_bounds__(kThreads) jpeg_colors_kernel(const JpegPlanesEntry* entries) {
  const JpegPlanesEntry entry = entries[blockIdx.y];
  const int64_t pixels = static_cast<int64_t>(entry.height) * entry.width;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < pixels;
       i += static_cast<int64_t>(gridDim.x) * kThreads) {
    const int row = static_cast<int>(i / entry.width);
    const int x = entry.left + static_cast<int>(i - static_cast<int64_t>(row) * entry.width), y = entry.top + row;
    const int luma = entry.luma[static_cast<int64_t>(y) * entry.luma_pitch + x];
    const int blue = chroma_at(entry.blue, entry, y, x) - 128, red = chroma_at(entry.red, entry, y, x) - 128;
    const uint8_t r = color_byte(luma + ((91881 * red + 32768) >> 16));
    const uint8_t g = color_byte(luma + ((-22554 * blue - 46802 * red + 32768) >> 16));
    const uint8_t b = color_byte(luma + ((116130 * blue + 32768) >> 16));
    if (entry.gray) {
      entry.out[i] = static_cast<uint8_t>((r * 19595 + g * 38470 + b * 7471 + 32768) >> 16);
    } else {
      uint8_t* out = entry.out + i * 3;
      out[0] = r, out[1] = g, out[2] = b;
    }
  }
}

}  // namespace

int launch_jpeg_colors(const JpegPlanesEntry* entries, int32_t batch, int64_t most_pixels, CUstream_st* stream) {
  const int64_t blocks = (most_pixels + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(blocks < 1024 ? blocks : 1024), static_cast<unsigned>(batch));
  jpeg_colors_kernel<<<grid, kThreads, 0, stream>>>(entries);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
