#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/line_plot.h"
#include "levin/core/words.h"
#include "levin/profilers/memory_timeline.h"

namespace levin {
namespace {

constexpr double kMemoryWidth = 860, kMemoryHeight = 440;
constexpr double kMemoryLeft = 78, kMemoryRight = 836, kMemoryTop = 84, kMemoryBottom = 386;

constexpr auto kMemoryStyle = R"(
  <style>
    text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #52525b }
    .title { font-size: 16px; font-weight: 600; fill: #18181b }
    .grid { stroke: #e4e4e7; stroke-width: 1 }
    .axis { stroke: #a1a1aa; stroke-width: 1; fill: none }
    .part { fill: #f4f4f5 }
    .measured { fill: none; stroke: #2563eb; stroke-width: 2; stroke-linejoin: round }
    .predicted { fill: none; stroke: #ea580c; stroke-width: 2; stroke-linejoin: round; stroke-dasharray: 5 4 }
  </style>
)";

/// Points of a curve: between two points of the step the most that was in use, at each the bytes in use.
struct MemoryCurve {
  std::vector<double> x, y;
};

MemoryCurve curve_of(const MemoryTimeline& timeline, double length) {
  MemoryCurve curve;
  const auto count = static_cast<double>(timeline.points.size());
  for (size_t i = 0; i < timeline.points.size(); ++i) {
    const double at = count > 1 ? static_cast<double>(i) / (count - 1) * length : 0;
    if (i > 0) {
      curve.x.push_back(at - 0.5 * length / (count - 1));
      curve.y.push_back(static_cast<double>(timeline.points[i].peak));
    }
    curve.x.push_back(at);
    curve.y.push_back(static_cast<double>(timeline.points[i].bytes));
  }
  return curve;
}

std::string escaped_xml(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

/// Where each part of the step begins, in points, and its end.
std::vector<std::pair<size_t, StepPart>> parts_of(const MemoryTimeline& timeline) {
  std::vector<std::pair<size_t, StepPart>> parts;
  for (size_t i = 0; i < timeline.points.size(); ++i)
    if (parts.empty() || timeline.points[i].part != parts.back().second) parts.emplace_back(i, timeline.points[i].part);
  return parts;
}

}  // namespace

std::string to_svg(const MemoryTimeline& measured, const MemoryTimeline* predicted, const std::string& title) {
  const double length = std::max<double>(1, static_cast<double>(measured.points.size()) - 1);
  const auto blue = curve_of(measured, length);
  const auto orange = predicted ? curve_of(*predicted, length) : MemoryCurve();
  double high = 1;
  for (const auto* curve : {&blue, &orange})
    for (const double y : curve->y) high = std::max(high, y);
  const double top = high * 1.08;
  const auto place_x = [&](double x) { return kMemoryLeft + x / length * (kMemoryRight - kMemoryLeft); };
  const auto place_y = [&](double y) { return kMemoryBottom - y / top * (kMemoryBottom - kMemoryTop); };

  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">)",
      kMemoryWidth, kMemoryHeight);
  svg += kMemoryStyle;
  svg += fmt::format("  <rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", kMemoryWidth, kMemoryHeight);
  svg += fmt::format("  <text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", kMemoryLeft, escaped_xml(title));
  svg += fmt::format(
      "  <line class=\"measured\" x1=\"{0}\" y1=\"48\" x2=\"{1}\" y2=\"48\"/><text x=\"{2}\" y=\"52.5\">"
      "{3} {4}</text>\n",
      kMemoryLeft, kMemoryLeft + 28, kMemoryLeft + 36, predicted ? "measured, peak" : "peak",
      format_bytes(static_cast<double>(measured.peak())));
  if (predicted)
    svg += fmt::format(
        "  <line class=\"predicted\" x1=\"{0}\" y1=\"48\" x2=\"{1}\" y2=\"48\"/><text x=\"{2}\" "
        "y=\"52.5\">predicted, peak {3}</text>\n",
        kMemoryLeft + 250, kMemoryLeft + 278, kMemoryLeft + 286, format_bytes(static_cast<double>(predicted->peak())));

  const auto parts = parts_of(measured);
  for (size_t i = 0; i < parts.size(); ++i) {
    const double from = place_x(static_cast<double>(parts[i].first));
    const double to = i + 1 < parts.size() ? place_x(static_cast<double>(parts[i + 1].first)) : kMemoryRight;
    if (i % 2 == 1)
      svg += fmt::format("  <rect class=\"part\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"/>\n", from,
                         kMemoryTop, to - from, kMemoryBottom - kMemoryTop);
    // A part too narrow for its name is named to its left, where the axis has room.
    const bool narrow = to - from < 90;
    svg += fmt::format("  <text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", narrow ? to : (from + to) / 2,
                       narrow ? kMemoryBottom + 38 : kMemoryBottom + 20, narrow ? "end" : "middle",
                       to_string(parts[i].second));
  }
  for (const double tick : nice_ticks(0, top, 6))
    svg += fmt::format(R"(  <line class="grid" x1="{0}" y1="{1:.1f}" x2="{2}" y2="{1:.1f}"/>)"
                       "\n"
                       R"(  <text x="{3}" y="{4:.1f}" text-anchor="end">{5}</text>)"
                       "\n",
                       kMemoryLeft, place_y(tick), kMemoryRight, kMemoryLeft - 8, place_y(tick) + 4.5,
                       format_bytes(std::abs(tick)));  // the first one is -0
  svg += fmt::format("  <path class=\"axis\" d=\"M{0} {1}V{2}H{3}\"/>\n", kMemoryLeft, kMemoryTop, kMemoryBottom,
                     kMemoryRight);
  const auto draw = [&](const MemoryCurve& curve, const char* style) {
    std::string path;
    for (size_t i = 0; i < curve.x.size(); ++i)
      path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", place_x(curve.x[i]), place_y(curve.y[i]));
    if (!path.empty()) svg += fmt::format("  <path class=\"{}\" d=\"{}\"/>\n", style, path);
  };
  draw(blue, "measured");
  if (predicted) draw(orange, "predicted");
  return svg + "</svg>\n";
}

}  // namespace levin
