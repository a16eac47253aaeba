#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace levin {

using at::Tensor;

/// The channels that pixels are wanted in. Conversions are Pillow's, number by number (`Image.convert`).
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
  /// "png" or "jpeg".
  std::string_view format;
  int64_t height = 0;
  int64_t width = 0;
  /// In the file; 3 for a palette.
  int channels = 0;
  /// 1, 2, 4, 8, 12 or 16.
  int bit_depth = 8;
  /// EXIF's number, 1 (upright) to 8.
  int orientation = 1;
};

/// Reads the head only. Bytes that are neither PNG nor JPEG, or a head that is cut off, are an Error; the name of the
/// file is for the caller to add (see read_image).
ImageInfo image_info(std::span<const std::byte> file);

/// uint8 [C, H, W], whose memory is [H, W, C] (a channels-last view: what decoders write and what convolutions like).
/// What the bytes are is told by the bytes, never by a name. May be called from many threads at once.
Tensor decode_image(std::span<const std::byte> file, const ImageOptions& options = {});

/// The same into memory that is already there: height * width * channels bytes, of the size that image_info, the region
/// and the mode give. The Error says so when it is of another size.
void decode_image_into(std::span<const std::byte> file, std::span<uint8_t> pixels, const ImageOptions& options = {});

/// Reads and decodes a file; every Error names it.
Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

struct EncodeOptions {
  /// "png" or "jpeg".
  std::string_view format = "png";
  /// Of JPEG, 1 to 100.
  int quality = 95;
  /// Of PNG, 0 to 9.
  int compression = 6;
};

/// The bytes of a file with these pixels: uint8 [C, H, W] of 1, 2 (PNG), 3 or 4 (PNG) channels, in any memory order.
std::string encode_image(const Tensor& pixels, const EncodeOptions& options = {});
/// Encodes by the name of the file (.png, .jpg, .jpeg) and writes it, whole or not at all.
void write_image(const std::filesystem::path& path, const Tensor& pixels, EncodeOptions options = {});

}  // namespace levin
