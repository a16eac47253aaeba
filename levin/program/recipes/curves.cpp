#include "levin/program/recipes/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "levin/plots/line_picture.h"
#include "levin/plots/line_plot.h"

namespace levin::cli {
namespace {

constexpr double kPanelWidth = 440, kPicturesHeight = 400, kPlotTop = 92, kPlotBottom = 340, kPlotLeft = 58;
constexpr double kPlotRight = kPanelWidth - 18;
constexpr double kCurveText = 12;
constexpr uint32_t kCurveInk = 0x18181b, kCurveGrid = 0xe4e4e7;
constexpr std::array<uint32_t, 4> kCurveColors{0x2563eb, 0xea580c, 0x16a34a, 0x9333ea};

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) { low = std::min(low, value), high = std::max(high, value); }
  void widen(double share) {
    if (low > high) low = 0, high = 1;
    const double margin = low == high ? std::max(0.5, std::abs(low) * 0.1) : (high - low) * share;
    low -= margin, high += margin;
  }
};

bool is_drawn(const Curve& curve, size_t i) {
  return std::isfinite(curve.x[i]) && std::isfinite(curve.y[i]);
}

void draw_panel(const CurvePanel& panel, double left, Drawing& drawing) {
  Extent xs, ys;
  for (const auto& curve : panel.curves)
    for (size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i)
      if (is_drawn(curve, i)) xs.add(curve.x[i]), ys.add(curve.y[i]);
  const bool empty = xs.low > xs.high;
  if (!(xs.low < xs.high)) xs.widen(0);
  ys.widen(0.05);
  const double from = left + kPlotLeft, to = left + kPlotRight;
  const auto px = [&](double x) { return from + (x - xs.low) / (xs.high - xs.low) * (to - from); };
  const auto py = [&](double y) { return kPlotBottom - (y - ys.low) / (ys.high - ys.low) * (kPlotBottom - kPlotTop); };

  drawing.text(from, kPlotTop - 12, panel.title, {.size = 13, .color = kCurveInk, .bold = true});
  drawing.text((from + to) / 2, kPlotBottom + 40, panel.x_label, {.size = kCurveText, .anchor = 0.5});
  if (!empty) {
    for (const double tick : nice_ticks(ys.low, ys.high, 6)) {
      drawing.line({{from, py(tick)}, {to, py(tick)}}, {.color = kCurveGrid});
      drawing.text(from - 7, py(tick) + 4, fmt::format("{:.4g}", std::abs(tick) < 1e-12 ? 0 : tick),
                   {.size = kCurveText, .anchor = 1});
    }
    for (const double tick : nice_ticks(xs.low, xs.high, 5)) {
      drawing.line({{px(tick), kPlotTop}, {px(tick), kPlotBottom}}, {.color = kCurveGrid});
      drawing.text(px(tick), kPlotBottom + 18, fmt::format("{:g}", tick), {.size = kCurveText, .anchor = 0.5});
    }
  }
  drawing.line({{from, kPlotTop}, {from, kPlotBottom}, {to, kPlotBottom}}, {});
  if (empty) return draw_no_data(drawing, from, kPlotTop, to, kPlotBottom);
  for (size_t c = 0; c < panel.curves.size(); ++c) {
    const auto& curve = panel.curves[c];
    const auto color = kCurveColors[c % kCurveColors.size()];
    const size_t count = std::min(curve.x.size(), curve.y.size());
    // A gap where there is no value.
    std::vector<Drawing::Point> piece;
    for (size_t i = 0; i <= count; ++i) {
      if (i < count && is_drawn(curve, i)) {
        piece.push_back({px(curve.x[i]), py(curve.y[i])});
        if (count <= 30) drawing.rect(piece.back().x - 3, piece.back().y - 3, 6, 6, color, 3);
      } else if (!piece.empty()) {
        drawing.line(std::exchange(piece, {}), {.color = color, .width = 2});
      }
    }
  }
}

}  // namespace

Drawing curves_picture(const std::string& title, const std::string& subtitle, const std::vector<CurvePanel>& panels) {
  const double width = kPanelWidth * static_cast<double>(std::max<size_t>(panels.size(), 1));
  Drawing drawing(width, kPicturesHeight);
  drawing.text(kPlotLeft, 28, title, {.size = 16, .color = kCurveInk, .bold = true});
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

}  // namespace levin::cli
