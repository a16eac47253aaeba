#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/io/images/codec.h"
#include "levin/io/images/image_options.h"

/// Kinds of image files. Each describes itself in a file of its own (codec_png.cpp) and has a row in the table of
/// image_codec.cpp. Whoever wants to know what is an image asks the table.
namespace levin::detail {

/// An image file whose head has been read and checked. The bytes are the caller's.
class OpenImage {
 public:
  virtual ~OpenImage() = default;
  const ImageInfo& info() const { return info_; }
  /// An Error when the file is too short for its pixels, however well they are compressed.
  virtual void check_bytes() const {}
  /// Decodes into region.height rows of region.width * channels bytes.
  virtual void decode(const CodecRequest& request, uint8_t* out) const = 0;

 protected:
  ImageInfo info_;
};

struct ImageCodec {
  /// ImageInfo::format and EncodeOptions::format: "png".
  std::string_view name;
  /// For people: "PNG".
  std::string_view title;
  /// Ends of names, lower case, without the dot. Files get the first.
  std::vector<std::string_view> extensions;
  /// By the first bytes.
  bool (*matches)(std::span<const std::byte> file);
  /// Reads the head; `orientation`: what EXIF says of it as well.
  std::unique_ptr<OpenImage> (*open)(std::span<const std::byte> file, bool orientation);
  /// What may divide the sides while decoding so that none becomes smaller than `at_least`; null for a kind that is
  /// decoded in full size alone.
  int (*scale)(const ImageInfo& info, int64_t at_least) = nullptr;
  /// Bytes of a file with pixels [height, width, channels]; null for a kind that is only read.
  std::string (*encode)(const uint8_t* pixels, int64_t height, int64_t width, int channels,
                        const EncodeOptions& options) = nullptr;
  /// Whether files that are encoded may have an alpha channel.
  bool has_alpha = true;
  /// Whether this build reads them.
  bool (*available)() = [] { return true; };
};

template <class T>
std::unique_ptr<OpenImage> open_image_as(std::span<const std::byte> file, bool orientation) {
  return std::make_unique<T>(file, orientation);
}

ImageCodec jpeg_codec();
ImageCodec png_codec();
ImageCodec webp_codec();

const std::vector<ImageCodec>& image_codecs();
/// By what a file begins with; null when it is of none of them.
const ImageCodec* image_codec_of(std::span<const std::byte> file);
inline const ImageCodec* image_codec_of(std::string_view file) {
  return image_codec_of(std::as_bytes(std::span(file)));
}
/// The codec of that name ("png"); null when there is none.
const ImageCodec* find_image_codec(std::string_view name);
/// By the end of a file's name, in any case; null when it is no image that is decoded.
const ImageCodec* image_codec_by_path(std::string_view path);

/// "PNG, JPEG, WebP" and ".png, .jpg, .jpeg, .webp".
std::string image_titles(std::string_view between = ", ");
std::string image_extensions();
/// Names of the kinds that are written: "png", "jpeg".
std::vector<std::string> written_image_kinds();

/// The extension of an image by its first bytes, also of kinds that are not decoded ("gif", "bmp"); empty when they are
/// of none.
std::string_view image_extension(std::string_view bytes);
/// Whether a file of this name is an image that is not decoded.
bool is_undecoded_image(std::string_view path);

}  // namespace levin::detail
