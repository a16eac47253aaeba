#include <algorithm>

#include <fmt/format.h>

#include "levin/core/words.h"
#include "levin/plots/axes.h"
#include "levin/profilers/memory_timeline.h"

namespace levin {
namespace {

constexpr double kMemoryWidth = 860, kMemoryHeight = 440;
constexpr PlotField kMemoryField{.left = 78, .top = 84, .right = 836, .bottom = 386};
constexpr uint32_t kMemoryFill = 0xdbeafe;

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

/// Where each part of the step begins, in points, and its end.
std::vector<std::pair<size_t, StepPart>> parts_of(const MemoryTimeline& timeline) {
  std::vector<std::pair<size_t, StepPart>> parts;
  for (size_t i = 0; i < timeline.points.size(); ++i)
    if (parts.empty() || timeline.points[i].part != parts.back().second) parts.emplace_back(i, timeline.points[i].part);
  return parts;
}

}  // namespace

Drawing picture_of(const MemoryTimeline& measured, const MemoryTimeline* predicted, const std::string& title) {
  const double length = std::max<double>(1, static_cast<double>(measured.points.size()) - 1);
  const auto blue = curve_of(measured, length);
  const auto orange = predicted ? curve_of(*predicted, length) : MemoryCurve();
  double high = 1;
  for (const auto* curve : {&blue, &orange})
    for (const double y : curve->y) high = std::max(high, y);
  const double top = high * 1.08;
  const auto& field = kMemoryField;
  const auto place_x = [&](double x) { return field.left + x / length * (field.right - field.left); };
  const auto place_y = [&](double y) { return field.bottom - y / top * (field.bottom - field.top); };
  const auto points_of = [&](const MemoryCurve& curve) {
    std::vector<Drawing::Point> points;
    for (size_t i = 0; i < curve.x.size(); ++i) points.push_back({place_x(curve.x[i]), place_y(curve.y[i])});
    return points;
  };

  Drawing drawing(kMemoryWidth, kMemoryHeight);
  drawing.text(field.left, 30, title, {.size = 16, .color = ink::kText, .bold = true});
  double legend = field.left;
  const auto explain = [&](const std::string& text, const Drawing::LineStyle& style) {
    drawing.line({{legend, 52}, {legend + 28, 52}}, style);
    drawing.text(legend + 36, 56.5, text, {});
    legend += 36 + text_width(text, 13) + 28;
  };
  const Drawing::LineStyle measured_line{.color = ink::kBlue, .width = 2};
  const Drawing::LineStyle predicted_line{.color = ink::kOrange, .width = 2, .dashed = true};
  const auto peak_text = [](const char* name, const MemoryTimeline& timeline) {
    return fmt::format("{}peak {}", name, format_bytes(static_cast<double>(timeline.peak())));
  };
  explain(peak_text(predicted ? "measured, " : "", measured), measured_line);
  if (predicted) explain(peak_text("predicted, ", *predicted), predicted_line);

  const auto parts = parts_of(measured);
  for (size_t i = 0; i < parts.size(); ++i) {
    const double from = place_x(static_cast<double>(parts[i].first));
    const double to = i + 1 < parts.size() ? place_x(static_cast<double>(parts[i + 1].first)) : field.right;
    if (i % 2 == 1) drawing.rect(from, field.top, to - from, field.bottom - field.top, ink::kShade);
    const std::string name = to_string(parts[i].second);
    // A last part too narrow for its name is named to its left, one line below; others are told by their shades.
    if (to - from > text_width(name, 13) + 10)
      drawing.text((from + to) / 2, field.bottom + 20, name, {.anchor = 0.5});
    else if (i + 1 == parts.size())
      drawing.text(to, field.bottom + 38, name, {.anchor = 1});
  }
  drawing.area(points_of(blue), field.bottom, kMemoryFill);
  for (const double tick : nice_ticks(0, top, 6)) field.y_tick(drawing, place_y(tick), format_bytes(tick));
  field.frame(drawing);
  drawing.line(points_of(blue), measured_line);
  if (predicted) drawing.line(points_of(orange), predicted_line);
  return drawing;
}

std::string to_svg(const MemoryTimeline& measured, const MemoryTimeline* predicted, const std::string& title) {
  return to_svg(picture_of(measured, predicted, title));
}

}  // namespace levin
