#pragma once

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// A part of the image: a view of it, or a copy with zeros where the part lies outside.
Tensor crop(const Tensor& image, const ImageRegion& region);

/// The middle; zeros around an image that is smaller.
Tensor center_crop(const Tensor& image, int64_t height, int64_t width);

/// More border, or less where the padding is negative. Reflected and mirrored borders repeat when they are wider than
/// the image.
Tensor pad(const Tensor& image, const Padding& padding, const Fill& fill = 0,
           PaddingMode mode = PaddingMode::kConstant);

struct CenterCrop {
  Size size = {};
  void plan(PixelPlan& plan, Random& random) const;
  Tensor operator()(const Tensor& image, Random& random) const;
  std::optional<ImageRegion> crop(int64_t height, int64_t width, Random& random) const;
  Tensor after_crop(const Tensor& image, Random& random) const;
};

struct RandomCrop {
  Size size = {};
  Padding padding = {};
  bool pad_if_needed = false;
  Fill fill = 0;
  PaddingMode padding_mode = PaddingMode::kConstant;
  void plan(PixelPlan& plan, Random& random) const;
  std::string unplanned() const;
  Tensor operator()(const Tensor& image, Random& random) const;
  /// Nothing when a border must be added: that needs the whole image.
  std::optional<ImageRegion> crop(int64_t height, int64_t width, Random& random) const;
  Tensor after_crop(const Tensor& image, Random& random) const;
};

/// A part of random area and proportions, resized: ten tries, then the middle.
struct RandomResizedCrop {
  Size size = {};
  Range scale = {0.08, 1.0};
  Range ratio = {3.0 / 4.0, 4.0 / 3.0};
  Interpolation interpolation = Interpolation::kBilinear;
  bool antialias = true;
  void plan(PixelPlan& plan, Random& random) const;
  std::string unplanned() const;
  Tensor operator()(const Tensor& image, Random& random) const;
  std::optional<ImageRegion> crop(int64_t height, int64_t width, Random& random) const;
  Tensor after_crop(const Tensor& image, Random& random) const;
};

struct Pad {
  Padding padding = {};
  Fill fill = 0;
  PaddingMode padding_mode = PaddingMode::kConstant;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
