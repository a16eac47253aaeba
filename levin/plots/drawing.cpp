#include "levin/plots/drawing.h"

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/images/image.h"

namespace levin {
namespace {

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

std::string path_of(const std::vector<Drawing::Point>& points) {
  std::string path;
  for (size_t i = 0; i < points.size(); ++i)
    path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", points[i].x, points[i].y);
  return path;
}

struct SvgShape {
  std::string operator()(const Drawing::Rect& r) const {
    return fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="{}" fill="#{:06x}"/>)", r.x,
                       r.y, r.width, r.height, r.radius, r.color);
  }
  std::string operator()(const Drawing::Line& l) const {
    return fmt::format(
        R"(<path d="{}" fill="none" stroke="#{:06x}" stroke-width="{}" stroke-linejoin="round" stroke-linecap="round"{}/>)",
        path_of(l.points), l.style.color, l.style.width, l.style.dashed ? R"( stroke-dasharray="5 5")" : "");
  }
  std::string operator()(const Drawing::Area& a) const {
    if (a.points.empty()) return {};
    return fmt::format(R"(<path d="{}L{:.1f} {:.1f}L{:.1f} {:.1f}Z" fill="#{:06x}"/>)", path_of(a.points),
                       a.points.back().x, a.level, a.points.front().x, a.level, a.color);
  }
  std::string operator()(const Drawing::Text& t) const {
    const auto anchor = t.style.anchor <= 0.25 ? "start" : t.style.anchor < 0.75 ? "middle" : "end";
    return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" font-size="{}"{} fill="#{:06x}" text-anchor="{}">{}</text>)",
                       t.at.x, t.at.y, t.style.size, t.style.bold ? R"( font-weight="600")" : "", t.style.color, anchor,
                       xml_text(t.text));
  }
};

}  // namespace

Drawing::Drawing(double width, double height) : width_(width), height_(height) {
  LEVIN_CHECK(width >= 1 && height >= 1 && width <= 1e4 && height <= 1e4, "[drawing] ", width, " x ", height,
              " points are not allowed (1 to 10000)");
}

void Drawing::rect(double x, double y, double width, double height, uint32_t color, double radius) {
  shapes_.emplace_back(Rect{x, y, width, height, radius, color});
}
void Drawing::line(std::vector<Point> points, LineStyle style) {
  shapes_.emplace_back(Line{std::move(points), style});
}
void Drawing::area(std::vector<Point> points, double level, uint32_t color) {
  shapes_.emplace_back(Area{std::move(points), level, color});
}
void Drawing::text(double x, double y, std::string text, TextStyle style) {
  shapes_.emplace_back(Text{{x, y}, std::move(text), style});
}

std::string to_svg(const Drawing& drawing) {
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" font-family="system-ui, 'Segoe UI', Helvetica, Arial, sans-serif">)",
      drawing.width(), drawing.height());
  svg += fmt::format("\n  <rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", drawing.width(), drawing.height());
  for (const auto& shape : drawing.shapes()) svg += "  " + std::visit(SvgShape(), shape) + "\n";
  return svg + "</svg>\n";
}

void write_drawing(const std::filesystem::path& path, const Drawing& drawing) {
  const auto end = path.extension();
  LEVIN_CHECK(end == ".svg" || end == ".png", "[drawing] \"", path.string(), "\" must end with .svg or .png");
  if (end == ".svg")
    write_file(path, to_svg(drawing));
  else
    write_image(path, to_pixels(drawing));
}

}  // namespace levin
