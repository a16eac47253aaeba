#include "levin/data/transforms/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace levin::transforms::detail {
namespace {

struct WarpTarget {
  uint8_t* data;
  int64_t height, width;
  const uint8_t* blank;
};

int64_t whole(double place) {
  return place < 0 ? -1 : static_cast<int64_t>(place);
}

void put(uint8_t* out, const uint8_t* pixel, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) out[c] = pixel[c];
}

// Scaled and moved, not turned: columns and rows are found on their own, by adding up as Pillow does.
void nearest_straight(const PixelRows& in, const WarpTarget& out, const WarpMap& map) {
  std::vector<int64_t> columns(static_cast<size_t>(out.width));
  double x = map.at[2] + map.at[0] * 0.5;
  for (auto& column : columns) {
    column = whole(x);
    if (column >= in.width) column = -1;
    x += map.at[0];
  }
  double y = map.at[5] + map.at[4] * 0.5;
  uint8_t* to = out.data;
  for (int64_t i = 0; i < out.height; ++i, y += map.at[4]) {
    const int64_t row = whole(y);
    const bool inside = row >= 0 && row < in.height;
    for (const int64_t column : columns) {
      put(to, inside && column >= 0 ? in.data + row * in.stride + column * in.channels : out.blank, in.channels);
      to += in.channels;
    }
  }
}

template <int64_t kChannels>
void nearest_turned(const PixelRows& in, const WarpTarget& out, const WarpMap& map) {
  const int64_t channels = kChannels ? kChannels : in.channels;
  const auto fixed = [](double v) { return static_cast<int64_t>(std::floor(v * 65536.0 + 0.5)); };
  const auto& a = map.at;
  const int64_t x_right = fixed(a[0]), x_down = fixed(a[1]), y_right = fixed(a[3]), y_down = fixed(a[4]);
  int64_t x_row = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5), y_row = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
  uint8_t* to = out.data;
  for (int64_t i = 0; i < out.height; ++i, x_row += x_down, y_row += y_down) {
    int64_t x = x_row, y = y_row;
    for (int64_t j = 0; j < out.width; ++j, x += x_right, y += y_right, to += channels) {
      const int64_t column = x >> 16, row = y >> 16;
      const bool inside = column >= 0 && column < in.width && row >= 0 && row < in.height;
      put(to, inside ? in.data + row * in.stride + column * channels : out.blank, channels);
    }
  }
}

// Beyond what 16 bits before the point can hold.
void nearest_far(const PixelRows& in, const WarpTarget& out, const WarpMap& map) {
  const auto& a = map.at;
  double x_row = a[2] + a[1] * 0.5 + a[0] * 0.5, y_row = a[5] + a[4] * 0.5 + a[3] * 0.5;
  uint8_t* to = out.data;
  for (int64_t i = 0; i < out.height; ++i, x_row += a[1], y_row += a[4]) {
    double x = x_row, y = y_row;
    for (int64_t j = 0; j < out.width; ++j, x += a[0], y += a[3], to += in.channels) {
      const int64_t column = whole(x), row = whole(y);
      const bool inside = column >= 0 && column < in.width && row >= 0 && row < in.height;
      put(to, inside ? in.data + row * in.stride + column * in.channels : out.blank, in.channels);
    }
  }
}

bool near_enough(const WarpMap& map, int64_t height, int64_t width) {
  const auto& a = map.at;
  for (const double x : {0.0, static_cast<double>(width)})
    for (const double y : {0.0, static_cast<double>(height)})
      if (std::abs(x * a[0] + y * a[1] + a[2]) >= 32768 || std::abs(x * a[3] + y * a[4] + a[5]) >= 32768) return false;
  return true;
}

struct Around {
  const PixelRows& in;
  const uint8_t* row(int64_t y) const { return in.data + std::clamp<int64_t>(y, 0, in.height - 1) * in.stride; }
  int64_t column(int64_t x) const { return std::clamp<int64_t>(x, 0, in.width - 1) * in.channels; }
};

