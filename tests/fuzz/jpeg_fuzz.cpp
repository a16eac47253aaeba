// fuzz-sources: levin/io/images/jpeg_*.cpp levin/io/images/exif.cpp levin/core/error.cpp
// fuzz-seeds: tests/io/fixtures/images/*.jpg
// fuzz-libraries: -ljpeg -lz
//
// Besides taking any bytes: a region has the pixels of the whole.
#include <cstring>
#include <vector>

#include <zlib.h>

#include "fuzz.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/jpeg_codec.h"

namespace {

using levin::detail::CodecRequest;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kMostPixels = 1 << 17;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace levin;
  const auto bytes = std::as_bytes(std::span(data, size));
  ImageInfo info;
  if (!fuzz::taken([&] { info = detail::jpeg_info(bytes); })) return 0;
  if (info.orientation < 1 || info.orientation > 8) fuzz::complain("no orientation");
  if (info.height * info.width > kMostPixels) return 0;

  const auto chance = crc32(0, data, static_cast<uInt>(size));
  CodecRequest request;
  request.channels = chance % 5 == 0 ? 1 : chance % 5 == 1 ? 4 : 3;
  request.allow_truncated = chance % 7 == 0;
  if (chance % 11 == 0) request.scale = 1 << chance / 11 % 4;
  const auto height = (info.height + request.scale - 1) / request.scale;
  const auto width = (info.width + request.scale - 1) / request.scale;
  request.region = {0, 0, height, width};
  Bytes whole(static_cast<size_t>(height * width * request.channels));
  if (!fuzz::taken([&] { detail::decode_jpeg(bytes, info, request, whole.data()); })) return 0;
  if (info.orientation != 1) {
    Bytes turned(whole.size());
    detail::turn_upright(whole.data(), height, width, request.channels, info.orientation, turned.data());
  }

  auto& region = request.region;
  region.top = (chance >> 4) % height;
  region.left = (chance >> 10) % width;
  region.height = 1 + (chance >> 16) % (height - region.top);
  region.width = 1 + (chance >> 22) % (width - region.left);
  Bytes part(static_cast<size_t>(region.height * region.width * request.channels));
  if (!fuzz::taken([&] { detail::decode_jpeg(bytes, info, request, part.data()); }))
    fuzz::complain("a region is refused");
  const auto row_bytes = static_cast<size_t>(region.width * request.channels);
  for (int64_t y = 0; y < region.height; ++y) {
    const auto* row = &whole[static_cast<size_t>(((region.top + y) * width + region.left) * request.channels)];
    if (std::memcmp(row, &part[static_cast<size_t>(y) * row_bytes], row_bytes) != 0) {
      fuzz::complain("a region has other pixels");
    }
  }
  return 0;
}
