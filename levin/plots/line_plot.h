#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/plots/drawing.h"

namespace levin {

/// A curve to be drawn: for what a run has to show once.
///
///     LinePlot plot{.title = "loss", .x_label = "learning rate", .y_label = "loss", .log_x = true, .x = lrs, .y = ys};
///     write_drawing("lr_find.svg", picture_of(plot));
struct LinePlot {
  std::string title = {};
  /// A smaller line below it.
  std::string subtitle = {};
  std::string x_label = {};
  std::string y_label = {};
  bool log_x = false;
  std::vector<double> x = {};
  /// Values that are not finite are left out.
  std::vector<double> y = {};
  /// The point to mark, by its index, and what is written beside it.
  std::optional<size_t> mark = {};
  std::string mark_label = {};
};

/// The plot as a drawing, for SVG and PNG alike. A plot without any finite point says "no data".
Drawing picture_of(const LinePlot& plot);
std::string to_svg(const LinePlot& plot);

}  // namespace levin
