#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/io/codec.h"
#include "levin/io/images/image_options.h"

/// Kinds of image files: image.cpp has the one table of them, and whoever wants to know what is an image asks it.
namespace levin::detail {

/// An image file whose head has been read and checked. The bytes are the caller's.
class OpenImage {
 public:
  virtual ~OpenImage() = default;
  const ImageInfo& info() const { return info_; }
  /// What may divide the sides so that none becomes smaller than `at_least`.
  virtual int scale(int64_t /*at_least*/) const { return 1; }
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
  bool (*matches)(std::span<const std::byte> file);
  /// Reads the head; `orientation`: what EXIF says of it as well.
  std::unique_ptr<OpenImage> (*open)(std::span<const std::byte> file, bool orientation);
  /// Bytes of a file with pixels [height, width, channels]; null for a kind that is only read.
  std::string (*encode)(const uint8_t* pixels, int64_t height, int64_t width, int channels,
                        const EncodeOptions& options);
};

const std::vector<ImageCodec>& image_codecs();
/// By what a file begins with; null when it is of none of them.
const ImageCodec* image_codec_of(std::span<const std::byte> file);
inline const ImageCodec* image_codec_of(std::string_view file) {
  return image_codec_of(std::as_bytes(std::span(file)));
}
/// By the end of a file's name, in any case.
const ImageCodec* image_codec_by_name(std::string_view name);
/// "PNG, JPEG, WebP" and ".png, .jpg, .jpeg, .webp".
std::string image_titles(std::string_view between = ", ");
std::string image_extensions();

}  // namespace levin::detail
