#include "levin/data/transforms/crops.h"

#include <cmath>
#include <cstring>

#include "levin/core/error.h"
#include "levin/data/transforms/pixel_plan.h"
#include "levin/data/transforms/pixels.h"
#include "levin/data/transforms/resize.h"

namespace levin::transforms {
namespace {

// Where in a line of `length` a place before, in or after it takes its pixel from; -1 for the fill.
int64_t place_in_line(int64_t at, int64_t length, PaddingMode mode) {
  if (at >= 0 && at < length) return at;
  switch (mode) {
    case PaddingMode::kConstant:
      return -1;
    case PaddingMode::kEdge:
      return std::clamp<int64_t>(at, 0, length - 1);
    case PaddingMode::kReflect: {
      if (length == 1) return 0;
      const int64_t period = 2 * (length - 1), in_period = ((at % period) + period) % period;
      return in_period < length ? in_period : period - in_period;
    }
    case PaddingMode::kSymmetric: {
      const int64_t period = 2 * length, in_period = ((at % period) + period) % period;
      return in_period < length ? in_period : period - 1 - in_period;
    }
  }
  return -1;
}

std::vector<int64_t> places(int64_t before, int64_t length, int64_t after, PaddingMode mode) {
  std::vector<int64_t> result;
  result.reserve(static_cast<size_t>(std::max<int64_t>(before + length + after, 0)));
  for (int64_t at = -before; at < length + after; ++at) result.push_back(place_in_line(at, length, mode));
  return result;
}

Tensor pad_bytes(const Tensor& image, const Padding& padding, const Fill& fill, PaddingMode mode) {
  const detail::Pixels in(image, "transforms.pad");
  const auto columns = places(padding.left, in.width, padding.right, mode);
  const auto rows = places(padding.top, in.height, padding.bottom, mode);
  const auto width = static_cast<int64_t>(columns.size()), channels = in.channels;
  Tensor result = detail::new_pixels(channels, static_cast<int64_t>(rows.size()), width);
  std::vector<uint8_t> blank(static_cast<size_t>(width * channels));
  for (size_t i = 0; i < blank.size(); ++i)
    blank[i] = static_cast<uint8_t>(std::clamp(fill.of(static_cast<int64_t>(i) % channels), 0.0, 255.0));
  // The image itself lies side by side in every row.
  const int64_t skip = std::max<int64_t>(-padding.left, 0), begin = std::max<int64_t>(padding.left, 0);
  const int64_t inside = std::min(in.width - skip, width - begin);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (const int64_t row : rows) {
    if (row < 0) {
      std::memcpy(out, blank.data(), blank.size());
    } else {
      const uint8_t* from = in.row(row);
      for (int64_t x = 0; x < width; ++x) {
        if (x == begin && inside > 0) {
          std::memcpy(out + x * channels, from + skip * channels, static_cast<size_t>(inside * channels));
          x += inside - 1;
          continue;
        }
        const int64_t column = columns[static_cast<size_t>(x)];
        const uint8_t* pixel = column < 0 ? blank.data() : from + column * channels;
        for (int64_t c = 0; c < channels; ++c) out[x * channels + c] = pixel[c];
      }
    }
    out += width * channels;
  }
  return result;
}

Tensor pad_float(const Tensor& image, const Padding& padding, const Fill& fill, PaddingMode mode) {
  if (mode == PaddingMode::kConstant && fill.values.size() <= 1)
    return at::constant_pad_nd(image, {padding.left, padding.right, padding.top, padding.bottom}, fill.of(0));
  const auto rows = places(padding.top, image.size(1), padding.bottom, mode);
  const auto columns = places(padding.left, image.size(2), padding.right, mode);
  const auto as_index = [](std::vector<int64_t> line) {
    for (auto& place : line) place = std::max<int64_t>(place, 0);
    return at::tensor(line);
  };
  Tensor result = image.index_select(1, as_index(rows)).index_select(2, as_index(columns));
  if (mode == PaddingMode::kConstant) {
    const Tensor outside = at::constant_pad_nd(at::ones({image.size(1), image.size(2)}, at::kBool),
                                               {padding.left, padding.right, padding.top, padding.bottom}, 0)
                               .logical_not_();
    for (int64_t c = 0; c < image.size(0); ++c) result[c].masked_fill_(outside, fill.of(c));
  }
  return result;
}

Size square(const Size& size, const char* operation) {
  LEVIN_CHECK(size.height > 0 && size.width > 0, "[", operation, "] size ", size.height, " x ", size.width,
              ": both must be at least 1");
  return size;
}

int64_t half_to_even(double value) {
  return static_cast<int64_t>(std::nearbyint(value));
}

// A part of an image that has a border, which the part may reach into.
ImageRegion bordered_part(const RandomCrop& step, int64_t height, int64_t width, Random& random) {
  const Size to = square(step.size, "transforms.RandomCrop");
  Padding border = step.padding;
  if (step.pad_if_needed) {
    const int64_t missing_y = to.height - (height + border.top + border.bottom);
    const int64_t missing_x = to.width - (width + border.left + border.right);
    if (missing_y > 0) border.top += missing_y, border.bottom += missing_y;
    if (missing_x > 0) border.left += missing_x, border.right += missing_x;
  }
  const int64_t spare_y = height + border.top + border.bottom - to.height;
  const int64_t spare_x = width + border.left + border.right - to.width;
  LEVIN_CHECK(spare_y >= 0 && spare_x >= 0, "[transforms.RandomCrop] ", to.height, " x ", to.width,
              " is larger than the image with its border, ", to.height + spare_y, " x ", to.width + spare_x,
              "; pad_if_needed adds what is missing");
  const int64_t top = spare_y ? random.integer(0, spare_y) : 0, left = spare_x ? random.integer(0, spare_x) : 0;
  return {top - border.top, left - border.left, to.height, to.width};
}

}  // namespace

Tensor crop(const Tensor& image, const ImageRegion& region) {
  detail::check_image(image, "transforms.crop");
  LEVIN_CHECK(region.height > 0 && region.width > 0, "[transforms.crop] a part of ", region.height, " x ", region.width,
              ": both must be at least 1");
  const int64_t height = image.size(1), width = image.size(2);
  if (region.top >= 0 && region.left >= 0 && region.top + region.height <= height &&
      region.left + region.width <= width) {
    if (region.height == height && region.width == width) return image;
    return image.as_strided({image.size(0), region.height, region.width}, image.strides(),
                            image.storage_offset() + region.top * image.stride(1) + region.left * image.stride(2));
  }
  return pad(image, Padding(-region.left, -region.top, region.left + region.width - width,
                            region.top + region.height - height));
}

Tensor center_crop(const Tensor& image, int64_t height, int64_t width) {
  detail::check_image(image, "transforms.center_crop");
  const int64_t from_height = image.size(1), from_width = image.size(2);
  if (height > from_height || width > from_width) {
    const int64_t missing_x = std::max<int64_t>(width - from_width, 0);
    const int64_t missing_y = std::max<int64_t>(height - from_height, 0);
    const Tensor wide = pad(image, Padding(missing_x / 2, missing_y / 2, (missing_x + 1) / 2, (missing_y + 1) / 2));
    return center_crop(wide, height, width);
  }
  return crop(image, {half_to_even(static_cast<double>(from_height - height) / 2),
                      half_to_even(static_cast<double>(from_width - width) / 2), height, width});
}

Tensor pad(const Tensor& image, const Padding& padding, const Fill& fill, PaddingMode mode) {
  detail::check_image(image, "transforms.pad");
  const int64_t height = image.size(1) + padding.top + padding.bottom;
  const int64_t width = image.size(2) + padding.left + padding.right;
  LEVIN_CHECK(height > 0 && width > 0, "[transforms.pad] would leave ", height, " x ", width, " of the image");
  LEVIN_CHECK(fill.values.size() <= 1 || static_cast<int64_t>(fill.values.size()) == image.size(0),
              "[transforms.pad] fill has ", fill.values.size(), " values, the image ", image.size(0), " channels");
  if (padding.empty()) return image;
  return detail::is_bytes(image) ? pad_bytes(image, padding, fill, mode) : pad_float(image, padding, fill, mode);
}

Tensor CenterCrop::operator()(const Tensor& image, Random&) const {
  const Size to = square(size, "transforms.CenterCrop");
  return center_crop(image, to.height, to.width);
}

std::optional<ImageRegion> CenterCrop::crop(int64_t height, int64_t width, Random&) const {
  const Size to = square(size, "transforms.CenterCrop");
  if (to.height > height || to.width > width) return std::nullopt;
  return ImageRegion{half_to_even(static_cast<double>(height - to.height) / 2),
                     half_to_even(static_cast<double>(width - to.width) / 2), to.height, to.width};
}

void CenterCrop::plan(PixelPlan& plan, Random&) const {
  const Size to = square(size, "transforms.CenterCrop");
  // A smaller image stands in the middle; what is left over of an odd border is below and to the right.
  const auto begin = [](int64_t from, int64_t wanted) {
    return wanted > from ? -((wanted - from) / 2) : half_to_even(static_cast<double>(from - wanted) / 2);
  };
  plan.crop({begin(plan.height(), to.height), begin(plan.width(), to.width), to.height, to.width});
}

Tensor CenterCrop::after_crop(const Tensor& image, Random& random) const {
  return (*this)(image, random);
}

Tensor RandomCrop::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.RandomCrop");
  const int64_t height = image.size(1), width = image.size(2);
  if (const auto region = crop(height, width, random)) return transforms::crop(image, *region);
  const auto part = bordered_part(*this, height, width, random);
  // The border and the cut in one: only what stays is ever written.
  return pad(image, Padding(-part.left, -part.top, part.left + part.width - width, part.top + part.height - height),
             fill, padding_mode);
}

