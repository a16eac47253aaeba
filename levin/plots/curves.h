#pragma once

#include <string>
#include <vector>

#include "levin/plots/drawing.h"

namespace levin {

/// A line in a picture. Points that are not finite are left out.
struct Curve {
  std::string name;
  std::vector<double> x, y;
};

/// Lines that share their axes.
struct CurvePanel {
  std::string title;
  std::string x_label;
  std::vector<Curve> curves;
};

/// Panels side by side, with one colour for each name. A panel without any finite point says "no data".
Drawing curves_picture(const std::string& title, const std::string& subtitle, const std::vector<CurvePanel>& panels);

/// Means of `window` neighbours each, so that a noisy curve can be read.
Curve smoothed(const Curve& curve, size_t window);

}  // namespace levin
