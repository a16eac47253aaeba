#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin {

/// A picture of bars, curves and words, drawn once and written as SVG or as PNG. Places are in points from the top
/// left; colours are 0xRRGGBB; what comes later lies above.
///
///     Drawing drawing(400, 200);
///     drawing.rect(20, 40, 100, 24, 0x2563eb);
///     drawing.text(20, 30, "bytes", {.bold = true});
///     write_drawing("bytes.png", drawing);
class Drawing {
 public:
  struct Point {
    double x = 0, y = 0;
  };
  struct LineStyle {
    uint32_t color = 0xa1a1aa;
    double width = 1;
    bool dashed = false;
  };
  struct TextStyle {
    double size = 13;
    uint32_t color = 0x52525b;
    bool bold = false;
    /// Where (x, y) is on the line of the text: 0 its beginning, 0.5 its middle, 1 its end.
    double anchor = 0;
  };
  struct Rect {
    double x, y, width, height, radius;
    uint32_t color;
  };
  struct Line {
    std::vector<Point> points;
    LineStyle style;
  };
  /// What lies between a curve from left to right and a level.
  struct Area {
    std::vector<Point> points;
    double level;
    uint32_t color;
  };
  struct Text {
    Point at;
    std::string text;
    TextStyle style;
  };
  using Shape = std::variant<Rect, Line, Area, Text>;

  /// White.
  Drawing(double width, double height);

  void rect(double x, double y, double width, double height, uint32_t color, double radius = 0);
  void line(std::vector<Point> points, LineStyle style);
  void area(std::vector<Point> points, double level, uint32_t color);
  /// `y` is the line that letters stand on.
  void text(double x, double y, std::string text, TextStyle style);

  double width() const { return width_; }
  double height() const { return height_; }
  const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  double width_, height_;
  std::vector<Shape> shapes_;
};

/// How wide a text is in to_pixels, about as wide as in a browser.
double text_width(std::string_view text, double size);

std::string to_svg(const Drawing& drawing);
/// uint8 [3, H, W], `scale` pixels for a point, with letters of our own: no font is needed.
at::Tensor to_pixels(const Drawing& drawing, double scale = 2);
/// By the end of the name: .svg or .png; any other is an Error.
void write_drawing(const std::filesystem::path& path, const Drawing& drawing);

namespace detail {

/// A character as strokes of a pen, in units of which a capital letter is six high; letters stand on 0.
struct Glyph {
  std::vector<std::vector<Drawing::Point>> strokes;
  double width = 0;
};
Glyph glyph_of(char character);
/// Points of a text of size 1: a unit across, a unit up, and between two characters.
inline constexpr double kGlyphAcross = 0.095, kGlyphUp = 0.12, kGlyphGap = 2.05, kGlyphSpace = 2.6;

}  // namespace detail

}  // namespace levin