void RandomCrop::plan(PixelPlan& plan, Random& random) const {
  if (const auto region = crop(plan.height(), plan.width(), random))
    plan.crop(*region);
  else
    plan.crop(bordered_part(*this, plan.height(), plan.width(), random), fill);
}

std::string RandomCrop::unplanned() const {
  const bool borders = !padding.empty() || pad_if_needed;
  return borders && padding_mode != PaddingMode::kConstant ? "RandomCrop with a border that repeats the image" : "";
}

std::optional<ImageRegion> RandomCrop::crop(int64_t height, int64_t width, Random& random) const {
  const Size to = square(size, "transforms.RandomCrop");
  if (!padding.empty() || to.height > height || to.width > width) return std::nullopt;
  const int64_t top = height > to.height ? random.integer(0, height - to.height) : 0;
  const int64_t left = width > to.width ? random.integer(0, width - to.width) : 0;
  return ImageRegion{top, left, to.height, to.width};
}

Tensor RandomCrop::after_crop(const Tensor& image, Random& random) const {
  return (*this)(image, random);  // nothing is left to do, or to draw, for an image that is a part already
}

Tensor RandomResizedCrop::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.RandomResizedCrop");
  return after_crop(transforms::crop(image, *crop(image.size(1), image.size(2), random)), random);
}

