#include "levin/data/transforms/erasing.h"

#include <cmath>

#include "levin/core/error.h"
#include "levin/data/transforms/pixels.h"

namespace levin::transforms {

Tensor erase(const Tensor& image, const ImageRegion& region, const Tensor& value) {
  detail::check_image(image, "transforms.erase");
  Tensor result = image.clone();
  result.slice(1, region.top, region.top + region.height)
      .slice(2, region.left, region.left + region.width)
      .copy_(value.expand({image.size(0), region.height, region.width}));
  return result;
}

std::optional<ImageRegion> erased_region(int64_t height, int64_t width, const Range& scale, const Range& ratio,
                                         Random& random) {
  LEVIN_CHECK(scale.low >= 0 && scale.high <= 1 && scale.low <= scale.high && ratio.low > 0 && ratio.low <= ratio.high,
              "[transforms.RandomErasing] scale is {low, high} between 0 and 1, ratio {low, high} above 0");
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(scale.low, scale.high);
    const double aspect = std::exp(random.uniform(std::log(ratio.low), std::log(ratio.high)));
    const auto h = static_cast<int64_t>(std::nearbyint(std::sqrt(target * aspect)));
    const auto w = static_cast<int64_t>(std::nearbyint(std::sqrt(target / aspect)));
    if (h >= height || w >= width) continue;
    const int64_t top = random.integer(0, height - h);
    return ImageRegion{top, random.integer(0, width - w), h, w};
  }
  return std::nullopt;
}

Tensor RandomErasing::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.RandomErasing");
  const int64_t channels = image.size(0);
  LEVIN_CHECK(value.values.size() <= 1 || static_cast<int64_t>(value.values.size()) == channels,
              "[transforms.RandomErasing] value has ", value.values.size(), " numbers, the image ", channels,
              " channels");
  if (!random.chance(p)) return image;
  const auto region = erased_region(image.size(1), image.size(2), scale, ratio, random);
  if (!region) return image;
  Tensor numbers;
  if (random_value) {
    numbers = at::empty({channels, region->height, region->width}, at::kFloat);
    auto* data = numbers.mutable_data_ptr<float>();
    for (int64_t i = 0; i < numbers.numel(); ++i) data[i] = static_cast<float>(random.normal());
  } else {
    numbers = at::empty({channels, 1, 1}, at::kFloat);
    for (int64_t c = 0; c < channels; ++c) numbers.mutable_data_ptr<float>()[c] = static_cast<float>(value.of(c));
  }
  return erase(image, *region, numbers);
}

}  // namespace levin::transforms
