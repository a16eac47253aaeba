#include <algorithm>
#include <cstring>

#include "levin/io/images/png_codec.h"

namespace levin::detail {
namespace {

// The one of the three that is nearest to left + above - corner, in the order of the arguments where two are. Where the
// corner lies between the others it is the nearest, unless the sum lies beyond one of them.
uint8_t paeth(int left, int above, int corner) {
  const int low = std::min(left, above), high = std::max(left, above), beyond = 3 * corner - left - above;
  const int inside = high <= beyond ? low : corner;
  return static_cast<uint8_t>(beyond <= low ? high : inside);
}

// kStep is known to the compiler, so that the bytes of a pixel are worked on side by side.
template <int kStep>
void undo_left(int filter, const uint8_t* row, const uint8_t* above, uint8_t* out, int64_t bytes) {
  uint8_t left[kStep] = {};
  uint8_t corner[kStep] = {};
  const auto each = [&](auto predict) {
    for (int64_t i = 0; i + kStep <= bytes; i += kStep) {
#pragma GCC unroll 8
      for (int k = 0; k < kStep; ++k) {
        const uint8_t up = above[i + k];
        left[k] = static_cast<uint8_t>(row[i + k] + predict(left[k], up, corner[k]));
        corner[k] = up;
        out[i + k] = left[k];
      }
    }
  };
  if (filter == 1) {
    each([](int a, int, int) { return a; });
  } else if (filter == 3) {
    each([](int a, int b, int) { return (a + b) / 2; });
  } else {
    each(paeth);
  }
}

// Sample i of a row of narrow samples, leftmost in the highest bits.
uint8_t narrow_sample(const uint8_t* row, int64_t i, int depth) {
  const int64_t bit = i * depth;
  return static_cast<uint8_t>(row[bit / 8] >> (8 - depth - bit % 8) & ((1 << depth) - 1));
}

}  // namespace

void unfilter_png_row(int filter, const uint8_t* row, const uint8_t* above, uint8_t* out, int64_t bytes, int step) {
  if (filter == 0) {
    if (out != row) std::memcpy(out, row, static_cast<size_t>(bytes));
    return;
  }
  if (filter == 2) {
    for (int64_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(row[i] + above[i]);
    return;
  }
  switch (step) {
    case 1:
      return undo_left<1>(filter, row, above, out, bytes);
    case 2:
      return undo_left<2>(filter, row, above, out, bytes);
    case 3:
      return undo_left<3>(filter, row, above, out, bytes);
    case 4:
      return undo_left<4>(filter, row, above, out, bytes);
    case 6:
      return undo_left<6>(filter, row, above, out, bytes);
    default:
      return undo_left<8>(filter, row, above, out, bytes);
  }
}

PngColours png_colours(const PngHead& head, int channels) {
  PngColours colours;
  if (!head.indexed()) return colours;
  const int known = 1 << head.depth;
  for (int i = 0; i < known; ++i) {
    auto* colour = colours.of[i];
    if (head.color == 3) {
      std::memcpy(colour, head.palette[i], 4);
      if (channels == 1) colour[0] = luma(colour[0], colour[1], colour[2]);
    } else {
      std::memset(colour, i * 255 / (known - 1), 3);
      colour[3] = head.has_key && head.key[0] == i ? 0 : 255;
    }
  }
  return colours;
}

void expand_png_row(const PngHead& head, const PngColours& colours, const uint8_t* row, int64_t first, int64_t count,
                    int channels, uint8_t* out) {
  if (head.indexed()) {
    for (int64_t i = first; i < first + count; ++i, out += channels) {
      const auto* colour = colours.of[head.depth == 8 ? row[i] : narrow_sample(row, i, head.depth)];
      for (int c = 0; c < channels; ++c) out[c] = colour[c];
    }
    return;
  }
  const int samples = head.samples();
  const int wide = head.depth / 8;  // bytes of a sample; of two, the higher one is taken
  const auto* pixel = row + first * samples * wide;
  if (wide == 1 && samples == channels) {
    std::memcpy(out, pixel, static_cast<size_t>(count * samples));
    return;
  }
  for (int64_t i = 0; i < count; ++i, pixel += samples * wide, out += channels) {
    uint8_t rgba[4];
    if (samples <= 2) {
      std::memset(rgba, pixel[0], 3);
    } else {
      for (int c = 0; c < 3; ++c) rgba[c] = pixel[c * wide];
    }
    rgba[3] = samples == 2 || samples == 4 ? pixel[(samples - 1) * wide] : 255;
    if (head.has_key) {
      bool same = true;
      for (int c = 0; c < samples; ++c) {
        same = same && (wide == 1 ? pixel[c] : pixel[2 * c] << 8 | pixel[2 * c + 1]) == head.key[c];
      }
      if (same) rgba[3] = 0;
    }
    if (channels >= 3) {
      for (int c = 0; c < channels; ++c) out[c] = rgba[c];
    } else {
      out[0] = samples <= 2 ? rgba[0] : luma(rgba[0], rgba[1], rgba[2]);
      if (channels == 2) out[1] = rgba[3];
    }
  }
}

}  // namespace levin::detail
