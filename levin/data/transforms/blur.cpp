#include "levin/data/transforms/blur.h"

#include <cmath>

#include "levin/core/error.h"
#include "levin/data/transforms/color_detail.h"

namespace levin::transforms {
namespace {

std::vector<float> gaussian_kernel(int64_t size, double sigma) {
  std::vector<double> weights(static_cast<size_t>(size));
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    const double x = static_cast<double>(2 * i - (size - 1)) / 2 / sigma;
    sum += weights[static_cast<size_t>(i)] = std::exp(-x * x / 2);
  }
  std::vector<float> result;
  for (const double weight : weights) result.push_back(static_cast<float>(weight / sum));
  return result;
}

int64_t mirrored(int64_t at, int64_t length) {
  return at < 0 ? -at : at >= length ? 2 * (length - 1) - at : at;
}

// Line by line: `lines` of `length` numbers, `step` apart; each new one is a mixture of whole lines.
void blur_lines(const float* in, float* out, int64_t lines, int64_t length, const std::vector<float>& kernel) {
  const auto half = static_cast<int64_t>(kernel.size() / 2);
  for (int64_t y = 0; y < lines; ++y, out += length) {
    std::fill(out, out + length, 0.0f);
    for (int64_t k = 0; k < static_cast<int64_t>(kernel.size()); ++k) {
      const float* line = in + mirrored(y + k - half, lines) * length;
      const float weight = kernel[static_cast<size_t>(k)];
      for (int64_t x = 0; x < length; ++x) out[x] += weight * line[x];
    }
  }
}

Tensor blur_bytes(const Tensor& image, const std::vector<float>& down, const std::vector<float>& across) {
  const detail::Pixels in(image, "transforms.gaussian_blur");
  const int64_t channels = in.channels, row = in.row_bytes(), half = static_cast<int64_t>(across.size() / 2);
  std::vector<float> wide(static_cast<size_t>((in.width + 2 * half) * channels));
  std::vector<float> rows(static_cast<size_t>(in.height * row)), sums(rows.size());
  for (int64_t y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    for (int64_t x = -half; x < in.width + half; ++x)
      for (int64_t c = 0; c < channels; ++c)
        wide[static_cast<size_t>((x + half) * channels + c)] = from[mirrored(x, in.width) * channels + c];
    float* to = rows.data() + y * row;
    for (int64_t k = 0; k < static_cast<int64_t>(across.size()); ++k) {
      const float* line = wide.data() + k * channels;
      const float weight = across[static_cast<size_t>(k)];
      for (int64_t x = 0; x < row; ++x) to[x] += weight * line[x];
    }
  }
  blur_lines(rows.data(), sums.data(), in.height, row, down);
  Tensor result = detail::new_pixels(channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < sums.size(); ++i) out[i] = static_cast<uint8_t>(std::nearbyint(sums[i]));
  return result;
}

// Nine pixels of which the one in the middle counts five times, thirteen in all. Pillow's rounding of that in single
// precision is never near a tie, so integers give the same.
int smooth(const uint8_t* above, const uint8_t* here, const uint8_t* below, int64_t step) {
  const int sum = above[-step] + above[0] + above[step] + here[-step] + 5 * here[0] + here[step] + below[-step] +
                  below[0] + below[step];
  return (2 * sum + 13) / 26;
}

// Every channel on its own.
Tensor convolve(const Tensor& images, const Tensor& kernel) {
  const std::array<int64_t, 2> one = {1, 1}, zero = {0, 0};
  return at::conv2d(images, kernel, std::nullopt, at::IntArrayRef(one), at::IntArrayRef(zero), at::IntArrayRef(one),
                    images.size(1));
}

Tensor sharpness_float(const Tensor& image, double factor) {
  const int64_t channels = image.size(0);
  Tensor kernel = at::full({channels, 1, 3, 3}, 1.0 / 13, image.options());
  kernel.slice(2, 1, 2).slice(3, 1, 2).fill_(5.0 / 13);
  Tensor result = image.clone();
  Tensor inside = result.slice(1, 1, -1).slice(2, 1, -1);
  Tensor soft = convolve(image.unsqueeze(0), kernel).squeeze(0);
  inside.add_(soft.sub_(inside), 1 - factor);
  return result.clamp_(0, 1);
}

}  // namespace

