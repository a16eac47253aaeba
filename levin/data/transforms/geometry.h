#pragma once

#include <array>

#include "levin/data/transforms/transform.h"
#include "levin/data/transforms/values.h"

namespace levin::transforms {

/// A place in pixels, x to the right and y down from the upper left corner.
struct Point {
  double x = 0;
  double y = 0;
};

/// Turned clockwise by `angle`, scaled and sheared around the center, then moved. Degrees and pixels.
struct AffineOptions {
  double angle = 0;
  Point translate = {};
  double scale = 1;
  /// Degrees along x and y.
  Point shear = {};
  /// Nearest, bilinear, or bicubic (bytes only).
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = 0;
  /// The middle of the image, if not given.
  std::optional<Point> center = {};
};

struct RotateOptions {
  Interpolation interpolation = Interpolation::kNearest;
  /// Makes the image as large as what it turns into.
  bool expand = false;
  std::optional<Point> center = {};
  Fill fill = 0;
};

/// Bytes get Pillow's numbers (`Image.transform`, `Image.rotate`), floating point images those of torchvision's
/// tensors.
Tensor affine(const Tensor& image, const AffineOptions& options);
/// Counter-clockwise, in degrees.
Tensor rotate(const Tensor& image, double angle, const RotateOptions& options = {});

/// Upper left, upper right, lower right, lower left.
using Corners = std::array<Point, 4>;
/// What was at `from` comes to `to`.
Tensor perspective(const Tensor& image, const Corners& from, const Corners& to,
                   Interpolation interpolation = Interpolation::kBilinear, const Fill& fill = 0);

struct RandomRotation {
  /// `30` is from -30 to 30.
  Degrees degrees = {};
  Interpolation interpolation = Interpolation::kNearest;
  bool expand = false;
  std::optional<Point> center = {};
  Fill fill = 0;
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomAffine {
  Degrees degrees = {};
  /// At most this part of width and height, either way.
  std::optional<Point> translate = {};
  std::optional<Range> scale = {};
  /// Degrees along x, and along y when the second is given too.
  std::optional<Degrees> shear = {};
  std::optional<Degrees> shear_y = {};
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill = 0;
  std::optional<Point> center = {};
  Tensor operator()(const Tensor& image, Random& random) const;
};

struct RandomPerspective {
  /// How far corners move, 0 to 1.
  double distortion_scale = 0.5;
  double p = 0.5;
  Interpolation interpolation = Interpolation::kBilinear;
  Fill fill = 0;
  Tensor operator()(const Tensor& image, Random& random) const;
};

}  // namespace levin::transforms
