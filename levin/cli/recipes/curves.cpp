#include "levin/cli/recipes/curves.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "levin/core/line_plot.h"

namespace levin::cli {
namespace {

constexpr double kPanelWidth = 440, kPicturesHeight = 400, kPlotTop = 92, kPlotBottom = 340, kPlotLeft = 58;
constexpr double kPlotRight = kPanelWidth - 18;
constexpr std::array kCurveColors{"#2563eb", "#ea580c", "#16a34a", "#9333ea"};

constexpr auto kCurveStyle = R"(
  <style>
    text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #52525b }
    .title { font-size: 16px; font-weight: 600; fill: #18181b }
    .panel { font-size: 13px; font-weight: 600; fill: #18181b }
    .grid { stroke: #e4e4e7; stroke-width: 1 }
    .axis { stroke: #a1a1aa; stroke-width: 1; fill: none }
    .curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
  </style>
)";

std::string without_markup(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

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

void draw_panel(const CurvePanel& panel, double left, std::string& svg) {
  Extent xs, ys;
  for (const auto& curve : panel.curves)
    for (size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i)
      if (is_drawn(curve, i)) xs.add(curve.x[i]), ys.add(curve.y[i]);
  if (!(xs.low < xs.high)) xs.widen(0);
  ys.widen(0.05);
  const auto px = [&](double x) {
    return left + kPlotLeft + (x - xs.low) / (xs.high - xs.low) * (kPlotRight - kPlotLeft);
  };
  const auto py = [&](double y) { return kPlotBottom - (y - ys.low) / (ys.high - ys.low) * (kPlotBottom - kPlotTop); };

  svg += fmt::format("  <text class=\"panel\" x=\"{}\" y=\"{}\">{}</text>\n", left + kPlotLeft, kPlotTop - 12,
                     without_markup(panel.title));
  for (const double tick : nice_ticks(ys.low, ys.high, 6))
    svg += fmt::format(
        "  <path class=\"grid\" d=\"M{0} {1:.1f}H{2}\"/>\n"
        "  <text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        left + kPlotLeft, py(tick), left + kPlotRight, left + kPlotLeft - 7, py(tick) + 4,
        std::abs(tick) < 1e-12 ? 0 : tick);
  for (const double tick : nice_ticks(xs.low, xs.high, 5))
    svg += fmt::format(
        "  <path class=\"grid\" d=\"M{0:.1f} {1}V{2}\"/>\n"
        "  <text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        px(tick), kPlotTop, kPlotBottom, kPlotBottom + 18, tick);
  svg += fmt::format("  <path class=\"axis\" d=\"M{0} {1}V{2}H{3}\"/>\n", left + kPlotLeft, kPlotTop, kPlotBottom,
                     left + kPlotRight);
  svg += fmt::format("  <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     left + (kPlotLeft + kPlotRight) / 2, kPlotBottom + 40, without_markup(panel.x_label));
  for (size_t c = 0; c < panel.curves.size(); ++c) {
    const auto& curve = panel.curves[c];
    std::string path, dots;
    for (size_t i = 0; i < std::min(curve.x.size(), curve.y.size()); ++i) {
      if (!is_drawn(curve, i)) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(curve.x[i]), py(curve.y[i]));
      if (curve.x.size() <= 30)
        dots += fmt::format("  <circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", px(curve.x[i]),
                            py(curve.y[i]), kCurveColors[c % kCurveColors.size()]);
    }
    svg +=
        fmt::format("  <path class=\"curve\" stroke=\"{}\" d=\"{}\"/>\n", kCurveColors[c % kCurveColors.size()], path) +
        dots;
  }
}

}  // namespace

std::string curves_svg(const std::string& title, const std::string& subtitle, const std::vector<CurvePanel>& panels) {
  const double width = kPanelWidth * static_cast<double>(std::max<size_t>(panels.size(), 1));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">",
      width, kPicturesHeight);
  svg += kCurveStyle;
  svg += fmt::format("  <rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", width, kPicturesHeight);
  svg += fmt::format("  <text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", kPlotLeft, without_markup(title));
  svg += fmt::format("  <text x=\"{}\" y=\"48\">{}</text>\n", kPlotLeft, without_markup(subtitle));
  // The names once, at the right of the title.
  if (!panels.empty()) {
    double right = width - 18;
    const auto& curves = panels.front().curves;
    for (size_t c = curves.size(); c-- > 0;) {
      svg += fmt::format("  <text x=\"{:.1f}\" y=\"28\" text-anchor=\"end\">{}</text>\n", right,
                         without_markup(curves[c].name));
      right -= 7.0 * static_cast<double>(curves[c].name.size()) + 8;
      svg += fmt::format("  <path class=\"curve\" stroke=\"{}\" d=\"M{:.1f} 24h-22\"/>\n",
                         kCurveColors[c % kCurveColors.size()], right);
      right -= 46;
    }
  }
  for (size_t i = 0; i < panels.size(); ++i) draw_panel(panels[i], kPanelWidth * static_cast<double>(i), svg);
  return svg + "</svg>\n";
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
