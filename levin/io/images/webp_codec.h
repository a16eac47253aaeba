#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "levin/io/images/codec.h"
#include "levin/io/images/image_options.h"

/// WebP images, read by libwebp (webp.cpp; no_webp.cpp says that it is missing).
namespace levin::detail {

inline bool is_webp(std::span<const std::byte> file) {
  const std::string_view head(reinterpret_cast<const char*>(file.data()), file.size() < 12 ? 0 : 12);
  return head.starts_with("RIFF") && head.ends_with("WEBP");
}

/// Whether this build reads them.
bool has_webp();

/// Checks the head. Animations, and files that are shorter than they say, are an Error; with `allow_truncated` the
/// second are not.
ImageInfo webp_info(std::span<const std::byte> file, bool orientation, bool allow_truncated);

/// Decodes into region.height rows of region.width * channels bytes. The pixels of a region are those of the whole.
/// Alpha is left out of RGB and grey, as Pillow and torchvision do.
void decode_webp(std::span<const std::byte> file, const ImageInfo& info, const CodecRequest& request, uint8_t* out);

}  // namespace levin::detail
