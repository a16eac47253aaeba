// fuzz-sources: levin/io/images/webp.cpp levin/io/images/exif.cpp levin/core/error.cpp
// fuzz-seeds: tests/io/fixtures/webp/*.webp
// fuzz-libraries: -lwebp
// fuzz-needs: LEVIN_WEBP
//
// Besides taking any bytes: a region has the pixels of the whole.
#include <cstring>
#include <span>
#include <vector>

#include "fuzz.h"
#include "levin/io/images/webp_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace levin;
  constexpr int64_t kMostPixels = 1 << 16;
  const auto file = std::as_bytes(std::span(data, size));
  if (!detail::is_webp(file)) return 0;
  ImageInfo info;
  if (!fuzz::taken([&] { info = detail::webp_info(file, true, (size & 1) != 0); })) return 0;
  if (info.orientation < 1 || info.orientation > 8) fuzz::complain("no orientation");
  if (info.width * info.height > kMostPixels) return 0;
  detail::CodecRequest request{.channels = 4, .region = {0, 0, info.height, info.width}};
  std::vector<uint8_t> whole(static_cast<size_t>(info.height * info.width * 4));
  if (!fuzz::taken([&] { detail::decode_webp(file, info, request, whole.data()); })) {
    request.allow_truncated = true;
    fuzz::taken([&] { detail::decode_webp(file, info, request, whole.data()); });
    return 0;
  }
  auto& region = request.region;
  region = {info.height / 3, info.width / 3, info.height - info.height / 3, info.width - info.width / 3};
  std::vector<uint8_t> part(static_cast<size_t>(region.height * region.width * 4));
  if (!fuzz::taken([&] { detail::decode_webp(file, info, request, part.data()); }))
    fuzz::complain("a region is refused");
  for (int64_t y = 0; y < region.height; ++y) {
    const auto* row = &whole[static_cast<size_t>(((region.top + y) * info.width + region.left) * 4)];
    if (std::memcmp(row, &part[static_cast<size_t>(y * region.width * 4)], static_cast<size_t>(region.width * 4)) != 0)
      fuzz::complain("a region has other pixels");
  }
  return 0;
}
