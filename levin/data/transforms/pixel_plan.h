#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/data/transforms/values.h"
#include "levin/io/images/image_options.h"
#include "levin/kernels/images/image_resample.h"

namespace levin::transforms {

/// What steps make of an image, worked out from its size alone: the same parts, sizes and random numbers as on pixels.
/// The pixels are then cut, resized, mirrored and normalized at once, on the device (kernels::resample_images).
class PixelPlan {
 public:
  /// Of an image of this size, upright.
  PixelPlan(int64_t height, int64_t width);

  /// What the steps so far make of it.
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }

  /// A part, which may reach beyond the image.
  void crop(const ImageRegion& region, const Fill& fill = 0);
  void resize(int64_t height, int64_t width, Interpolation interpolation);
  void flip_x() { flip_x_ = !flip_x_; }
  void flip_y() { flip_y_ = !flip_y_; }
  /// Bytes become float between 0 and 1.
  void to_float();
  void normalize(const std::vector<double>& mean, const std::vector<double>& std, bool channels_last);

  /// False when the steps are in an order that one pass cannot do (two resizes, one after a border or on floats).
  bool fits() const { return fits_; }
  /// The part of the upright image that is needed.
  ImageRegion region() const;
  /// What becomes of that part.
  kernels::ResamplePlacement placement(int orientation = 1) const;
  kernels::ResampleImages options() const;

 private:
  int64_t height_, width_;
  ImageRegion region_;  // what is resized
  int64_t resized_height_, resized_width_;
  int64_t window_top_ = 0, window_left_ = 0;  // in what was resized
  bool resized_ = false, bordered_ = false, floats_ = false, normalized_ = false, fits_ = true;
  bool flip_x_ = false, flip_y_ = false, bicubic_ = false, channels_last_ = true;
  Fill fill_ = 0;
  std::vector<double> mean_, std_;
};

/// Empty when resizing so can be planned, else why not.
std::string unplanned_resize(const char* step, Interpolation interpolation, bool antialias);

}  // namespace levin::transforms
