#include "levin/data/transforms/tone.h"

#include "levin/core/error.h"
#include "levin/data/transforms/color_detail.h"
#include "levin/data/transforms/normalize.h"

namespace levin::transforms {
namespace {

template <class F>
detail::ByteTable byte_table(F&& value) {
  detail::ByteTable table;
  for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = static_cast<uint8_t>(value(v));
  return table;
}

using Histogram = std::array<int64_t, 256>;

std::vector<Histogram> histograms(const detail::Pixels& in) {
  std::vector<Histogram> result(static_cast<size_t>(in.channels), Histogram{});
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* row = in.row(y);
    for (int64_t x = 0; x < in.width; ++x)
      for (int64_t c = 0; c < in.channels; ++c) ++result[static_cast<size_t>(c)][*row++];
  }
  return result;
}

detail::ByteTable stretch_table(const Histogram& counts) {
  int low = 0, high = 255;
  while (low < 255 && !counts[static_cast<size_t>(low)]) ++low;
  while (high > 0 && !counts[static_cast<size_t>(high)]) --high;
  if (high <= low) return byte_table([](int v) { return v; });
  const double scale = 255.0 / (high - low), offset = -low * scale;
  return byte_table([&](int v) {
    volatile double scaled = v * scale;  // rounded on its own: joined with the sum it could be a byte more or less
    return std::clamp(static_cast<int>(scaled + offset), 0, 255);
  });
}

detail::ByteTable equal_table(const Histogram& counts) {
  int64_t sum = 0, last = 0, kinds = 0;
  for (const int64_t count : counts)
    if (count) sum += count, last = count, ++kinds;
  const int64_t step = (sum - last) / 255;
  if (kinds <= 1 || !step) return byte_table([](int v) { return v; });
  int64_t below = step / 2;
  return byte_table([&](int v) {
    const int64_t value = std::min<int64_t>(below / step, 255);
    below += counts[static_cast<size_t>(v)];
    return value;
  });
}

template <class F>
Tensor per_channel(const Tensor& image, const char* operation, F&& table_of) {
  const detail::Pixels in(image, operation);
  std::vector<detail::ByteTable> tables;
  for (const auto& counts : histograms(in)) tables.push_back(table_of(counts));
  return detail::apply_tables(in, tables);
}

}  // namespace

Tensor invert(const Tensor& image) {
  detail::check_image(image, "transforms.invert");
  if (!detail::is_bytes(image)) return 1 - image;
  return detail::apply_tables(detail::Pixels(image, "transforms.invert"), {byte_table([](int v) { return 255 - v; })});
}

Tensor posterize(const Tensor& image, int bits) {
  detail::check_image(image, "transforms.posterize");
  LEVIN_CHECK(bits >= 0 && bits <= 8, "[transforms.posterize] ", bits, " bits are not between 0 and 8");
  if (!detail::is_bytes(image)) {
    const double levels = 1 << bits;
    return image.mul(levels).floor_().clamp_(0, levels - 1).mul_(1 / levels);
  }
  const int mask = 0xff & ~((1 << (8 - bits)) - 1);
  return detail::apply_tables(detail::Pixels(image, "transforms.posterize"),
                              {byte_table([&](int v) { return v & mask; })});
}

Tensor solarize(const Tensor& image, double threshold) {
  detail::check_image(image, "transforms.solarize");
  if (!detail::is_bytes(image)) {
    LEVIN_CHECK(threshold <= 1, "[transforms.solarize] a threshold of ", threshold,
                " is above 1, the largest value of a floating point image");
    return at::where(image >= threshold, 1 - image, image);
  }
  return detail::apply_tables(detail::Pixels(image, "transforms.solarize"),
                              {byte_table([&](int v) { return v < threshold ? v : 255 - v; })});
}

Tensor autocontrast(const Tensor& image) {
  detail::check_image(image, "transforms.autocontrast");
  if (image.numel() == 0) return image;
  if (detail::is_bytes(image)) return per_channel(image, "transforms.autocontrast", stretch_table);
  Tensor low = image.amin({1, 2}, true), span = image.amax({1, 2}, true).sub_(low);
  const Tensor flat = span == 0;
  low.masked_fill_(flat, 0);
  span.masked_fill_(flat, 1);
  return image.sub(low).div_(span).clamp_(0, 1);
}

Tensor equalize(const Tensor& image) {
  detail::check_image(image, "transforms.equalize");
  if (image.numel() == 0) return image;
  if (detail::is_bytes(image)) return per_channel(image, "transforms.equalize", equal_table);
  return to_dtype(equalize(to_dtype(image, at::kByte, true)), image.scalar_type(), true);
}

Tensor RandomInvert::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? invert(image) : image;
}

Tensor RandomPosterize::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? posterize(image, bits) : image;
}

Tensor RandomSolarize::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? solarize(image, threshold) : image;
}

Tensor RandomAutocontrast::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? autocontrast(image) : image;
}

Tensor RandomEqualize::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? equalize(image) : image;
}

}  // namespace levin::transforms
