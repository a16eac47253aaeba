#include "levin/plots/line_plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/plots/axes.h"

namespace levin {
namespace {

constexpr double kWidth = 760, kHeight = 440;
constexpr PlotField kField{.left = 78, .top = 84, .right = 736, .bottom = 380};

std::string decade_label(int exponent) {
  if (exponent >= -2 && exponent <= 3) return fmt::format("{:g}", std::pow(10.0, exponent));
  return fmt::format("1e{}", exponent);
}

void draw_x_ticks(const PlotAxis& x, bool log_x, Drawing& drawing) {
  const auto [low, high] = std::pair(x.range.low, x.range.high);
  if (log_x) {
    const int first = static_cast<int>(std::ceil(low - 1e-9)), last = static_cast<int>(std::floor(high + 1e-9));
    const int every = std::max(1, (last - first + 8) / 9);
    for (int exponent = first; exponent <= last; exponent += every)
      kField.x_tick(drawing, x.place(exponent), decade_label(exponent));
  } else {
    for (const double value : nice_ticks(low, high, 8)) kField.x_tick(drawing, x.place(value), tick_label(value));
  }
}

/// A word with a white edge, readable above a curve.
void draw_label(Drawing& drawing, double x, double y, const std::string& text, double anchor) {
  const double width = text_width(text, 13) * 1.1;
  drawing.rect(x - anchor * width - 3, y - 13, width + 6, 18, ink::kPaper, 3);
  drawing.text(x, y, text, {.color = ink::kRed, .bold = true, .anchor = anchor});
}

}  // namespace

Drawing picture_of(const LinePlot& plot) {
  LEVIN_CHECK(plot.x.size() == plot.y.size(), "[to_svg] the plot has ", plot.x.size(), " x and ", plot.y.size(), " y");
  LEVIN_CHECK(!plot.mark || *plot.mark < plot.x.size(), "[to_svg] point ", plot.mark.value_or(0),
              " is to be marked, there are ", plot.x.size());
  const auto value_x = [&](size_t i) { return plot.log_x ? std::log10(plot.x[i]) : plot.x[i]; };
  const auto is_drawn = [&](size_t i) { return std::isfinite(value_x(i)) && std::isfinite(plot.y[i]); };
  PlotRange xs, ys;
  for (size_t i = 0; i < plot.x.size(); ++i)
    if (is_drawn(i)) {
      xs.add(value_x(i));
      ys.add(plot.y[i]);
    }
  Drawing drawing(kWidth, kHeight);
  const auto [left, top, right, bottom, text_size] = kField;
  drawing.text(left, 28, plot.title, {.size = 16, .color = ink::kText, .bold = true});
  drawing.text(left, 48, plot.subtitle, {});
  drawing.text(left, top - 10, plot.y_label, {});
  drawing.text((left + right) / 2, kHeight - 12, plot.x_label, {.anchor = 0.5});
  if (xs.is_empty()) {
    kField.frame(drawing);
    kField.no_data(drawing);
    return drawing;
  }
  if (xs.low == xs.high) xs.low -= 0.5, xs.high += 0.5;
  ys.widen(0.06);
  const PlotAxis x{xs, left, right}, y{ys, bottom, top};
  for (const double tick : nice_ticks(ys.low, ys.high, 6)) kField.y_tick(drawing, y.place(tick), tick_label(tick));
  draw_x_ticks(x, plot.log_x, drawing);
  kField.frame(drawing);
  const auto point = [&](size_t i, Drawing::Point& at) {
    at = {x.place(value_x(i)), y.place(plot.y[i])};
    return is_drawn(i);
  };
  draw_curve(drawing, plot.x.size(), point, {.color = ink::kBlue, .width = 2});
  if (plot.mark && is_drawn(*plot.mark)) {
    const double at_x = x.place(value_x(*plot.mark)), at_y = y.place(plot.y[*plot.mark]);
    // On the right, where there is room for it.
    const bool on_the_left = at_x + 20 + 8 * static_cast<double>(plot.mark_label.size()) > right;
    drawing.line({{at_x, top}, {at_x, bottom}}, {.color = ink::kRed, .dashed = true});
    drawing.rect(at_x - 7, at_y - 7, 14, 14, ink::kPaper, 7);
    drawing.rect(at_x - 5, at_y - 5, 10, 10, ink::kRed, 5);
    if (!plot.mark_label.empty())
      draw_label(drawing, at_x + (on_the_left ? -12 : 12), std::max(at_y - 12, top + 14), plot.mark_label,
                 on_the_left ? 1 : 0);
  }
  return drawing;
}

std::string to_svg(const LinePlot& plot) {
  return to_svg(picture_of(plot));
}

}  // namespace levin
