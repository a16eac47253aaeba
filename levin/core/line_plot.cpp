#include "levin/core/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin {
namespace {

constexpr double kWidth = 760, kHeight = 440;
constexpr double kLeft = 78, kRight = 736, kTop = 64, kBottom = 380;

constexpr auto kStyle = R"(
  <style>
    text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #52525b }
    .title { font-size: 16px; font-weight: 600; fill: #18181b }
    .grid { stroke: #e4e4e7; stroke-width: 1 }
    .axis { stroke: #a1a1aa; stroke-width: 1 }
    .curve { fill: none; stroke: #2563eb; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
    .mark { fill: #dc2626; stroke: #ffffff; stroke-width: 2 }
    .guide { stroke: #dc2626; stroke-width: 1; stroke-dasharray: 4 4 }
    .label { font-weight: 600; fill: #dc2626; paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
  </style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

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

void add_x_axis(const LinePlot& plot, const Axis& x, std::string& svg) {
  const auto tick = [&](double at, const std::string& label) {
    svg += fmt::format(R"(  <line class="grid" x1="{0:.1f}" y1="{1}" x2="{0:.1f}" y2="{2}"/>)"
                       "\n"
                       R"(  <text x="{0:.1f}" y="{3}" text-anchor="middle">{4}</text>)"
                       "\n",
                       x.place(at), kTop, kBottom, kBottom + 20, label);
  };
  if (plot.log_x) {
    const int first = static_cast<int>(std::ceil(x.low - 1e-9)), last = static_cast<int>(std::floor(x.high + 1e-9));
    const int every = std::max(1, (last - first + 8) / 9);
    for (int exponent = first; exponent <= last; exponent += every) tick(exponent, decade(exponent));
  } else {
    for (const double value : nice_ticks(x.low, x.high, 8)) tick(value, number(value));
  }
}

}  // namespace

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
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string to_svg(const LinePlot& plot) {
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
  if (xs.low > xs.high) xs = {0, 1}, ys = {0, 1};
  if (xs.low == xs.high) xs = {xs.low - 0.5, xs.high + 0.5};
  const double margin = ys.low == ys.high ? std::max(0.5, std::abs(ys.low) * 0.1) : (ys.high - ys.low) * 0.06;
  const Axis x{xs.low, xs.high, kLeft, kRight}, y{ys.low - margin, ys.high + margin, kBottom, kTop};

  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">)", kWidth,
      kHeight);
  svg += kStyle;
  svg += fmt::format("  <rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", kWidth, kHeight);
  svg += fmt::format("  <text class=\"title\" x=\"{}\" y=\"28\">{}</text>\n", kLeft, escaped(plot.title));
  svg += fmt::format("  <text x=\"{}\" y=\"48\">{}</text>\n", kLeft, escaped(plot.subtitle));
  for (const double tick : nice_ticks(y.low, y.high, 6))
    svg += fmt::format(R"(  <line class="grid" x1="{0}" y1="{1:.1f}" x2="{2}" y2="{1:.1f}"/>)"
                       "\n"
                       R"(  <text x="{3}" y="{4:.1f}" text-anchor="end">{5}</text>)"
                       "\n",
                       kLeft, y.place(tick), kRight, kLeft - 8, y.place(tick) + 4.5, number(tick));
  add_x_axis(plot, x, svg);
  svg += fmt::format("  <path class=\"axis\" fill=\"none\" d=\"M{0} {1}V{2}H{3}\"/>\n", kLeft, kTop, kBottom, kRight);
  svg += fmt::format("  <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (kLeft + kRight) / 2, kHeight - 12,
                     escaped(plot.x_label));
  svg += fmt::format("  <text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + kBottom) / 2, escaped(plot.y_label));

  // A gap where there is no value.
  std::string path;
  bool pen_down = false;
  for (size_t i = 0; i < plot.x.size(); ++i) {
    if (is_drawn(i))
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", x.place(value_x(i)), y.place(plot.y[i]));
    pen_down = is_drawn(i);
  }
  svg += fmt::format("  <path class=\"curve\" d=\"{}\"/>\n", path);

  if (plot.mark && is_drawn(*plot.mark)) {
    const double at_x = x.place(value_x(*plot.mark)), at_y = y.place(plot.y[*plot.mark]);
    // On the right, where there is room for it.
    const bool on_the_left = at_x + 20 + 8 * static_cast<double>(plot.mark_label.size()) > kRight;
    svg += fmt::format("  <line class=\"guide\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>\n", at_x, kTop,
                       kBottom);
    svg += fmt::format("  <circle class=\"mark\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"6\"/>\n", at_x, at_y);
    svg += fmt::format("  <text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                       at_x + (on_the_left ? -12 : 12), std::max(at_y - 12, kTop + 14), on_the_left ? "end" : "start",
                       escaped(plot.mark_label));
  }
  return svg + "</svg>\n";
}

std::string sparkline(const std::vector<double>& values, int width) {
  static constexpr std::array blocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  Range range;
  for (const double value : values)
    if (std::isfinite(value)) range.add(value);
  std::string line;
  const auto count = static_cast<int64_t>(values.size());
  const auto columns = std::min<int64_t>(width, count);
  for (int64_t column = 0; column < columns; ++column) {
    double sum = 0;
    int finite = 0;
    for (int64_t i = column * count / columns; i < (column + 1) * count / columns; ++i)
      if (std::isfinite(values[static_cast<size_t>(i)])) {
        sum += values[static_cast<size_t>(i)];
        ++finite;
      }
    if (finite == 0) {
      line += ' ';
      continue;
    }
    const double share = range.high > range.low ? (sum / finite - range.low) / (range.high - range.low) : 0;
    line += blocks[static_cast<size_t>(std::clamp(share * 8, 0.0, 7.0))];
  }
  return line;
}

}  // namespace levin
