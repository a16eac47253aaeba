#include "levin/kernels/images/jpeg_colors.h"

#include <algorithm>
#include <cstdint>

#include "levin/core/error.h"
#include "levin/core/parallel.h"

namespace levin::kernels {
namespace {

// A row of chroma in the weights of the rows that are mixed: 4 where chroma has half of the rows, else 1.
int mixed_rows(const uint8_t* plane, const JpegPlanesEntry& entry, int y, int column) {
  if (!entry.half_height) return plane[static_cast<int64_t>(y) * entry.chroma_pitch + column];
  const int near = y >> 1, far = std::clamp(near + (y & 1 ? 1 : -1), 0, entry.chroma_height - 1);
  return 3 * plane[static_cast<int64_t>(near) * entry.chroma_pitch + column] +
         plane[static_cast<int64_t>(far) * entry.chroma_pitch + column];
}

int chroma_at(const uint8_t* plane, const JpegPlanesEntry& entry, int y, int x) {
  if (!entry.half_width) {
    const int sum = mixed_rows(plane, entry, y, x);
    return entry.half_height ? (sum + (y & 1 ? 2 : 1)) >> 2 : sum;
  }
  // libjpeg leaves planes of two columns alone.
  if (entry.chroma_width <= 2)
    return plane[static_cast<int64_t>(entry.half_height ? y >> 1 : y) * entry.chroma_pitch + (x >> 1)];
  const int near = x >> 1, far = std::clamp(near + (x & 1 ? 1 : -1), 0, entry.chroma_width - 1);
  const int sum = 3 * mixed_rows(plane, entry, y, near) + mixed_rows(plane, entry, y, far);
  // Halves go up and down in turns, so that a plane gets neither lighter nor darker.
  return entry.half_height ? (sum + (x & 1 ? 7 : 8)) >> 4 : (sum + (x & 1 ? 2 : 1)) >> 2;
}

uint8_t color_byte(int value) {
  return static_cast<uint8_t>(std::clamp(value, 0, 255));
}

void colors_of_row(const JpegPlanesEntry& entry, int row) {
  const int y = entry.top + row, channels = entry.gray ? 1 : 3;
  uint8_t* out = entry.out + static_cast<int64_t>(row) * entry.width * channels;
  for (int column = 0; column < entry.width; ++column, out += channels) {
    const int x = entry.left + column, luma = entry.luma[static_cast<int64_t>(y) * entry.luma_pitch + x];
    const int blue = chroma_at(entry.blue, entry, y, x) - 128, red = chroma_at(entry.red, entry, y, x) - 128;
    // ITU-R 601 with 16 bits after the point: 1.402, 0.344136, 0.714136 and 1.772.
    const uint8_t r = color_byte(luma + ((91881 * red + 32768) >> 16));
    const uint8_t g = color_byte(luma + ((-22554 * blue - 46802 * red + 32768) >> 16));
    const uint8_t b = color_byte(luma + ((116130 * blue + 32768) >> 16));
    if (entry.gray)
      out[0] = static_cast<uint8_t>((r * 19595 + g * 38470 + b * 7471 + 32768) >> 16);
    else
      out[0] = r, out[1] = g, out[2] = b;
  }
}

}  // namespace

void jpeg_colors(std::span<const JpegPlanesEntry> entries, c10::Device device) {
  if (device.is_cuda()) {
    if (!entries.empty()) detail::jpeg_colors_cuda(entries, device);
    return;
  }
  LEVIN_CHECK(device.is_cpu(), "[jpeg_colors] the planes are on ", device, "; cpu and cuda are known");
  for (const auto& entry : entries)
    parallel_for(0, entry.height, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) colors_of_row(entry, static_cast<int>(row));
    });
}

}  // namespace levin::kernels
