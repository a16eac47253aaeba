#include "levin/data/transforms/pixel_plan.h"

#include "levin/core/error.h"

namespace levin::transforms {

PixelPlan::PixelPlan(int64_t height, int64_t width)
    : height_(height),
      width_(width),
      region_{.height = height, .width = width},
      resized_height_(height),
      resized_width_(width) {}

void PixelPlan::crop(const ImageRegion& region, const Fill& fill) {
  const bool inside = region.top >= 0 && region.left >= 0 && region.top + region.height <= height_ &&
                      region.left + region.width <= width_;
  if (!inside) {
    // The fill is of bytes, and there is one for all borders.
    for (const int64_t channel : {0, 1, 2})
      if (bordered_ && fill_.of(channel) != fill.of(channel)) fits_ = false;
    if (floats_) fits_ = false;
    bordered_ = true;
    fill_ = fill;
  }
  // Mirroring comes last: a part of a mirrored image is the mirrored part from the other side.
  window_top_ += flip_y_ ? height_ - region.top - region.height : region.top;
  window_left_ += flip_x_ ? width_ - region.left - region.width : region.left;
  height_ = region.height;
  width_ = region.width;
}

void PixelPlan::resize(int64_t height, int64_t width, Interpolation interpolation) {
  if (height == height_ && width == width_) return;
  if (resized_ || bordered_ || floats_) fits_ = false;
  region_ = {region_.top + window_top_, region_.left + window_left_, height_, width_};
  window_top_ = window_left_ = 0;
  resized_height_ = height_ = height;
  resized_width_ = width_ = width;
  resized_ = true;
  bicubic_ = interpolation == Interpolation::kBicubic;
}

void PixelPlan::to_float() {
  if (floats_) return;
  floats_ = true;
  channels_last_ = false;
}

void PixelPlan::normalize(const std::vector<double>& mean, const std::vector<double>& std, bool channels_last) {
  if (normalized_) fits_ = false;
  if (!floats_) channels_last_ = channels_last;
  floats_ = normalized_ = true;
  mean_ = mean;
  std_ = std;
}

ImageRegion PixelPlan::region() const {
  if (resized_ || bordered_) return region_;
  return {region_.top + window_top_, region_.left + window_left_, height_, width_};
}

kernels::ResamplePlacement PixelPlan::placement(int orientation) const {
  const ImageRegion part = region();
  const bool whole = resized_ || bordered_;
  const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
  return {.height = number(part.height),
          .width = number(part.width),
          .resized_height = number(whole ? resized_height_ : part.height),
          .resized_width = number(whole ? resized_width_ : part.width),
          .window_top = number(whole ? window_top_ : 0),
          .window_left = number(whole ? window_left_ : 0),
          .flip_x = flip_x_,
          .flip_y = flip_y_,
          .orientation = orientation};
}

kernels::ResampleImages PixelPlan::options() const {
  return {.height = height_,
          .width = width_,
          .dtype = floats_ ? at::kFloat : at::kByte,
          .mean = mean_,
          .std = std_,
          .channels_last = channels_last_,
          .fill = fill_.values,
          .bicubic = bicubic_};
}

std::string unplanned_resize(const char* step, Interpolation interpolation, bool antialias) {
  if (antialias && (interpolation == Interpolation::kBilinear || interpolation == Interpolation::kBicubic)) return {};
  return levin::detail::concat(
      step, antialias ? " with an interpolation that is neither bilinear nor bicubic" : " without antialias");
}

}  // namespace levin::transforms
