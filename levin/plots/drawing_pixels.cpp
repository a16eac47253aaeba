#include <algorithm>
#include <array>
#include <cmath>

#include <ATen/ops/from_blob.h>

#include "levin/plots/drawing.h"

namespace levin {
namespace {

using Points = std::vector<Drawing::Point>;

/// Pixels that shapes are laid over, their edges by how much of a pixel they cover.
class PixelCanvas {
 public:
  PixelCanvas(int width, int height)
      : width_(width), height_(height), pixels_(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, 255) {}

  void blend(int x, int y, double coverage, uint32_t color) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_ || coverage <= 0) return;
    auto* at = pixels_.data() + (static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)) * 3;
    const double share = std::min(coverage, 1.0);
    for (int i = 0; i < 3; ++i) {
      const double ink = (color >> (16 - 8 * i)) & 0xff;
      at[i] = static_cast<uint8_t>(at[i] + (ink - at[i]) * share + 0.5);
    }
  }

  void rect(double x, double y, double width, double height, double radius, uint32_t color) {
    radius = std::min({radius, width / 2, height / 2});
    for (int row = static_cast<int>(y) - 1; row <= y + height + 1; ++row)
      for (int column = static_cast<int>(x) - 1; column <= x + width + 1; ++column) {
        if (radius <= 0) {
          const auto overlap = [](double from, double to, int cell) {
            return std::clamp(std::min(to, cell + 1.0) - std::max(from, static_cast<double>(cell)), 0.0, 1.0);
          };
          blend(column, row, overlap(x, x + width, column) * overlap(y, y + height, row), color);
          continue;
        }
        const double dx = std::abs(column + 0.5 - x - width / 2) - width / 2 + radius;
        const double dy = std::abs(row + 0.5 - y - height / 2) - height / 2 + radius;
        const double outside = std::hypot(std::max(dx, 0.0), std::max(dy, 0.0)) + std::min(std::max(dx, dy), 0.0);
        blend(column, row, 0.5 - outside + radius, color);
      }
  }

  /// All strokes of a shape are laid on at once: where they meet there is no second coat.
  void strokes(const std::vector<Points>& lines, double width, uint32_t color) {
    double left = 1e9, top = 1e9, right = -1e9, bottom = -1e9;
    for (const auto& line : lines)
      for (const auto& [x, y] : line)
        left = std::min(left, x), right = std::max(right, x), top = std::min(top, y), bottom = std::max(bottom, y);
    if (right < left) return;
    const double reach = width / 2 + 1;
    const int x0 = std::max(0, static_cast<int>(left - reach)), y0 = std::max(0, static_cast<int>(top - reach));
    const int x1 = std::min(width_ - 1, static_cast<int>(right + reach));
    const int y1 = std::min(height_ - 1, static_cast<int>(bottom + reach));
    if (x1 < x0 || y1 < y0) return;
    const auto columns = static_cast<size_t>(x1 - x0 + 1);
    std::vector<float> coverage(columns * static_cast<size_t>(y1 - y0 + 1), 0);
    for (const auto& line : lines)
      for (size_t i = 0; i < line.size(); ++i) {
        const auto a = line[i > 0 ? i - 1 : 0], b = line[i];
        if (i == 0 && line.size() > 1) continue;
        const double dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
        for (int y = std::max(y0, static_cast<int>(std::min(a.y, b.y) - reach));
             y <= std::min<double>(y1, std::max(a.y, b.y) + reach); ++y)
          for (int x = std::max(x0, static_cast<int>(std::min(a.x, b.x) - reach));
               x <= std::min<double>(x1, std::max(a.x, b.x) + reach); ++x) {
            const double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
            const double along = length > 0 ? std::clamp((px * dx + py * dy) / length, 0.0, 1.0) : 0;
            const double away = std::hypot(px - along * dx, py - along * dy);
            auto& now = coverage[static_cast<size_t>(y - y0) * columns + static_cast<size_t>(x - x0)];
            now = std::max(now, static_cast<float>(std::clamp(width / 2 - away + 0.5, 0.0, 1.0)));
          }
      }
    for (int y = y0; y <= y1; ++y)
      for (int x = x0; x <= x1; ++x)
        blend(x, y, coverage[static_cast<size_t>(y - y0) * columns + static_cast<size_t>(x - x0)], color);
  }

  void area(const Points& points, double level, uint32_t color) {
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const auto &a = points[i], &b = points[i + 1];
      // The columns whose middle lies in this piece.
      for (int x = std::max(0, static_cast<int>(std::ceil(a.x - 0.5))); x + 0.5 < b.x && x < width_; ++x) {
        const double y = a.y + (b.y - a.y) * (x + 0.5 - a.x) / (b.x - a.x);
        rect(x, std::min(y, level), 1, std::abs(level - y), 0, color);
      }
    }
  }

  at::Tensor pixels() const {
    return at::from_blob(const_cast<uint8_t*>(pixels_.data()), {height_, width_, 3}, at::kByte)
        .clone()
        .permute({2, 0, 1});
  }

 private:
  int width_, height_;
  std::vector<uint8_t> pixels_;
};

