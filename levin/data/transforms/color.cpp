#include "levin/data/transforms/color.h"

#include <cmath>

#include "levin/core/error.h"
#include "levin/data/transforms/color_detail.h"

namespace levin::transforms {
namespace detail {

at::Tensor apply_tables(const Pixels& in, const std::vector<ByteTable>& tables) {
  const int64_t colors = in.channels == 2 ? 1 : in.channels == 4 ? 3 : in.channels;
  at::Tensor result = new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  const auto table = [&](int64_t c) { return tables[tables.size() == 1 ? 0 : static_cast<size_t>(c)].data(); };
  for (int64_t y = 0; y < in.height; ++y, out += in.row_bytes()) {
    const uint8_t* from = in.row(y);
    if (colors == in.channels && tables.size() == 1) {
      const uint8_t* values = tables[0].data();
      for (int64_t i = 0; i < in.row_bytes(); ++i) out[i] = values[from[i]];
      continue;
    }
    for (int64_t c = 0; c < in.channels; ++c) {
      const uint8_t* values = c < colors ? table(c) : nullptr;
      for (int64_t i = c; i < in.row_bytes(); i += in.channels) out[i] = values ? values[from[i]] : from[i];
    }
  }
  return result;
}

int64_t color_channels(int64_t channels, const char* operation) {
  LEVIN_CHECK(channels >= 1 && channels <= 4, "[", operation, "] an image of ", channels,
              " channels; 1 (grey) and 3 (RGB) are known, and either with alpha");
  return channels <= 2 ? 1 : 3;
}

Blend::Blend(double factor) {
  const auto share = static_cast<float>(factor);
  for (int i = 0; i < 511; ++i) product_[static_cast<size_t>(i)] = share * static_cast<float>(i - 255);
}

at::Tensor blend_float(const at::Tensor& image, const at::Tensor& other, double factor) {
  return image.mul(factor).add_(other, 1 - factor).clamp_(0, 1);
}

}  // namespace detail

namespace {

void check_factor(double factor, const char* operation) {
  LEVIN_CHECK(factor >= 0, "[", operation, "] a factor of ", factor, " is below 0");
}

Tensor luma_float(const Tensor& image) {
  if (image.size(0) < 3) return image.slice(0, 0, 1);
  return image[0].mul(0.2989).add_(image[1], 0.587).add_(image[2], 0.114).unsqueeze_(0);
}

// The last of 2 or 4 channels goes around what is done to the others.
template <class F>
Tensor on_colors(const Tensor& image, int64_t colors, F&& change) {
  if (colors == image.size(0)) return change(image);
  return at::cat({change(image.slice(0, 0, colors)), image.slice(0, colors)}, 0);
}

// Pillow's HSV, in which each of the three is a byte.
class HueShift {
 public:
  explicit HueShift(double factor) : shift_(static_cast<uint8_t>(static_cast<int32_t>(factor * 255))) {
    for (int h = 0; h < 256; ++h) {
      const double sixth = static_cast<float>(h) * 6.0 / 255.0;
      sector_[static_cast<size_t>(h)] = static_cast<int>(sixth);
      rest_[static_cast<size_t>(h)] = static_cast<float>(sixth - static_cast<int>(sixth));
    }
  }

  void operator()(const uint8_t* in, uint8_t* out) const {
    const int r = in[0], g = in[1], b = in[2];
    const int high = std::max({r, g, b}), low = std::min({r, g, b});
    if (high == low) {  // no saturation: any hue is this grey
      out[0] = out[1] = out[2] = static_cast<uint8_t>(high);
      return;
    }
    const auto span = static_cast<float>(high - low);
    const float from_r = static_cast<float>(high - r) / span, from_g = static_cast<float>(high - g) / span,
                from_b = static_cast<float>(high - b) / span;
    float sixth = 0;
    if (r == high)
      sixth = from_b - from_g;
    else if (g == high)
      sixth = static_cast<float>(2.0 + from_r - from_b);
    else
      sixth = static_cast<float>(4.0 + from_g - from_r);
    double turn = sixth / 6.0 + 1.0;
    if (turn >= 1) turn -= 1;
    const auto hue = static_cast<uint8_t>(std::clamp(static_cast<int>(static_cast<float>(turn) * 255.0), 0, 255));
    const float saturated = span / static_cast<float>(high);
    const auto saturation = static_cast<uint8_t>(std::clamp(static_cast<int>(saturated * 255.0), 0, 255));
    back(static_cast<uint8_t>(hue + shift_), saturation, static_cast<uint8_t>(high), out);
  }

 private:
  static uint8_t rounded(double value) { return static_cast<uint8_t>(std::clamp(std::round(value), 0.0, 255.0)); }

