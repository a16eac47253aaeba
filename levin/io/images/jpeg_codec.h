#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "levin/io/images/codec.h"
#include "levin/io/images/image_options.h"

namespace levin::detail {

bool is_jpeg(std::span<const std::byte> file);

/// Walks over the markers up to the first scan.
ImageInfo jpeg_info(std::span<const std::byte> file);

/// What divides the sides of an image of this size so that none becomes smaller than `at_least`: 1, 2, 4 or 8.
int jpeg_scale(const ImageInfo& info, int64_t at_least);

/// Decodes into region.height rows of region.width * channels bytes. The pixels of a region are those of the whole.
void decode_jpeg(std::span<const std::byte> file, const ImageInfo& info, const CodecRequest& request, uint8_t* out);

/// A JPEG file of pixels [height, width, channels], of 1 or 3 channels.
std::string encode_jpeg(const uint8_t* pixels, int64_t height, int64_t width, int channels, int quality);

}  // namespace levin::detail
