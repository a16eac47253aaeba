#include "levin/plots/bar_plot.h"

#include <algorithm>

namespace levin::cli {
namespace {

constexpr double kBarEdge = 24, kBarTop = 78, kBarStep = 40, kBarHeight = 24, kBarLength = 450, kBarText = 13;
constexpr uint32_t kBarInk = 0x18181b, kBarColor = 0x2563eb, kBarTrack = 0xf4f4f5;

}  // namespace

Drawing picture_of(const BarPlot& plot) {
  double most = 0, labels = 0, texts = 0;
  for (const auto& bar : plot.bars) {
    most = std::max(most, bar.value);
    labels = std::max(labels, text_width(bar.label, kBarText));
    texts = std::max(texts, text_width(bar.text, kBarText));
  }
  const double left = kBarEdge + labels + 12, right = left + kBarLength;
  const double width = std::max({right + 12 + texts, kBarEdge + text_width(plot.title, 16) * 1.1,
                                 kBarEdge + text_width(plot.subtitle, kBarText) * 1.1});
  Drawing drawing(width + kBarEdge, kBarTop + kBarStep * static_cast<double>(plot.bars.size()) + 10);
  drawing.text(kBarEdge, 32, plot.title, {.size = 16, .color = kBarInk, .bold = true});
  drawing.text(kBarEdge, 54, plot.subtitle, {.size = kBarText});
  double y = kBarTop;
  for (const auto& bar : plot.bars) {
    drawing.text(left - 12, y + 17, bar.label, {.size = kBarText, .anchor = 1});
    drawing.rect(left, y, kBarLength, kBarHeight, kBarTrack, 3);
    if (most > 0 && bar.value > 0)
      drawing.rect(left, y, std::max(bar.value / most * kBarLength, 2.0), kBarHeight, kBarColor, 3);
    drawing.text(right + 12, y + 17, bar.text, {.size = kBarText});
    y += kBarStep;
  }
  return drawing;
}

void write_plot(const std::filesystem::path& path, const BarPlot& plot) {
  write_drawing(path, picture_of(plot));
}

}  // namespace levin::cli