  void back(uint8_t hue, uint8_t saturation, uint8_t value, uint8_t* out) const {
    if (saturation == 0) {
      out[0] = out[1] = out[2] = value;
      return;
    }
    const double rest = rest_[hue], part = static_cast<float>(saturation / 255.0), bright = value;
    const uint8_t p = rounded(bright * (1.0 - part));
    const uint8_t q = rounded(bright * (1.0 - part * rest));
    const uint8_t t = rounded(bright * (1.0 - part * (1.0 - rest)));
    const std::array<std::array<uint8_t, 3>, 6> colors = {
        {{value, t, p}, {q, value, p}, {p, value, t}, {p, q, value}, {t, p, value}, {value, p, q}}};
    const auto& color = colors[static_cast<size_t>(sector_[hue] % 6)];
    for (size_t c = 0; c < 3; ++c) out[c] = color[c];
  }

  uint8_t shift_;
  std::array<int, 256> sector_;
  std::array<float, 256> rest_;
};

Tensor hue_float(const Tensor& image, double factor) {
  const Tensor r = image[0], g = image[1];
  const auto [low, high] = at::aminmax(image, 0);
  const Tensor grey = high == low, one = at::ones_like(high), span = high - low;
  const Tensor saturation = span / at::where(grey, one, high);
  const Tensor from = (high.unsqueeze(0) - image) / at::where(grey, one, span).unsqueeze(0);
  const Tensor not_red = high != r, green = high == g;
  Tensor hue = (from[2] - from[1]) * not_red.logical_not() + (from[0] + 2.0 - from[2]) * green.logical_and(not_red) +
               (from[1] + 4.0 - from[0]) * not_red.logical_and(green.logical_not());
  hue = hue.mul_(1.0 / 6).add_(1).fmod_(1).add_(factor).remainder_(1).mul_(6);
  const Tensor sector = hue.floor(), rest = hue - sector, part = saturation * rest, without = 1 - saturation;
  const Tensor q = (1 - part).mul_(high).clamp_(0, 1), t = (part + without).mul_(high).clamp_(0, 1);
  const Tensor p = (without * high).clamp_(0, 1);
  const Tensor which = sector.to(at::kLong).remainder_(6);
  const Tensor select = at::tensor({0, 2, 1, 1, 3, 0, 3, 0, 0, 2, 1, 1, 1, 1, 3, 0, 0, 2}, at::kLong).view({3, 6});
  const Tensor index = select.index_select(1, which.flatten()).view({3, image.size(1), image.size(2)});
  return at::stack({high, p, q, t}).gather(0, index);
}

}  // namespace

Tensor adjust_brightness(const Tensor& image, double factor) {
  detail::check_image(image, "transforms.adjust_brightness");
  check_factor(factor, "transforms.adjust_brightness");
  const int64_t colors = detail::color_channels(image.size(0), "transforms.adjust_brightness");
  if (!detail::is_bytes(image))
    return on_colors(image, colors, [&](const Tensor& part) { return part.mul(factor).clamp_(0, 1); });
  const detail::Blend blend(factor);
  detail::ByteTable table;
  for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = blend(0, v);
  return detail::apply_tables(detail::Pixels(image, "transforms.adjust_brightness"), {table});
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  detail::check_image(image, "transforms.adjust_contrast");
  check_factor(factor, "transforms.adjust_contrast");
  const int64_t colors = detail::color_channels(image.size(0), "transforms.adjust_contrast");
  if (!detail::is_bytes(image))
    return on_colors(image, colors,
                     [&](const Tensor& part) { return detail::blend_float(part, luma_float(part).mean(), factor); });
  const detail::Pixels in(image, "transforms.adjust_contrast");
  int64_t sum = 0;
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* row = in.row(y);
    int64_t of_row = 0;
    if (colors == 3)
      for (int64_t x = 0; x < in.width; ++x) of_row += detail::luma(row + x * in.channels);
    else
      for (int64_t x = 0; x < in.width; ++x) of_row += row[x * in.channels];
    sum += of_row;
  }
  const auto count = static_cast<double>(std::max<int64_t>(in.height * in.width, 1));
  const auto mean = static_cast<int>(static_cast<double>(sum) / count + 0.5);
  const detail::Blend blend(factor);
  detail::ByteTable table;
  for (int v = 0; v < 256; ++v) table[static_cast<size_t>(v)] = blend(mean, v);
  return detail::apply_tables(in, {table});
}