Tensor adjust_sharpness(const Tensor& image, double factor) {
  detail::check_image(image, "transforms.adjust_sharpness");
  LEVIN_CHECK(factor >= 0, "[transforms.adjust_sharpness] a factor of ", factor, " is below 0");
  const int64_t colors = detail::color_channels(image.size(0), "transforms.adjust_sharpness");
  if (image.size(1) < 3 || image.size(2) < 3) return image;
  if (!detail::is_bytes(image)) return sharpness_float(image, factor);
  const detail::Pixels in(image, "transforms.adjust_sharpness");
  const detail::Blend blend(factor);
  Tensor result = detail::new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < in.height; ++y, out += in.row_bytes()) {
    const uint8_t* row = in.row(y);
    std::copy(row, row + in.row_bytes(), out);
    if (y == 0 || y == in.height - 1) continue;
    for (int64_t x = 1; x < in.width - 1; ++x)
      for (int64_t c = 0; c < colors; ++c) {
        const int64_t at = x * in.channels + c;
        out[at] = blend(smooth(in.row(y - 1) + at, row + at, in.row(y + 1) + at, in.channels), row[at]);
      }
  }
  return result;
}

Tensor gaussian_blur(const Tensor& image, const Size& kernel_size, double sigma_x, double sigma_y) {
  detail::check_image(image, "transforms.gaussian_blur");
  LEVIN_CHECK(
      kernel_size.height > 0 && kernel_size.width > 0 && kernel_size.height % 2 == 1 && kernel_size.width % 2 == 1,
      "[transforms.gaussian_blur] a kernel of ", kernel_size.height, " x ", kernel_size.width, ": both must be odd");
  LEVIN_CHECK(sigma_x > 0 && sigma_y > 0, "[transforms.gaussian_blur] sigma must be above 0");
  LEVIN_CHECK(kernel_size.height / 2 < image.size(1) && kernel_size.width / 2 < image.size(2),
              "[transforms.gaussian_blur] a kernel of ", kernel_size.height, " x ", kernel_size.width,
              " is too large for an image of ", image.size(1), " x ", image.size(2));
  const auto down = gaussian_kernel(kernel_size.height, sigma_y), across = gaussian_kernel(kernel_size.width, sigma_x);
  if (detail::is_bytes(image)) return blur_bytes(image, down, across);
  const int64_t channels = image.size(0);
  const auto as_kernel = [&](const std::vector<float>& weights, std::array<int64_t, 4> shape) {
    return at::tensor(weights).to(image.scalar_type()).view(shape).expand({channels, 1, shape[2], shape[3]});
  };
  const int64_t y = kernel_size.height / 2, x = kernel_size.width / 2;
  const Tensor wide = at::reflection_pad2d(image.unsqueeze(0), {x, x, y, y});
  const Tensor rows = convolve(wide, as_kernel(across, {1, 1, 1, kernel_size.width}));
  return convolve(rows, as_kernel(down, {1, 1, kernel_size.height, 1})).squeeze(0);
}

Tensor GaussianBlur::operator()(const Tensor& image, Random& random) const {
  LEVIN_CHECK(sigma.low > 0 && sigma.low <= sigma.high, "[transforms.GaussianBlur] sigma is {low, high}, both above 0");
  const double drawn = random.uniform(sigma.low, sigma.high);
  return gaussian_blur(image, kernel_size, drawn, drawn);
}

Tensor RandomAdjustSharpness::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? adjust_sharpness(image, sharpness_factor) : image;
}

}  // namespace levin::transforms
