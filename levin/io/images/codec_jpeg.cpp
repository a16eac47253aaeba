#include "levin/core/error.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/images/jpeg_codec.h"

namespace levin::detail {
namespace {

class JpegImage final : public OpenImage {
 public:
  JpegImage(std::span<const std::byte> file, bool) : file_(file) { info_ = jpeg_info(file); }
  void decode(const CodecRequest& request, uint8_t* out) const override { decode_jpeg(file_, info_, request, out); }

 private:
  std::span<const std::byte> file_;
};

std::string encode_jpeg_file(const uint8_t* pixels, int64_t height, int64_t width, int channels,
                             const EncodeOptions& options) {
  LEVIN_CHECK(channels == 1 || channels == 3, "[encode_image] a JPEG has 1 or 3 channels, and the pixels have ",
              channels);
  LEVIN_CHECK(options.quality >= 1 && options.quality <= 100, "[encode_image] quality must be 1 to 100, and is ",
              options.quality);
  return encode_jpeg(pixels, height, width, channels, options.quality);
}

}  // namespace

ImageCodec jpeg_codec() {
  return {.name = "jpeg",
          .title = "JPEG",
          .extensions = {"jpg", "jpeg"},
          .matches = is_jpeg,
          .open = open_image_as<JpegImage>,
          .scale = jpeg_scale,
          .encode = encode_jpeg_file,
          .has_alpha = false};
}

}  // namespace levin::detail
