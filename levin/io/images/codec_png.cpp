#include "levin/core/error.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/images/png_codec.h"

namespace levin::detail {
namespace {

class PngImage final : public OpenImage {
 public:
  PngImage(std::span<const std::byte> file, bool orientation) : file_(file), head_(png_head(file)) {
    info_ = {.format = "png",
             .height = head_.height,
             .width = head_.width,
             .channels = head_.channels(),
             .bit_depth = head_.depth,
             .orientation = orientation ? png_orientation(file) : 1};
  }
  void check_bytes() const override { check_png_bytes(file_, head_); }
  void decode(const CodecRequest& request, uint8_t* out) const override { decode_png(file_, head_, request, out); }

 private:
  std::span<const std::byte> file_;
  PngHead head_;
};

std::string encode_png_file(const uint8_t* pixels, int64_t height, int64_t width, int channels,
                            const EncodeOptions& options) {
  LEVIN_CHECK(channels <= 4, "[encode_image] a PNG has 1 to 4 channels, and the pixels have ", channels);
  LEVIN_CHECK(options.compression >= 0 && options.compression <= 9,
              "[encode_image] compression must be 0 to 9, and is ", options.compression);
  return encode_png(pixels, height, width, channels, options.compression);
}

}  // namespace

ImageCodec png_codec() {
  return {.name = "png",
          .title = "PNG",
          .extensions = {"png"},
          .matches = is_png,
          .open = open_image_as<PngImage>,
          .encode = encode_png_file};
}

}  // namespace levin::detail
