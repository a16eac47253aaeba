#include "levin/plots/axes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace levin {

PlotRange::PlotRange() : low(std::numeric_limits<double>::infinity()), high(-low) {}

void PlotRange::add(double value) {
  low = std::min(low, value);
  high = std::max(high, value);
}

void PlotRange::widen(double fraction) {
  if (is_empty()) low = 0, high = 1;
  const double margin = low == high ? std::max(0.5, std::abs(low) * 0.1) : (high - low) * fraction;
  low -= margin;
  high += margin;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  if (!(high > low) || count < 1) return {low};
  const double rough = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (rough <= factor * power * (1 + 1e-9)) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  // ceil gives -0 just below 0, which would be written so; + 0.0 makes it 0.
  for (double i = std::ceil(low / step - 1e-9) + 0.0; i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string tick_label(double value) {
  const double size = std::abs(value);
  if (value == 0) return "0";
  return size >= 1e5 || size < 1e-3 ? fmt::format("{:.0e}", value) : fmt::format("{:.4g}", value);
}

void PlotField::y_tick(Drawing& drawing, double y, const std::string& label) const {
  drawing.line({{left, y}, {right, y}}, {.color = ink::kGrid});
  drawing.text(left - 8, y + 4.5, label, {.size = text_size, .anchor = 1});
}

void PlotField::x_tick(Drawing& drawing, double x, const std::string& label) const {
  drawing.line({{x, top}, {x, bottom}}, {.color = ink::kGrid});
  drawing.text(x, bottom + 20, label, {.size = text_size, .anchor = 0.5});
}

void PlotField::frame(Drawing& drawing) const {
  drawing.line({{left, top}, {left, bottom}, {right, bottom}}, {});
}

void PlotField::no_data(Drawing& drawing) const {
  drawing.text((left + right) / 2, (top + bottom) / 2 + 5, "no data", {.size = 15, .color = 0x71717a, .anchor = 0.5});
}

void draw_curve(Drawing& drawing, size_t count, const std::function<bool(size_t i, Drawing::Point& at)>& point,
                const Drawing::LineStyle& style) {
  std::vector<Drawing::Point> piece;
  for (size_t i = 0; i <= count; ++i) {
    Drawing::Point at;
    if (i < count && point(i, at))
      piece.push_back(at);
    else if (!piece.empty())
      drawing.line(std::exchange(piece, {}), style);
  }
}

}  // namespace levin
