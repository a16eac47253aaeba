#include "levin/plots/curves.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "levin/plots/axes.h"

namespace levin {
namespace {

constexpr double kPanelWidth = 440, kPicturesHeight = 400, kPlotTop = 92, kPlotBottom = 340, kPlotLeft = 58;
constexpr double kPlotRight = kPanelWidth - 18;
constexpr double kCurveText = 12;
constexpr std::array<uint32_t, 4> kCurveColors{ink::kBlue, ink::kOrange, ink::kGreen, ink::kPurple};

bool is_drawn(const Curve& curve, size_t i) {
  return std::isfinite(curve.x[i]) && std::isfinite(curve.y[i]);
}

void draw_panel(const CurvePanel& panel, double left, Drawing& drawing) {
  PlotRange xs, ys;
  for (const auto& curve : panel.curves)
    for (size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i)
      if (is_drawn(curve, i)) xs.add(curve.x[i]), ys.add(curve.y[i]);
  const bool empty = xs.is_empty();
  if (!(xs.low < xs.high)) xs.widen(0);
  ys.widen(0.05);
  const PlotField field{left + kPlotLeft, kPlotTop, left + kPlotRight, kPlotBottom, kCurveText};
  const PlotAxis x{xs, field.left, field.right}, y{ys, field.bottom, field.top};

  drawing.text(field.left, field.top - 12, panel.title, {.size = 13, .color = ink::kText, .bold = true});
  drawing.text((field.left + field.right) / 2, field.bottom + 40, panel.x_label, {.size = kCurveText, .anchor = 0.5});
  if (!empty) {
    for (const double tick : nice_ticks(ys.low, ys.high, 6)) field.y_tick(drawing, y.place(tick), tick_label(tick));
    for (const double tick : nice_ticks(xs.low, xs.high, 5))
      field.x_tick(drawing, x.place(tick), fmt::format("{:g}", tick));
  }
  field.frame(drawing);
  if (empty) return field.no_data(drawing);
  for (size_t c = 0; c < panel.curves.size(); ++c) {
    const auto& curve = panel.curves[c];
    const auto color = kCurveColors[c % kCurveColors.size()];
    const size_t count = std::min(curve.x.size(), curve.y.size());
    const auto point = [&](size_t i, Drawing::Point& at) {
      if (!is_drawn(curve, i)) return false;
      at = {x.place(curve.x[i]), y.place(curve.y[i])};
      if (count <= 30) drawing.rect(at.x - 3, at.y - 3, 6, 6, color, 3);
      return true;
    };
    draw_curve(drawing, count, point, {.color = color, .width = 2});
  }
}

}  // namespace

Drawing curves_picture(const std::string& title, const std::string& subtitle, const std::vector<CurvePanel>& panels) {
  const double width = kPanelWidth * static_cast<double>(std::max<size_t>(panels.size(), 1));
  Drawing drawing(width, kPicturesHeight);
  drawing.text(kPlotLeft, 28, title, {.size = 16, .color = ink::kText, .bold = true});
  drawing.text(kPlotLeft, 48, subtitle, {.size = kCurveText});
  // The names once, at the right of the title.
  if (!panels.empty()) {
    double right = width - 18;
    const auto& curves = panels.front().curves;
    for (size_t c = curves.size(); c-- > 0;) {
      drawing.text(right, 28, curves[c].name, {.size = kCurveText, .anchor = 1});
      right -= std::max(text_width(curves[c].name, kCurveText), 7.0 * static_cast<double>(curves[c].name.size())) + 8;
      drawing.line({{right, 24}, {right - 22, 24}}, {.color = kCurveColors[c % kCurveColors.size()], .width = 2});
      right -= 46;
    }
  }
  for (size_t i = 0; i < panels.size(); ++i) draw_panel(panels[i], kPanelWidth * static_cast<double>(i), drawing);
  return drawing;
}

Curve smoothed(const Curve& curve, size_t window) {
  Curve out{curve.name, {}, {}};
  window = std::max<size_t>(window, 1);
  for (size_t begin = 0; begin < curve.x.size(); begin += window) {
    const size_t end = std::min(begin + window, curve.x.size());
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) x += curve.x[i], y += curve.y[i];
    out.x.push_back(x / static_cast<double>(end - begin));
    out.y.push_back(y / static_cast<double>(end - begin));
  }
  return out;
}

}  // namespace levin
