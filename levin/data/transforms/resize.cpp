#include "levin/data/transforms/resize.h"

#include <cmath>

#include "levin/core/error.h"
#include "levin/data/transforms/pixel_plan.h"
#include "levin/data/transforms/pixels.h"

namespace levin::transforms {
namespace {

std::optional<detail::ResampleFilter> filter_of(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::kBox:
      return detail::ResampleFilter::kBox;
    case Interpolation::kBilinear:
      return detail::ResampleFilter::kBilinear;
    case Interpolation::kHamming:
      return detail::ResampleFilter::kHamming;
    case Interpolation::kBicubic:
      return detail::ResampleFilter::kBicubic;
    case Interpolation::kLanczos:
      return detail::ResampleFilter::kLanczos;
    case Interpolation::kNearest:
    case Interpolation::kNearestExact:
      return std::nullopt;
  }
  return std::nullopt;
}

Tensor resize_bytes(const Tensor& image, int64_t height, int64_t width, Interpolation interpolation) {
  const auto filter = filter_of(interpolation);
  const bool alpha = filter && detail::has_alpha(image.size(0));
  const detail::Pixels in(alpha ? detail::with_alpha_in(image, "transforms.resize") : image, "transforms.resize");
  Tensor result = detail::new_pixels(in.channels, height, width);
  auto* out = result.mutable_data_ptr<uint8_t>();
  if (filter)
    detail::resample(in, out, height, width, *filter);
  else
    detail::resample_nearest(in, out, height, width);
  if (alpha) detail::take_alpha_out(result);
  return result;
}

Tensor resize_float(const Tensor& image, int64_t height, int64_t width, Interpolation interpolation, bool antialias) {
  const Tensor batch = image.unsqueeze(0);
  const std::array<int64_t, 2> size = {height, width};
  switch (interpolation) {
    case Interpolation::kNearest:
      return at::upsample_nearest2d(batch, size).squeeze(0);
    case Interpolation::kNearestExact:
      return at::_upsample_nearest_exact2d(batch, size).squeeze(0);
    case Interpolation::kBilinear:
      return (antialias ? at::_upsample_bilinear2d_aa(batch, size, false) : at::upsample_bilinear2d(batch, size, false))
          .squeeze(0);
    case Interpolation::kBicubic:
      return (antialias ? at::_upsample_bicubic2d_aa(batch, size, false) : at::upsample_bicubic2d(batch, size, false))
          .squeeze(0);
    case Interpolation::kBox:
    case Interpolation::kHamming:
    case Interpolation::kLanczos:
      break;
  }
  levin::detail::fail(
      "[transforms.resize] box, hamming and lanczos are for images of uint8; others know nearest, nearest-exact, "
      "bilinear and bicubic");
}

}  // namespace

Tensor resize(const Tensor& image, int64_t height, int64_t width, Interpolation interpolation, bool antialias) {
  detail::check_image(image, "transforms.resize");
  LEVIN_CHECK(height > 0 && width > 0, "[transforms.resize] to ", height, " x ", width, ": both must be at least 1");
  if (height == image.size(1) && width == image.size(2)) return image;
  LEVIN_CHECK(image.numel() > 0, "[transforms.resize] the image is empty: ", image.sizes());
  if (!detail::is_bytes(image)) return resize_float(image, height, width, interpolation, antialias);
  if (antialias || (interpolation != Interpolation::kBilinear && interpolation != Interpolation::kBicubic))
    return resize_bytes(image, height, width, interpolation);
  return resize_float(image.to(at::kFloat), height, width, interpolation, false).clamp_(0, 255).round_().to(at::kByte);
}

Size resized_size(int64_t height, int64_t width, const Size& size, int64_t max_size) {
  LEVIN_CHECK(height > 0 && width > 0, "[transforms.Resize] an image of ", height, " x ", width, " has no pixels");
  if (!size.is_one && size.height > 0) {
    LEVIN_CHECK(!max_size, "[transforms.Resize] max_size goes with one number for size, not with {", size.height, ", ",
                size.width, "}");
    return size;
  }
  const int64_t shorter = std::min(height, width), longer = std::max(height, width);
  int64_t new_shorter = size.height, new_longer = max_size;
  // Divided in floating point, as Python's `/` does.
  const auto part = [](int64_t a, int64_t b, int64_t c) {
    return static_cast<int64_t>(static_cast<double>(a * b) / static_cast<double>(c));
  };
  if (size.height <= 0) {
    LEVIN_CHECK(max_size > 0, "[transforms.Resize] needs a size or a max_size");
    new_shorter = part(max_size, shorter, longer);
  } else {
    LEVIN_CHECK(!max_size || max_size > size.height, "[transforms.Resize] max_size ", max_size,
                " must be larger than size ", size.height);
    new_longer = part(new_shorter, longer, shorter);
    if (max_size && new_longer > max_size) {
      new_shorter = part(max_size, new_shorter, new_longer);
      new_longer = max_size;
    }
  }
  return width <= height ? Size(new_longer, new_shorter) : Size(new_shorter, new_longer);
}

Tensor Resize::operator()(const Tensor& image, Random&) const {
  detail::check_image(image, "transforms.Resize");
  const Size to = resized_size(image.size(1), image.size(2), size, max_size);
  return resize(image, to.height, to.width, interpolation, antialias);
}

void Resize::plan(PixelPlan& plan, Random&) const {
  const Size to = resized_size(plan.height(), plan.width(), size, max_size);
  LEVIN_CHECK(to.height > 0 && to.width > 0, "[transforms.resize] to ", to.height, " x ", to.width,
              ": both must be at least 1");
  plan.resize(to.height, to.width, interpolation);
}

std::string Resize::unplanned() const {
  return unplanned_resize("Resize", interpolation, antialias);
}

}  // namespace levin::transforms