std::vector<Points> dashes(const Points& points, double on, double off) {
  std::vector<Points> pieces;
  bool drawing = true;
  double left = on;
  if (!points.empty()) pieces.push_back({points.front()});
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    auto at = points[i];
    const auto& to = points[i + 1];
    for (double length = std::hypot(to.x - at.x, to.y - at.y); length > 0;) {
      const double step = std::min(left, length), part = step / length;
      at = {at.x + (to.x - at.x) * part, at.y + (to.y - at.y) * part};
      length -= step, left -= step;
      if (drawing) pieces.back().push_back(at);
      if (left > 1e-9) continue;
      drawing = !drawing;
      left = drawing ? on : off;
      if (drawing) pieces.push_back({at});
    }
  }
  return pieces;
}

struct PixelShape {
  PixelCanvas& canvas;
  double scale;

  Points scaled(Points points) const {
    for (auto& point : points) point.x *= scale, point.y *= scale;
    return points;
  }
  void operator()(const Drawing::Rect& r) const {
    canvas.rect(r.x * scale, r.y * scale, r.width * scale, r.height * scale, r.radius * scale, r.color);
  }
  void operator()(const Drawing::Line& l) const {
    const auto points = scaled(l.points);
    canvas.strokes(l.style.dashed ? dashes(points, 5 * scale, 5 * scale) : std::vector<Points>{points},
                   l.style.width * scale, l.style.color);
  }
  void operator()(const Drawing::Area& a) const { canvas.area(scaled(a.points), a.level * scale, a.color); }
  void operator()(const Drawing::Text& t) const {
    const double across = detail::kGlyphAcross * t.style.size * scale, up = detail::kGlyphUp * t.style.size * scale;
    double x = (t.at.x - t.style.anchor * text_width(t.text, t.style.size)) * scale;
    for (const char c : t.text) {
      if (c == ' ') {
        x += detail::kGlyphSpace * across;
        continue;
      }
      auto glyph = detail::glyph_of(c);
      for (auto& stroke : glyph.strokes)
        for (auto& point : stroke) point = {x + point.x * across, t.at.y * scale - point.y * up};
      canvas.strokes(glyph.strokes, (t.style.bold ? 0.125 : 0.085) * t.style.size * scale, t.style.color);
      x += (glyph.width + detail::kGlyphGap) * across;
    }
  }
};

}  // namespace

double text_width(std::string_view text, double size) {
  double units = 0;
  for (const char c : text) units += c == ' ' ? detail::kGlyphSpace : detail::glyph_of(c).width + detail::kGlyphGap;
  if (!text.empty() && text.back() != ' ') units -= detail::kGlyphGap;
  return units * detail::kGlyphAcross * size;
}

at::Tensor to_pixels(const Drawing& drawing, double scale) {
  PixelCanvas canvas(static_cast<int>(std::lround(drawing.width() * scale)),
                     static_cast<int>(std::lround(drawing.height() * scale)));
  for (const auto& shape : drawing.shapes()) std::visit(PixelShape{canvas, scale}, shape);
  return canvas.pixels();
}

}  // namespace levin
