#include "levin/io/images/image_codec.h"
#include "levin/io/images/webp_codec.h"

namespace levin::detail {
namespace {

class WebpImage final : public OpenImage {
 public:
  WebpImage(std::span<const std::byte> file, bool orientation) : file_(file) {
    info_ = webp_info(file, orientation, /*allow_truncated=*/true);
  }
  void check_bytes() const override { webp_info(file_, false, /*allow_truncated=*/false); }
  void decode(const CodecRequest& request, uint8_t* out) const override { decode_webp(file_, info_, request, out); }

 private:
  std::span<const std::byte> file_;
};

}  // namespace

ImageCodec webp_codec() {
  return {.name = "webp",
          .title = "WebP",
          .extensions = {"webp"},
          .matches = is_webp,
          .open = open_image_as<WebpImage>,
          .available = has_webp};
}

}  // namespace levin::detail