Tensor adjust_saturation(const Tensor& image, double factor) {
  detail::check_image(image, "transforms.adjust_saturation");
  check_factor(factor, "transforms.adjust_saturation");
  const int64_t colors = detail::color_channels(image.size(0), "transforms.adjust_saturation");
  if (colors == 1) return image;
  if (!detail::is_bytes(image))
    return on_colors(image, colors,
                     [&](const Tensor& part) { return detail::blend_float(part, luma_float(part), factor); });
  const detail::Pixels in(image, "transforms.adjust_saturation");
  const detail::Blend blend(factor);
  Tensor result = detail::new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    for (int64_t x = 0; x < in.width; ++x, from += in.channels, out += in.channels) {
      const int grey = detail::luma(from);
      for (int c = 0; c < 3; ++c) out[c] = blend(grey, from[c]);
      if (in.channels == 4) out[3] = from[3];
    }
  }
  return result;
}

Tensor adjust_hue(const Tensor& image, double factor) {
  detail::check_image(image, "transforms.adjust_hue");
  LEVIN_CHECK(factor >= -0.5 && factor <= 0.5, "[transforms.adjust_hue] a factor of ", factor,
              " is not between -0.5 and 0.5");
  const int64_t colors = detail::color_channels(image.size(0), "transforms.adjust_hue");
  if (colors == 1 || image.numel() == 0) return image;
  if (!detail::is_bytes(image))
    return on_colors(image, colors, [&](const Tensor& part) { return hue_float(part, factor); });
  const detail::Pixels in(image, "transforms.adjust_hue");
  const HueShift shift(factor);
  Tensor result = detail::new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    for (int64_t x = 0; x < in.width; ++x, from += in.channels, out += in.channels) {
      shift(from, out);
      if (in.channels == 4) out[3] = from[3];
    }
  }
  return result;
}

Tensor to_grayscale(const Tensor& image, int64_t num_output_channels) {
  detail::check_image(image, "transforms.to_grayscale");
  LEVIN_CHECK(num_output_channels == 1 || num_output_channels == 3, "[transforms.to_grayscale] num_output_channels ",
              num_output_channels, " is not 1 or 3");
  const int64_t colors = detail::color_channels(image.size(0), "transforms.to_grayscale");
  if (!detail::is_bytes(image)) {
    const Tensor grey = luma_float(image);
    return num_output_channels == 1 ? grey : grey.expand({3, image.size(1), image.size(2)});
  }
  const detail::Pixels in(image, "transforms.to_grayscale");
  Tensor result = detail::new_pixels(num_output_channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    for (int64_t x = 0; x < in.width; ++x, from += in.channels, out += num_output_channels) {
      const auto grey = static_cast<uint8_t>(colors == 3 ? detail::luma(from) : from[0]);
      for (int64_t c = 0; c < num_output_channels; ++c) out[c] = grey;
    }
  }
  return result;
}

std::optional<Range> Jitter::range(double center) const {
  Range result = {low, high};
  if (by_one) {
    LEVIN_CHECK(low >= 0, "[transforms.ColorJitter] a single number must not be below 0, as ", low, " is");
    result = {center - low, center + low};
    if (center > 0) result.low = std::max(result.low, 0.0);
  }
  LEVIN_CHECK(
      result.low <= result.high && (center > 0 ? result.low >= 0 : result.low >= -0.5 && result.high <= 0.5),
      "[transforms.ColorJitter] from ", result.low, " to ", result.high,
      center > 0 ? " is not a range of factors, which are not below 0" : " is not a range between -0.5 and 0.5");
  if (result.low == center && result.high == center) return std::nullopt;
  return result;
}

Tensor ColorJitter::operator()(const Tensor& image, Random& random) const {
  std::array<int, 4> order = {0, 1, 2, 3};
  for (size_t i = 0; i < 3; ++i) std::swap(order[i], order[i + random.below(4 - i)]);
  const auto draw = [&](const Jitter& jitter, double center) -> std::optional<double> {
    const auto range = jitter.range(center);
    if (!range) return std::nullopt;
    return random.uniform(range->low, range->high);
  };
  const auto b = draw(brightness, 1), c = draw(contrast, 1), s = draw(saturation, 1), h = draw(hue, 0);
  Tensor result = image;
  for (const int which : order) {
    if (which == 0 && b) result = adjust_brightness(result, *b);
    if (which == 1 && c) result = adjust_contrast(result, *c);
    if (which == 2 && s) result = adjust_saturation(result, *s);
    if (which == 3 && h) result = adjust_hue(result, *h);
  }
  return result;
}

Tensor Grayscale::operator()(const Tensor& image, Random&) const {
  return to_grayscale(image, num_output_channels);
}

Tensor RandomGrayscale::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? to_grayscale(image, image.size(0)) : image;
}

}  // namespace levin::transforms
