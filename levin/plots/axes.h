#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "levin/plots/drawing.h"

/// What pictures with axes share: ranges, ticks, the frame, curves, and one set of colours.
namespace levin {

namespace ink {
inline constexpr uint32_t kText = 0x18181b, kGrid = 0xe4e4e7, kShade = 0xf4f4f5, kPaper = 0xffffff;
inline constexpr uint32_t kBlue = 0x2563eb, kOrange = 0xea580c, kGreen = 0x16a34a, kPurple = 0x9333ea, kRed = 0xdc2626;
}  // namespace ink

/// The smallest and the largest of the values added; empty at first.
struct PlotRange {
  double low, high;

  PlotRange();
  void add(double value);
  bool is_empty() const { return low > high; }
  /// By a fraction of itself at both ends. One value gets room around it, and an empty range becomes 0 to 1.
  void widen(double fraction);
};

/// From values to places in a picture.
struct PlotAxis {
  PlotRange range;
  double from, to;

  double place(double value) const { return from + (value - range.low) / (range.high - range.low) * (to - from); }
};

/// Round numbers that divide a range: about `count` of them, at 1, 2 or 5 times a power of ten.
std::vector<double> nice_ticks(double low, double high, int count);
/// "0", "0.25", "2e+06": a number beside an axis.
std::string tick_label(double value);

/// The field in which curves are drawn: ticks, then the frame, then what is shown.
struct PlotField {
  double left, top, right, bottom;
  double text_size = 13;

  /// A line across, with its label at the left; a line up, with its label below.
  void y_tick(Drawing& drawing, double y, const std::string& label) const;
  void x_tick(Drawing& drawing, double x, const std::string& label) const;
  /// The left and the lower edge.
  void frame(Drawing& drawing) const;
  /// Where there is nothing to draw: "no data", in the middle.
  void no_data(Drawing& drawing) const;
};

/// Draws points 0 to count as one line, with a gap where `point` says false.
void draw_curve(Drawing& drawing, size_t count, const std::function<bool(size_t i, Drawing::Point& at)>& point,
                const Drawing::LineStyle& style);

}  // namespace levin
