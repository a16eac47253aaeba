#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

/// Small values that the options of transforms are made of: what torchvision takes as "a number or a sequence".
namespace levin::transforms {

/// How pixels between pixels are made. Images of bytes are resized as Pillow does, where all but the nearest are
/// filters as wide as the image shrinks.
enum class Interpolation { kNearest, kNearestExact, kBilinear, kBicubic, kBox, kHamming, kLanczos };

/// By torchvision's words: "nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos".
Interpolation interpolation_of(std::string_view word);

/// `224`, or `{height, width}`.
struct Size {
  Size() = default;
  Size(int64_t side) : height(side), width(side), is_one(true) {}
  Size(int side) : Size(static_cast<int64_t>(side)) {}
  Size(int64_t h, int64_t w) : height(h), width(w) {}
  int64_t height = 0;
  int64_t width = 0;
  /// One number was given: a square, or the shorter side (Resize).
  bool is_one = false;
};

/// `4` on every side, `{left_and_right, top_and_bottom}`, or `{left, top, right, bottom}`.
struct Padding {
  Padding() = default;
  Padding(int64_t all) : left(all), top(all), right(all), bottom(all) {}
  Padding(int all) : Padding(static_cast<int64_t>(all)) {}
  Padding(int64_t x, int64_t y) : left(x), top(y), right(x), bottom(y) {}
  Padding(int64_t l, int64_t t, int64_t r, int64_t b) : left(l), top(t), right(r), bottom(b) {}
  int64_t left = 0;
  int64_t top = 0;
  int64_t right = 0;
  int64_t bottom = 0;
  bool empty() const { return !left && !top && !right && !bottom; }
};

/// What stands where the image does not reach: one number for all channels or one for each (0 to 255 for bytes).
struct Fill {
  Fill() = default;
  Fill(double one) : values{one} {}
  Fill(int one) : values{static_cast<double>(one)} {}
  Fill(std::initializer_list<double> each) : values(each) {}
  double of(int64_t channel) const {
    return values.empty() ? 0 : values.size() == 1 ? values[0] : values.at(static_cast<size_t>(channel));
  }
  std::vector<double> values;
};

/// From `low` to `high`.
struct Range {
  double low = 0;
  double high = 0;
};

/// Degrees: `30` is from -30 to 30, `{0, 90}` is as it says.
struct Degrees {
  Degrees() = default;
  Degrees(double both) : low(-both), high(both) {}
  Degrees(int both) : Degrees(static_cast<double>(both)) {}
  Degrees(double from, double to) : low(from), high(to) {}
  double low = 0;
  double high = 0;
};

/// What fills a border.
enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

}  // namespace levin::transforms
