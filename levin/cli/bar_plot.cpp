#include "levin/cli/bar_plot.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/image.h"

namespace levin::cli {
namespace {

constexpr int kBarWidth = 760, kBarLeft = 110, kBarRight = 560, kBarTop = 78, kBarStep = 40, kBarHeight = 24;

constexpr auto kBarStyle = R"(
  <style>
    text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #52525b }
    .title { font-size: 16px; font-weight: 600; fill: #18181b }
    .bar { fill: #2563eb }
    .track { fill: #f4f4f5 }
  </style>
)";

std::string escaped_text(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

}  // namespace

std::string to_svg(const BarPlot& plot) {
  const int height = kBarTop + kBarStep * static_cast<int>(plot.bars.size()) + 10;
  double most = 0;
  for (const auto& bar : plot.bars) most = std::max(most, bar.value);
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img">)",
      kBarWidth, height);
  svg += kBarStyle;
  svg += fmt::format("  <rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", kBarWidth, height);
  svg += fmt::format("  <text class=\"title\" x=\"24\" y=\"30\">{}</text>\n", escaped_text(plot.title));
  svg += fmt::format("  <text x=\"24\" y=\"52\">{}</text>\n", escaped_text(plot.subtitle));
  for (size_t i = 0; i < plot.bars.size(); ++i) {
    const auto& bar = plot.bars[i];
    const int y = kBarTop + kBarStep * static_cast<int>(i);
    const double width = most > 0 ? bar.value / most * (kBarRight - kBarLeft) : 0;
    svg += fmt::format("  <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kBarLeft - 12, y + 17,
                       escaped_text(bar.label));
    svg += fmt::format("  <rect class=\"track\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\n", kBarLeft, y,
                       kBarRight - kBarLeft, kBarHeight);
    svg += fmt::format("  <rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" rx=\"3\"/>\n", kBarLeft,
                       y, width, kBarHeight);
    svg += fmt::format("  <text x=\"{}\" y=\"{}\">{}</text>\n", kBarRight + 12, y + 17, escaped_text(bar.text));
  }
  return svg + "</svg>\n";
}

void write_plot(const std::filesystem::path& path, const BarPlot& plot) {
  const auto end = path.extension();
  LEVIN_CHECK(end == ".svg" || end == ".png", "[plot] \"", path.string(), "\" must end with .svg or .png");
  if (end == ".svg")
    write_file(path, to_svg(plot));
  else
    write_image(path, to_pixels(plot));
}

}  // namespace levin::cli
