#include "levin/core/error.h"
#include "levin/io/images/webp_codec.h"

namespace levin::detail {
namespace {

[[noreturn]] void fail_webp() {
  fail("[image] the bytes are WebP, and this build has no libwebp: install libwebp-dev and build again");
}

}  // namespace

bool has_webp() {
  return false;
}

ImageInfo webp_info(std::span<const std::byte>, bool, bool) {
  fail_webp();
}

void decode_webp(std::span<const std::byte>, const ImageInfo&, const CodecRequest&, uint8_t*) {
  fail_webp();
}

}  // namespace levin::detail
