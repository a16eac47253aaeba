#include "levin/plots/line_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin {
namespace {

constexpr double kWidth = 760, kHeight = 440;
constexpr double kLeft = 78, kRight = 736, kTop = 84, kBottom = 380;
constexpr uint32_t kInk = 0x18181b, kGrid = 0xe4e4e7, kCurve = 0x2563eb, kMark = 0xdc2626, kPaper = 0xffffff;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// From values to places in the picture.
struct Axis {
  double low, high, from, to;
  double place(double value) const { return from + (value - low) / (high - low) * (to - from); }
};

std::string number(double value) {
  if (value == 0) return "0";
  const double size = std::abs(value);
  return size >= 1e5 || size < 1e-3 ? fmt::format("{:.0e}", value) : fmt::format("{:.4g}", value);
}

std::string decade(int exponent) {
  if (exponent >= -2 && exponent <= 3) return fmt::format("{:g}", std::pow(10.0, exponent));
  return fmt::format("1e{}", exponent);
}

void draw_x_axis(const LinePlot& plot, const Axis& x, Drawing& drawing) {
  const auto tick = [&](double at, const std::string& label) {
    drawing.line({{x.place(at), kTop}, {x.place(at), kBottom}}, {.color = kGrid});
    drawing.text(x.place(at), kBottom + 20, label, {.anchor = 0.5});
  };
  if (plot.log_x) {
    const int first = static_cast<int>(std::ceil(x.low - 1e-9)), last = static_cast<int>(std::floor(x.high + 1e-9));
    const int every = std::max(1, (last - first + 8) / 9);
    for (int exponent = first; exponent <= last; exponent += every) tick(exponent, decade(exponent));
  } else {
    for (const double value : nice_ticks(x.low, x.high, 8)) tick(value, number(value));
  }
}

/// A word with a white edge, readable above a curve.
void draw_label(Drawing& drawing, double x, double y, const std::string& text, double anchor) {
  const double width = text_width(text, 13) * 1.1;
  drawing.rect(x - anchor * width - 3, y - 13, width + 6, 18, kPaper, 3);
  drawing.text(x, y, text, {.color = kMark, .bold = true, .anchor = anchor});
}

}  // namespace

void draw_no_data(Drawing& drawing, double left, double top, double right, double bottom) {
  drawing.text((left + right) / 2, (top + bottom) / 2 + 5, "no data", {.size = 15, .color = 0x71717a, .anchor = 0.5});
}

Drawing picture_of(const LinePlot& plot) {
  LEVIN_CHECK(plot.x.size() == plot.y.size(), "[to_svg] the plot has ", plot.x.size(), " x and ", plot.y.size(), " y");
  LEVIN_CHECK(!plot.mark || *plot.mark < plot.x.size(), "[to_svg] point ", plot.mark.value_or(0),
              " is to be marked, there are ", plot.x.size());
  const auto value_x = [&](size_t i) { return plot.log_x ? std::log10(plot.x[i]) : plot.x[i]; };
  const auto is_drawn = [&](size_t i) { return std::isfinite(value_x(i)) && std::isfinite(plot.y[i]); };
  Range xs, ys;
  for (size_t i = 0; i < plot.x.size(); ++i)
    if (is_drawn(i)) {
      xs.add(value_x(i));
      ys.add(plot.y[i]);
    }
  Drawing drawing(kWidth, kHeight);
  drawing.text(kLeft, 28, plot.title, {.size = 16, .color = kInk, .bold = true});
  drawing.text(kLeft, 48, plot.subtitle, {});
  drawing.text(kLeft, kTop - 10, plot.y_label, {});
  drawing.text((kLeft + kRight) / 2, kHeight - 12, plot.x_label, {.anchor = 0.5});
  const auto frame = [&] { drawing.line({{kLeft, kTop}, {kLeft, kBottom}, {kRight, kBottom}}, {}); };
  if (xs.low > xs.high) {
    frame();
    draw_no_data(drawing, kLeft, kTop, kRight, kBottom);
    return drawing;
  }
  if (xs.low == xs.high) xs = {xs.low - 0.5, xs.high + 0.5};
  const double margin = ys.low == ys.high ? std::max(0.5, std::abs(ys.low) * 0.1) : (ys.high - ys.low) * 0.06;
  const Axis x{xs.low, xs.high, kLeft, kRight}, y{ys.low - margin, ys.high + margin, kBottom, kTop};
  for (const double tick : nice_ticks(y.low, y.high, 6)) {
    drawing.line({{kLeft, y.place(tick)}, {kRight, y.place(tick)}}, {.color = kGrid});
    drawing.text(kLeft - 8, y.place(tick) + 4.5, number(tick), {.anchor = 1});
  }
  draw_x_axis(plot, x, drawing);
  frame();

  // A gap where there is no value.
  std::vector<Drawing::Point> piece;
  for (size_t i = 0; i <= plot.x.size(); ++i) {
    if (i < plot.x.size() && is_drawn(i)) {
      piece.push_back({x.place(value_x(i)), y.place(plot.y[i])});
    } else if (!piece.empty()) {
      drawing.line(std::exchange(piece, {}), {.color = kCurve, .width = 2});
    }
  }

  if (plot.mark && is_drawn(*plot.mark)) {
    const double at_x = x.place(value_x(*plot.mark)), at_y = y.place(plot.y[*plot.mark]);
    // On the right, where there is room for it.
    const bool on_the_left = at_x + 20 + 8 * static_cast<double>(plot.mark_label.size()) > kRight;
    drawing.line({{at_x, kTop}, {at_x, kBottom}}, {.color = kMark, .dashed = true});
    drawing.rect(at_x - 7, at_y - 7, 14, 14, kPaper, 7);
    drawing.rect(at_x - 5, at_y - 5, 10, 10, kMark, 5);
    if (!plot.mark_label.empty())
      draw_label(drawing, at_x + (on_the_left ? -12 : 12), std::max(at_y - 12, kTop + 14), plot.mark_label,
                 on_the_left ? 1 : 0);
  }
  return drawing;
}

std::string to_svg(const LinePlot& plot) {
  return to_svg(picture_of(plot));
}

}  // namespace levin
