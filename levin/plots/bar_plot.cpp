#include "levin/plots/bar_plot.h"

#include <algorithm>

#include "levin/plots/axes.h"

namespace levin {
namespace {

constexpr double kBarEdge = 24, kBarTop = 78, kBarStep = 40, kBarHeight = 24, kBarLength = 450, kBarText = 13;

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
  drawing.text(kBarEdge, 32, plot.title, {.size = 16, .color = ink::kText, .bold = true});
  drawing.text(kBarEdge, 54, plot.subtitle, {.size = kBarText});
  double y = kBarTop;
  for (const auto& bar : plot.bars) {
    drawing.text(left - 12, y + 17, bar.label, {.size = kBarText, .anchor = 1});
    drawing.rect(left, y, kBarLength, kBarHeight, ink::kShade, 3);
    if (most > 0 && bar.value > 0)
      drawing.rect(left, y, std::max(bar.value / most * kBarLength, 2.0), kBarHeight, ink::kBlue, 3);
    drawing.text(right + 12, y + 17, bar.text, {.size = kBarText});
    y += kBarStep;
  }
  return drawing;
}

}  // namespace levin
