#include "levin/io/images/exif.h"

#include <cstring>
#include <optional>

namespace levin::detail {
namespace {

constexpr uint16_t kOrientationTag = 0x0112;

class ExifReader {
 public:
  explicit ExifReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void set_big_endian(bool big) { big_ = big; }
  std::optional<uint32_t> number(size_t at, size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return {};
    uint32_t value = 0;
    for (size_t i = 0; i < count; ++i)
      value = value << 8 | std::to_integer<uint32_t>(bytes_[at + (big_ ? i : count - 1 - i)]);
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_ = false;
};

constexpr bool exif_flips_rows(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

constexpr bool exif_flips_columns(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
}

template <int kChannels>
void copy_turned(const uint8_t* from, int64_t step_x, int64_t step_y, int64_t height, int64_t width, uint8_t* out) {
  for (int64_t y = 0; y < height; ++y, from += step_y) {
    const auto* pixel = from;
    for (int64_t x = 0; x < width; ++x, pixel += step_x, out += kChannels) std::memcpy(out, pixel, kChannels);
  }
}

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  if (exif.size() >= 6 && std::memcmp(exif.data(), "Exif\0\0", 6) == 0) exif = exif.subspan(6);
  if (exif.size() < 8) return 1;
  ExifReader reader(exif);
  if (std::memcmp(exif.data(), "MM\0*", 4) == 0) {
    reader.set_big_endian(true);
  } else if (std::memcmp(exif.data(), "II*\0", 4) != 0) {
    return 1;
  }
  const size_t table = *reader.number(4, 4);
  const auto entries = reader.number(table, 2);
  if (!entries) return 1;
  for (size_t i = 0; i < *entries; ++i) {
    const auto at = table + 2 + 12 * i;
    const auto tag = reader.number(at, 2);
    if (!tag) return 1;
    if (*tag != kOrientationTag) continue;
    const auto type = reader.number(at + 2, 2);  // 1: one byte, 3: two, 4: four
    const auto count = reader.number(at + 4, 4);
    if (!type || !count || *count != 1 || (*type != 1 && *type != 3 && *type != 4)) return 1;
    const auto value = reader.number(at + 8, *type == 1 ? 1 : *type == 3 ? 2 : 4);
    return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
  }
  return 1;
}

ImageRegion stored_region(const ImageRegion& upright, int orientation, int64_t height, int64_t width) {
  auto region = upright;
  if (swaps_sides(orientation)) {
    std::swap(region.top, region.left);
    std::swap(region.height, region.width);
  }
  if (exif_flips_rows(orientation)) region.top = height - region.top - region.height;
  if (exif_flips_columns(orientation)) region.left = width - region.left - region.width;
  return region;
}

void turn_upright(const uint8_t* stored, int64_t height, int64_t width, int channels, int orientation, uint8_t* out) {
  // Where the first upright pixel lies, and how far apart its neighbours are in the stored image.
  const auto stride = width * channels;
  const auto* from = stored;
  if (exif_flips_rows(orientation)) from += (height - 1) * stride;
  if (exif_flips_columns(orientation)) from += (width - 1) * channels;
  auto step_x = exif_flips_columns(orientation) ? int64_t{-channels} : int64_t{channels};
  auto step_y = exif_flips_rows(orientation) ? -stride : stride;
  if (swaps_sides(orientation)) {
    std::swap(step_x, step_y);
    std::swap(height, width);
  }
  switch (channels) {
    case 1:
      return copy_turned<1>(from, step_x, step_y, height, width, out);
    case 2:
      return copy_turned<2>(from, step_x, step_y, height, width, out);
    case 3:
      return copy_turned<3>(from, step_x, step_y, height, width, out);
    default:
      return copy_turned<4>(from, step_x, step_y, height, width, out);
  }
}

}  // namespace levin::detail