void bilinear_at(const PixelRows& in, double x, double y, uint8_t* out) {
  const Around around{in};
  const double left = std::floor(x), top = std::floor(y), dx = x - left, dy = y - top;
  const int64_t x0 = around.column(static_cast<int64_t>(left)), x1 = around.column(static_cast<int64_t>(left) + 1);
  const uint8_t* upper = around.row(static_cast<int64_t>(top));
  const uint8_t* lower = around.row(static_cast<int64_t>(top) + 1);
  for (int64_t c = 0; c < in.channels; ++c) {
    const double a = upper[x0 + c] + (upper[x1 + c] - upper[x0 + c]) * dx;
    const double b = lower[x0 + c] + (lower[x1 + c] - lower[x0 + c]) * dx;
    out[c] = static_cast<uint8_t>(a + (b - a) * dy);
  }
}

double cubic(double a, double b, double c, double d, double at) {
  const double p2 = -a + c, p3 = 2 * (a - b) + c - d, p4 = -a + b - c + d;
  return b + at * (p2 + at * (p3 + at * p4));
}

void bicubic_at(const PixelRows& in, double x, double y, uint8_t* out) {
  const Around around{in};
  const double left = std::floor(x), top = std::floor(y), dx = x - left, dy = y - top;
  std::array<int64_t, 4> columns;
  std::array<const uint8_t*, 4> rows;
  for (size_t i = 0; i < 4; ++i) {
    columns[i] = around.column(static_cast<int64_t>(left) - 1 + static_cast<int64_t>(i));
    rows[i] = around.row(static_cast<int64_t>(top) - 1 + static_cast<int64_t>(i));
  }
  for (int64_t c = 0; c < in.channels; ++c) {
    std::array<double, 4> lines;
    for (size_t i = 0; i < 4; ++i)
      lines[i] =
          cubic(rows[i][columns[0] + c], rows[i][columns[1] + c], rows[i][columns[2] + c], rows[i][columns[3] + c], dx);
    out[c] = static_cast<uint8_t>(std::clamp(cubic(lines[0], lines[1], lines[2], lines[3], dy), 0.0, 255.0));
  }
}

template <class F>
void anywhere(const PixelRows& in, const WarpTarget& out, const WarpMap& map, F&& pixel_at) {
  const auto& a = map.at;
  uint8_t* to = out.data;
  for (int64_t i = 0; i < out.height; ++i) {
    for (int64_t j = 0; j < out.width; ++j, to += in.channels) {
      const double px = static_cast<double>(j) + 0.5, py = static_cast<double>(i) + 0.5;
      double x = a[0] * px + a[1] * py + a[2], y = a[3] * px + a[4] * py + a[5];
      if (!map.is_affine) {
        const double depth = a[6] * px + a[7] * py + 1;
        x /= depth;
        y /= depth;
      }
      if (x >= 0 && x < static_cast<double>(in.width) && y >= 0 && y < static_cast<double>(in.height))
        pixel_at(x, y, to);
      else
        put(to, out.blank, in.channels);
    }
  }
}

}  // namespace

void warp(const PixelRows& in, uint8_t* out, int64_t height, int64_t width, const WarpMap& map,
          Interpolation interpolation, const uint8_t* blank) {
  const WarpTarget target{out, height, width, blank};
  if (interpolation == Interpolation::kBilinear) {
    anywhere(in, target, map, [&](double x, double y, uint8_t* to) { bilinear_at(in, x - 0.5, y - 0.5, to); });
  } else if (interpolation == Interpolation::kBicubic) {
    anywhere(in, target, map, [&](double x, double y, uint8_t* to) { bicubic_at(in, x - 0.5, y - 0.5, to); });
  } else if (!map.is_affine) {
    anywhere(in, target, map, [&](double x, double y, uint8_t* to) {
      put(to, in.data + static_cast<int64_t>(y) * in.stride + static_cast<int64_t>(x) * in.channels, in.channels);
    });
  } else if (map.at[1] == 0 && map.at[3] == 0) {
    nearest_straight(in, target, map);
  } else if (near_enough(map, height, width)) {
    in.channels == 3 ? nearest_turned<3>(in, target, map) : nearest_turned<0>(in, target, map);
  } else {
    nearest_far(in, target, map);
  }
}

}  // namespace levin::transforms::detail
