#include "levin/plots/timeline.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/plots/axes.h"

namespace levin {
namespace {

constexpr double kEdge = 24, kTop = 74, kLaneStep = 28, kLaneHeight = 24, kLongest = 940, kUnitMost = 26, kText = 12;

double end_of(const TimelinePlot& plot) {
  double end = 0;
  for (const auto& lane : plot.lanes)
    if (!lane.blocks.empty()) end = std::max(end, lane.blocks.back().end);
  return end;
}

/// White letters on dark, dark ones on light.
uint32_t letters_on(uint32_t color) {
  const double light = 0.299 * (color >> 16 & 255) + 0.587 * (color >> 8 & 255) + 0.114 * (color & 255);
  return light > 150 ? ink::kText : ink::kPaper;
}

/// Wide enough to read the shortest block, where that keeps the picture in a page.
double points_per_time(const TimelinePlot& plot, double end) {
  double shortest = end;
  for (const auto& lane : plot.lanes)
    for (const auto& block : lane.blocks)
      if (block.end > block.start) shortest = std::min(shortest, block.end - block.start);
  return end > 0 ? std::min(kLongest / end, kUnitMost / shortest) : 1;
}

void draw_legend(Drawing& drawing, const TimelinePlot& plot, double x, double y) {
  for (const auto& kind : plot.kinds) {
    drawing.rect(x, y - 11, 14, 14, kind.color, 2);
    drawing.text(x + 20, y, kind.name, {.size = kText});
    x += 20 + text_width(kind.name, kText) * 1.1 + 22;
  }
}
double legend_width(const TimelinePlot& plot) {
  double width = 0;
  for (const auto& kind : plot.kinds) width += 42 + text_width(kind.name, kText) * 1.1;
  return width;
}

size_t text_size(const TimelinePlot& plot) {
  size_t most = 0;
  for (const auto& lane : plot.lanes)
    for (const auto& block : lane.blocks) most = std::max(most, block.text.size());
  return most;
}

std::string colored(const std::string& text, uint32_t color) {
  const uint32_t letters = letters_on(color);
  return fmt::format("\x1b[48;2;{};{};{}m\x1b[38;2;{};{};{}m{}\x1b[0m", color >> 16 & 255, color >> 8 & 255,
                     color & 255, letters >> 16 & 255, letters >> 8 & 255, letters & 255, text);
}

/// Cells `from` to `to` of a lane, each `width` characters wide.
std::string cells_of(const TimelinePlot& plot, const TimelinePlot::Lane& lane, const TimelineTextOptions& options,
                     int64_t from, int64_t to, size_t width) {
  std::string line;
  auto next = lane.blocks.begin();
  for (int64_t cell = from; cell < to; ++cell) {
    const double middle = (static_cast<double>(cell) + 0.5) * options.unit;
    while (next != lane.blocks.end() && next->end <= middle) ++next;
    if (next == lane.blocks.end() || next->start > middle) {
      line += fmt::format("{:<{}}", options.color ? "" : ".", width);
      continue;
    }
    const auto& kind = plot.kinds.at(static_cast<size_t>(next->kind));
    const bool first = middle - options.unit < next->start;
    if (options.color)
      line += colored(fmt::format("{:<{}}", first ? next->text : "", width), kind.color);
    else
      line += first ? fmt::format("{:<{}}", kind.letter + next->text, width) : std::string(width, '-');
  }
  while (!options.color && line.ends_with(' ')) line.pop_back();
  return line;
}

std::string text_legend(const TimelinePlot& plot, bool color) {
  std::string line;
  for (const auto& kind : plot.kinds)
    line += fmt::format("{}{} {}", line.empty() ? "" : "  ",
                        color ? colored("  ", kind.color) : std::string(1, kind.letter), kind.name);
  return line + (color ? "\n" : "  . idle\n");
}

}  // namespace

Drawing picture_of(const TimelinePlot& plot) {
  double labels = 0, notes = 0;
  for (const auto& lane : plot.lanes) {
    labels = std::max(labels, text_width(lane.label, kText) * 1.1);
    notes = std::max(notes, text_width(lane.note, kText) * 1.1);
  }
  const double end = end_of(plot), scale = points_per_time(plot, end);
  const double left = kEdge + labels + 12, right = left + end * scale;
  const double bottom = kTop + kLaneStep * static_cast<double>(plot.lanes.size());
  const double width = std::max({right + (notes > 0 ? 12 + notes : 0), kEdge + text_width(plot.title, 16) * 1.15,
                                 kEdge + text_width(plot.subtitle, kText) * 1.15, left + legend_width(plot)});
  Drawing drawing(width + kEdge, bottom + 44);
  drawing.text(kEdge, 32, plot.title, {.size = 16, .color = ink::kText, .bold = true});
  drawing.text(kEdge, 54, plot.subtitle, {.size = kText});
  double y = kTop;
  for (const auto& lane : plot.lanes) {
    drawing.text(left - 12, y + 16, lane.label, {.size = kText, .anchor = 1});
    drawing.rect(left, y, right - left, kLaneHeight, ink::kShade);
    for (const auto& block : lane.blocks) {
      const double x = left + block.start * scale, length = (block.end - block.start) * scale;
      const uint32_t color = plot.kinds.at(static_cast<size_t>(block.kind)).color;
      // A line of the ground between blocks, where they are not that thin themselves.
      drawing.rect(x, y, length > 4 ? length - 1 : length, kLaneHeight, color, length > 8 ? 2 : 0);
      if (text_width(block.text, 11) + 3 <= length)
        drawing.text(x + (length - 1) / 2, y + 16, block.text, {.size = 11, .color = letters_on(color), .anchor = 0.5});
    }
    drawing.text(right + 12, y + 16, lane.note, {.size = kText});
    y += kLaneStep;
  }
  draw_legend(drawing, plot, left, bottom + 20);
  return drawing;
}

std::string text_of(const TimelinePlot& plot, const TimelineTextOptions& options) {
  LEVIN_CHECK(options.unit > 0, "[timeline] a unit of ", options.unit, " is not allowed");
  size_t label = 0;
  for (const auto& lane : plot.lanes) label = std::max(label, lane.label.size());
  const size_t width = text_size(plot) + 1;
  const auto cells = static_cast<int64_t>(std::ceil(end_of(plot) / options.unit - 1e-6));
  const int64_t room =
      options.columns > 0 ? (options.columns - static_cast<int64_t>(label) - 1) / static_cast<int64_t>(width) : cells;
  // Rows of about the same length.
  const int64_t rows = std::max<int64_t>(1, (cells + std::max<int64_t>(room, 1) - 1) / std::max<int64_t>(room, 1));
  const int64_t in_row = std::max<int64_t>(1, (cells + rows - 1) / rows);
  std::string out;
  for (int64_t from = 0; from < cells; from += in_row) {
    if (from > 0) out += '\n';
    const int64_t to = std::min(cells, from + in_row);
    for (const auto& lane : plot.lanes)
      out += fmt::format("{:<{}} {}\n", lane.label, label, cells_of(plot, lane, options, from, to, width));
  }
  return out + text_legend(plot, options.color);
}

}  // namespace levin
