#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace levin {

/// The channels that pixels are wanted in. Conversions are Pillow's, number by number (`Image.convert`); docs/io.md
/// names the few that follow the PNG specification where Pillow does not.
enum class ImageMode {
  kUnchanged,  // as in the file: 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA) channels
  kGray,       // 1
  kRgb,        // 3
  kRgba,       // 4
};

/// A part of an image, in pixels.
struct ImageRegion {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;
};

struct ImageOptions {
  ImageMode mode = ImageMode::kRgb;
  /// Turn and mirror as the EXIF entry of a photograph says (Pillow's and torchvision's loaders do not).
  bool apply_exif = false;
  /// Only this part of the image, in the coordinates of the decoded image; the pixels are those that a crop of the
  /// whole would have. Much is never decoded.
  std::optional<ImageRegion> region = {};
  /// A JPEG may be decoded at a half, a quarter or an eighth of its size, as long as no side of what is decoded becomes
  /// smaller than this (Pillow's `draft`). 0: never. Only without a region.
  int64_t at_least = 0;
  /// An image that declares more pixels than this is refused before anything is allocated.
  int64_t max_pixels = 178'956'970;
  /// A file that ends too early gives the rows that are there (the rest is grey) in place of an Error.
  bool allow_truncated = false;
};

/// What the head of an image file says.
struct ImageInfo {
  /// The name of a codec (image_codec.h): "png", "jpeg", "webp".
  std::string_view format;
  int64_t height = 0;
  int64_t width = 0;
  /// In the file; 3 for a palette and for CMYK.
  int channels = 0;
  /// 1, 2, 4, 8, 12 or 16.
  int bit_depth = 8;
  /// EXIF's number, 1 (upright) to 8.
  int orientation = 1;
};

/// What decoding gives.
struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t bytes() const { return channels * height * width; }
};

struct EncodeOptions {
  /// The name of a codec that writes: "png", "jpeg".
  std::string_view format = "png";
  /// Of JPEG, 1 to 100.
  int quality = 95;
  /// Of PNG, 0 to 9.
  int compression = 6;
};

}  // namespace levin
