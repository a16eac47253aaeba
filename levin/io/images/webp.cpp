#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <webp/decode.h>

#include "levin/core/error.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/webp_codec.h"

namespace levin::detail {
namespace {

constexpr size_t kRiffHead = 12, kChunkHead = 8;

uint32_t little_32(std::span<const std::byte> file, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | std::to_integer<uint32_t>(file[at + i]);
  return value;
}

const uint8_t* data_of(std::span<const std::byte> file) {
  return reinterpret_cast<const uint8_t*>(file.data());
}

const char* reason_of(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return "there is not enough memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "a feature is not supported";
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the file ends too early";
    default:
      return "the data are damaged";
  }
}

/// From the EXIF chunk, wherever it stands; 1 when there is none.
int webp_orientation(std::span<const std::byte> file) {
  for (size_t at = kRiffHead; at + kChunkHead <= file.size();) {
    const size_t size = little_32(file, at + 4), rest = file.size() - at - kChunkHead;
    if (size > rest) return 1;
    if (std::memcmp(&file[at], "EXIF", 4) == 0) return exif_orientation(file.subspan(at + kChunkHead, size));
    at += kChunkHead + std::min(size + size % 2, rest);
  }
  return 1;
}

/// Decodes all of an image into pixels of 3 or 4 bytes; how many rows came.
int64_t decode_all(std::span<const std::byte> file, const ImageInfo& info, int channels, bool allow_truncated,
                   uint8_t* out) {
  WebPDecoderConfig config;
  LEVIN_CHECK(WebPInitDecoderConfig(&config) != 0, "[image] libwebp is of another version than its header");
  const auto stride = info.width * channels;
  config.output.colorspace = channels == 4 ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {out, static_cast<int>(stride), static_cast<size_t>(stride * info.height)};
  if (!allow_truncated) {
    const auto status = WebPDecode(data_of(file), file.size(), &config);
    LEVIN_CHECK(status == VP8_STATUS_OK, "[image] the WebP file cannot be decoded: ", reason_of(status));
    return info.height;
  }
  const std::unique_ptr<WebPIDecoder, void (*)(WebPIDecoder*)> decoder(WebPIDecode(nullptr, 0, &config), WebPIDelete);
  LEVIN_CHECK(decoder, "[image] the WebP file cannot be decoded: ", reason_of(VP8_STATUS_OUT_OF_MEMORY));
  const auto status = WebPIUpdate(decoder.get(), data_of(file), file.size());
  LEVIN_CHECK(status == VP8_STATUS_OK || status == VP8_STATUS_SUSPENDED,
              "[image] the WebP file cannot be decoded: ", reason_of(status));
  int rows = 0;
  if (!WebPIDecGetRGB(decoder.get(), &rows, nullptr, nullptr, nullptr)) rows = 0;
  return std::clamp<int64_t>(rows, 0, info.height);
}

}  // namespace

bool has_webp() {
  return true;
}

ImageInfo webp_info(std::span<const std::byte> file, bool orientation, bool allow_truncated) {
  const uint64_t declared = uint64_t{little_32(file, 4)} + kChunkHead;
  LEVIN_CHECK(allow_truncated || declared <= file.size(), "[image] the WebP file ends after ", file.size(), " of ",
              declared, " bytes");
  WebPBitstreamFeatures features;
  const auto status = WebPGetFeatures(data_of(file), file.size(), &features);
  LEVIN_CHECK(status == VP8_STATUS_OK, "[image] the WebP file has a bad head: ", reason_of(status));
  LEVIN_CHECK(features.has_animation == 0, "[image] the WebP file is an animation, which is not read");
  LEVIN_CHECK(features.width > 0 && features.height > 0, "[image] the WebP file declares no pixels");
  return {.format = "webp",
          .height = features.height,
          .width = features.width,
          .channels = features.has_alpha != 0 ? 4 : 3,
          .bit_depth = 8,
          .orientation = orientation ? webp_orientation(file) : 1};
}

void decode_webp(std::span<const std::byte> file, const ImageInfo& info, const CodecRequest& request, uint8_t* out) {
  const auto& region = request.region;
  const int channels = request.channels == 4 ? 4 : 3;
  const bool whole = region.height == info.height && region.width == info.width && request.channels == channels;
  // Colours are smoothed over the edges of a region, so that all is decoded.
  std::unique_ptr<uint8_t[]> all;
  if (!whole) all = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(info.height * info.width * channels));
  uint8_t* pixels = whole ? out : all.get();
  const int64_t rows = decode_all(file, info, channels, request.allow_truncated, pixels);
  const int64_t row_bytes = info.width * channels;
  std::memset(pixels + rows * row_bytes, kMissingPixel, static_cast<size_t>((info.height - rows) * row_bytes));
  if (whole) return;
  for (int64_t y = 0; y < region.height; ++y) {
    const uint8_t* from = pixels + (region.top + y) * row_bytes + region.left * channels;
    uint8_t* to = out + y * region.width * request.channels;
    if (request.channels == channels)
      std::memcpy(to, from, static_cast<size_t>(region.width * channels));
    else
      for (int64_t x = 0; x < region.width; ++x) to[x] = luma(from[3 * x], from[3 * x + 1], from[3 * x + 2]);
  }
}

}  // namespace levin::detail
