#include <cstring>

#include "levin/core/error.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/jpeg_codec.h"

namespace levin::detail {
namespace {

unsigned jpeg_byte(std::span<const std::byte> file, size_t at) {
  LEVIN_CHECK(at < file.size(), "[image] the JPEG file ends within its head, after ", file.size(), " bytes");
  return std::to_integer<unsigned>(file[at]);
}

// Frames of any kind: baseline, progressive, arithmetic, lossless. Not DHT (c4), JPG (c8) and DAC (cc).
bool is_jpeg_frame(unsigned marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

// Markers that nothing follows: TEM, restarts, the start of an image.
bool stands_alone_in_jpeg(unsigned marker) {
  return marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8);
}

void read_jpeg_frame(std::span<const std::byte> data, ImageInfo& info) {
  LEVIN_CHECK(data.size() >= 6, "[image] the JPEG file's frame has ", data.size(), " bytes; it takes 6 at least");
  const auto byte = [&](size_t i) { return std::to_integer<int64_t>(data[i]); };
  const auto components = byte(5);
  info.bit_depth = static_cast<int>(byte(0));
  info.height = byte(1) << 8 | byte(2);
  info.width = byte(3) << 8 | byte(4);
  LEVIN_CHECK(info.height > 0 && info.width > 0, "[image] the JPEG file declares ", info.height, " x ", info.width,
              " pixels");
  LEVIN_CHECK(components == 1 || components == 3 || components == 4, "[image] the JPEG file has ", components,
              " components; 1, 3 and 4 can be read");
  info.channels = components == 1 ? 1 : 3;
}

}  // namespace

bool is_jpeg(std::span<const std::byte> file) {
  return file.size() >= 3 && std::memcmp(file.data(), "\xff\xd8\xff", 3) == 0;
}

ImageInfo jpeg_info(std::span<const std::byte> file) {
  LEVIN_CHECK(is_jpeg(file), "[image] the file is no JPEG");
  ImageInfo info{.format = "jpeg"};
  bool framed = false;
  bool exif = false;
  for (size_t at = 2;;) {
    while (jpeg_byte(file, at) != 0xff) ++at;  // junk between markers is passed over, as libjpeg does
    while (jpeg_byte(file, at) == 0xff) ++at;
    const auto marker = jpeg_byte(file, at++);
    if (marker == 0 || stands_alone_in_jpeg(marker)) continue;
    LEVIN_CHECK(marker != 0xd9, "[image] the JPEG file has no pixels");
    if (marker == 0xda) break;
    const size_t length = jpeg_byte(file, at) << 8 | jpeg_byte(file, at + 1);
    LEVIN_CHECK(length >= 2, "[image] the JPEG file has a marker ", marker, " of ", length, " bytes at byte ", at);
    LEVIN_CHECK(file.size() - at >= length, "[image] the JPEG file ends within its head, after ", file.size(),
                " bytes");
    const auto data = file.subspan(at + 2, length - 2);
    if (is_jpeg_frame(marker) && !framed) {
      read_jpeg_frame(data, info);
      framed = true;
    } else if (marker == 0xe1 && !exif && data.size() >= 6 && std::memcmp(data.data(), "Exif\0\0", 6) == 0) {
      info.orientation = exif_orientation(data);
      exif = true;
    }
    at += length;
  }
  LEVIN_CHECK(framed, "[image] the JPEG file has no frame before its first scan");
  return info;
}

int jpeg_scale(const ImageInfo& info, int64_t at_least) {
  if (at_least <= 0) return 1;
  const auto fits = std::min(info.width / at_least, info.height / at_least);
  return fits >= 8 ? 8 : fits >= 4 ? 4 : fits >= 2 ? 2 : 1;
}

}  // namespace levin::detail
