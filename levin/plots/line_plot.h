#pragma once

#include <optional>
#include <string>
#include <vector>

namespace levin {

/// A curve to be drawn (plots/line_picture.h): for what a run has to show once.
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

/// Round numbers that divide a range: about `count` of them, at 1, 2 or 5 times a power of ten.
std::vector<double> nice_ticks(double low, double high, int count);

/// The curve in one line of block characters, `width` of them, from the lowest value to the highest; blanks where there
/// is no value.
std::string sparkline(const std::vector<double>& values, int width);

}  // namespace levin