std::optional<ImageRegion> RandomResizedCrop::crop(int64_t height, int64_t width, Random& random) const {
  LEVIN_CHECK(scale.low <= scale.high && ratio.low <= ratio.high && ratio.low > 0,
              "[transforms.RandomResizedCrop] scale and ratio are {low, high}, and a ratio is above 0");
  LEVIN_CHECK(height > 0 && width > 0, "[transforms.RandomResizedCrop] an image of ", height, " x ", width,
              " has no pixels");
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(scale.low, scale.high);
    const double aspect = std::exp(random.uniform(std::log(ratio.low), std::log(ratio.high)));
    const int64_t w = half_to_even(std::sqrt(target * aspect)), h = half_to_even(std::sqrt(target / aspect));
    if (w > 0 && w <= width && h > 0 && h <= height) {
      const int64_t top = random.integer(0, height - h);
      return ImageRegion{top, random.integer(0, width - w), h, w};
    }
  }
  const double proportion = static_cast<double>(width) / static_cast<double>(height);
  int64_t h = height, w = width;
  if (proportion < ratio.low) h = half_to_even(static_cast<double>(w) / ratio.low);
  if (proportion > ratio.high) w = half_to_even(static_cast<double>(h) * ratio.high);
  return ImageRegion{(height - h) / 2, (width - w) / 2, h, w};
}

Tensor RandomResizedCrop::after_crop(const Tensor& image, Random&) const {
  const Size to = square(size, "transforms.RandomResizedCrop");
  return resize(image, to.height, to.width, interpolation, antialias);
}

void RandomResizedCrop::plan(PixelPlan& plan, Random& random) const {
  const Size to = square(size, "transforms.RandomResizedCrop");
  plan.crop(*crop(plan.height(), plan.width(), random));
  plan.resize(to.height, to.width, interpolation);
}

std::string RandomResizedCrop::unplanned() const {
  return unplanned_resize("RandomResizedCrop", interpolation, antialias);
}

Tensor Pad::operator()(const Tensor& image, Random&) const {
  return pad(image, padding, fill, padding_mode);
}

}  // namespace levin::transforms
