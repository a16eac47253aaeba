#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <utility>

#include <ATen/ops/full.h>

#include "levin/cli/bar_plot.h"

namespace levin::cli {
namespace {

/// Letters of 5 x 7 points, row by row from the top left, in 35 bits.
constexpr auto kGlyphs = std::to_array<std::pair<char, uint64_t>>(
    {{'A', 0x3a31fc631}, {'B', 0x7a31f463e}, {'C', 0x3a308422e}, {'D', 0x7a318c63e}, {'E', 0x7e10f421f},
     {'F', 0x7e10f4210}, {'G', 0x3a30bc62e}, {'H', 0x4631fc631}, {'I', 0x38842108e}, {'J', 0x1c4210a4c},
     {'K', 0x4654c5251}, {'L', 0x42108421f}, {'M', 0x4775ac631}, {'N', 0x4735ace31}, {'O', 0x3a318c62e},
     {'P', 0x7a31f4210}, {'Q', 0x3a318d64d}, {'R', 0x7a31f5251}, {'S', 0x3e107043e}, {'T', 0x7c8421084},
     {'U', 0x46318c62e}, {'V', 0x46318a944}, {'W', 0x4631ad771}, {'X', 0x454421151}, {'Y', 0x454421084},
     {'Z', 0x7c222221f}, {'0', 0x3a33ae62e}, {'1', 0x11842108e}, {'2', 0x3a213221f}, {'3', 0x78217043e},
     {'4', 0x08ca97c42}, {'5', 0x7e1e0862e}, {'6', 0x3a1e8c62e}, {'7', 0x7c2221108}, {'8', 0x3a317462e},
     {'9', 0x3a317842e}, {'.', 0x000000004}, {',', 0x000000088}, {':', 0x008000080}, {'/', 0x042222210},
     {'%', 0x672222273}, {'(', 0x088842082}, {')', 0x208210888}, {'-', 0x000070000}, {'_', 0x00000001f},
     {'+', 0x0084f9080}});
constexpr int kGlyphWidth = 5, kGlyphHeight = 7, kGlyphStep = 6;

using Rgb = std::array<uint8_t, 3>;
constexpr Rgb kInk{0x18, 0x18, 0x1b}, kGrayInk{0x52, 0x52, 0x5b}, kBlue{0x25, 0x63, 0xeb}, kTrack{0xf4, 0xf4, 0xf5};

class Canvas {
 public:
  Canvas(int width, int height)
      : pixels_(at::full({height, width, 3}, 255, at::kByte)), width_(width), height_(height) {}

  void fill(int left, int top, int width, int height, Rgb color) {
    auto* data = pixels_.mutable_data_ptr<uint8_t>();
    for (int y = std::max(top, 0); y < std::min(top + height, height_); ++y)
      for (int x = std::max(left, 0); x < std::min(left + width, width_); ++x)
        std::copy(color.begin(), color.end(), data + (y * width_ + x) * 3);
  }

  void write(int left, int top, const std::string& text, Rgb color, int scale) {
    for (const char c : text) {
      const char capital = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      const auto glyph =
          std::find_if(kGlyphs.begin(), kGlyphs.end(), [&](const auto& one) { return one.first == capital; });
      for (int bit = 0; glyph != kGlyphs.end() && bit < kGlyphWidth * kGlyphHeight; ++bit)
        if (glyph->second >> (kGlyphWidth * kGlyphHeight - 1 - bit) & 1)
          fill(left + bit % kGlyphWidth * scale, top + bit / kGlyphWidth * scale, scale, scale, color);
      left += kGlyphStep * scale;
    }
  }

  at::Tensor pixels() const { return pixels_.permute({2, 0, 1}); }

 private:
  at::Tensor pixels_;
  int width_, height_;
};

}  // namespace

at::Tensor to_pixels(const BarPlot& plot) {
  constexpr int kWide = 1000, kFrom = 180, kTo = 720, kFirst = 100, kNext = 44, kThick = 28, kScale = 2;
  Canvas canvas(kWide, kFirst + kNext * static_cast<int>(plot.bars.size()) + 10);
  canvas.write(24, 24, plot.title, kInk, kScale);
  canvas.write(24, 56, plot.subtitle, kGrayInk, kScale);
  double most = 0;
  for (const auto& bar : plot.bars) most = std::max(most, bar.value);
  for (size_t i = 0; i < plot.bars.size(); ++i) {
    const auto& bar = plot.bars[i];
    const int y = kFirst + kNext * static_cast<int>(i), text_y = y + (kThick - kGlyphHeight * kScale) / 2;
    const int label_width = static_cast<int>(bar.label.size()) * kGlyphStep * kScale;
    canvas.write(kFrom - 16 - label_width, text_y, bar.label, kGrayInk, kScale);
    canvas.fill(kFrom, y, kTo - kFrom, kThick, kTrack);
    canvas.fill(kFrom, y, most > 0 ? static_cast<int>(bar.value / most * (kTo - kFrom)) : 0, kThick, kBlue);
    canvas.write(kTo + 16, text_y, bar.text, kGrayInk, kScale);
  }
  return canvas.pixels();
}

}  // namespace levin::cli
