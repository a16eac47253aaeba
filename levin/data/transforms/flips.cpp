#include "levin/data/transforms/flips.h"

#include <cstring>

#include "levin/data/transforms/pixel_plan.h"
#include "levin/data/transforms/pixels.h"

namespace levin::transforms {
namespace {

template <int64_t kChannels>
void mirror_row(const uint8_t* in, uint8_t* out, int64_t width, int64_t channels) {
  const int64_t step = kChannels ? kChannels : channels;
  const uint8_t* from = in + (width - 1) * step;
  for (int64_t x = 0; x < width; ++x, from -= step, out += step)
    for (int64_t c = 0; c < step; ++c) out[c] = from[c];
}

}  // namespace

Tensor horizontal_flip(const Tensor& image) {
  detail::check_image(image, "transforms.horizontal_flip");
  if (!detail::is_bytes(image)) return image.flip(2);
  const detail::Pixels in(image, "transforms.horizontal_flip");
  Tensor result = detail::new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  const auto mirror = in.channels == 3 ? mirror_row<3> : in.channels == 1 ? mirror_row<1> : mirror_row<0>;
  for (int64_t y = 0; y < in.height; ++y) mirror(in.row(y), out + y * in.row_bytes(), in.width, in.channels);
  return result;
}

Tensor vertical_flip(const Tensor& image) {
  detail::check_image(image, "transforms.vertical_flip");
  if (!detail::is_bytes(image)) return image.flip(1);
  const detail::Pixels in(image, "transforms.vertical_flip");
  Tensor result = detail::new_pixels(in.channels, in.height, in.width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < in.height; ++y)
    std::memcpy(out + y * in.row_bytes(), in.row(in.height - 1 - y), static_cast<size_t>(in.row_bytes()));
  return result;
}

Tensor RandomHorizontalFlip::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? horizontal_flip(image) : image;
}

Tensor RandomVerticalFlip::operator()(const Tensor& image, Random& random) const {
  return random.chance(p) ? vertical_flip(image) : image;
}

void RandomHorizontalFlip::plan(PixelPlan& plan, Random& random) const {
  if (random.chance(p)) plan.flip_x();
}

void RandomVerticalFlip::plan(PixelPlan& plan, Random& random) const {
  if (random.chance(p)) plan.flip_y();
}

}  // namespace levin::transforms
