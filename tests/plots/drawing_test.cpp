// Pictures of bars, curves and words, as SVG and as pixels.
#include "levin/plots/drawing.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/images/image.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::vector<int64_t> color_at(const Tensor& pixels, int64_t x, int64_t y) {
  std::vector<int64_t> rgb;
  for (int64_t c = 0; c < 3; ++c) rgb.push_back(pixels[c][y][x].item<int64_t>());
  return rgb;
}
int64_t inked(const Tensor& pixels) {
  return (pixels.amin(0) < 200).sum().item<int64_t>();
}

TEST(Drawing, IsThePixelsOfItsShapes) {
  Drawing drawing(40, 30);
  drawing.rect(10, 10, 10, 5, 0x2563eb);
  drawing.line({{2, 25}, {38, 25}}, {.color = 0xff0000, .width = 2});
  drawing.area({{25, 4}, {35, 14}}, 20, 0x00ff00);
  const auto pixels = to_pixels(drawing, 1);
  ASSERT_EQ(pixels.sizes(), (std::vector<int64_t>{3, 30, 40}));
  EXPECT_EQ(color_at(pixels, 0, 0), (std::vector<int64_t>{255, 255, 255}));
  EXPECT_EQ(color_at(pixels, 10, 10), (std::vector<int64_t>{0x25, 0x63, 0xeb}));
  EXPECT_EQ(color_at(pixels, 19, 14), (std::vector<int64_t>{0x25, 0x63, 0xeb}));
  EXPECT_EQ(color_at(pixels, 20, 14), (std::vector<int64_t>{255, 255, 255}));
  EXPECT_EQ(color_at(pixels, 20, 24), (std::vector<int64_t>{255, 0, 0}));
  EXPECT_EQ(color_at(pixels, 30, 15), (std::vector<int64_t>{0, 255, 0}));
  EXPECT_EQ(color_at(pixels, 30, 6), (std::vector<int64_t>{255, 255, 255}));
  EXPECT_EQ(to_pixels(drawing, 2).size(2), 80);
}

TEST(Drawing, EdgesCoverPartsOfPixels) {
  Drawing drawing(10, 10);
  drawing.rect(2, 2, 3.5, 4, 0x000000);
  const auto half = color_at(to_pixels(drawing, 1), 5, 3)[0];
  EXPECT_NEAR(static_cast<double>(half), 127.5, 2);
}

TEST(Drawing, HasLettersOfItsOwn) {
  const std::string all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.,:;!?-+=<>/\\|%()[]_*#'\"";
  std::set<std::vector<double>> shapes;
  const auto shape_of = [](char c) {
    std::vector<double> numbers;
    for (const auto& stroke : detail::glyph_of(c).strokes)
      for (const auto& [x, y] : stroke) {
        numbers.insert(numbers.end(), {x, y});
        EXPECT_TRUE(x >= 0 && x <= 6 && y >= -2 && y <= 7) << c;
      }
    return numbers;
  };
  for (const char c : all) {
    EXPECT_NE(shape_of(c), shape_of('\x01')) << c;
    EXPECT_TRUE(c == '0' || shapes.insert(shape_of(c)).second) << c;
  }
  Drawing dark(100, 20), empty(100, 20);
  dark.text(4, 15, "16 GB", {});
  empty.text(4, 15, "", {});
  EXPECT_GT(inked(to_pixels(dark)), 50);
  EXPECT_EQ(inked(to_pixels(empty)), 0);
}

TEST(Drawing, PlacesTextByItsAnchor) {
  EXPECT_GT(text_width("memory", 13), text_width("mem", 13));
  EXPECT_DOUBLE_EQ(text_width("mem", 26), 2 * text_width("mem", 13));
  const auto ink_of = [](double anchor) {
    Drawing drawing(200, 20);
    drawing.text(100, 15, "memory", {.anchor = anchor});
    const auto columns = (to_pixels(drawing, 1).amin(0).amin(0) < 200).nonzero();
    return std::pair(columns.min().item<int64_t>(), columns.max().item<int64_t>());
  };
  EXPECT_GE(ink_of(0).first, 98);
  EXPECT_LE(ink_of(1).second, 101);
  EXPECT_NEAR(static_cast<double>(ink_of(0.5).first + ink_of(0.5).second), 200, 3);
}

TEST(Drawing, WhatLiesOutsideIsCutOff) {
  Drawing drawing(20, 20);
  drawing.rect(-50, -50, 500, 60, 0x000000);
  drawing.line({{-100, 15}, {1000, 15}}, {.color = 0x000000, .width = 2, .dashed = true});
  drawing.text(-30, 300, "far away", {});
  drawing.area({{-10, 18}, {100, 18}}, 100, 0x000000);
  drawing.line({}, {});
  drawing.area({}, 3, 0x000000);
  EXPECT_EQ(color_at(to_pixels(drawing, 1), 5, 5), (std::vector<int64_t>{0, 0, 0}));
}

TEST(Drawing, IsWrittenByTheEndOfItsName) {
  const testing::TemporaryFolder folder;
  Drawing drawing(60, 20);
  drawing.text(2, 15, "a < b & c", {.bold = true, .anchor = 0.5});
  drawing.line({{0, 1}, {9, 1}}, {.dashed = true});
  write_drawing(folder / "a.svg", drawing);
  write_drawing(folder / "a.png", drawing);
  EXPECT_THAT(read_file(folder / "a.svg"),
              ::testing::AllOf(HasSubstr(">a &lt; b &amp; c</text>"), HasSubstr("text-anchor=\"middle\""),
                               HasSubstr("dasharray")));
  EXPECT_TRUE(torch::equal(read_image(folder / "a.png"), to_pixels(drawing)));
  for (const auto& [f, line] : std::vector<std::pair<std::function<void()>, std::string>>{
           {[&] { write_drawing("a.gif", drawing); }, "must end with .svg or .png"},
           {[] { Drawing(0, 20); }, "0 x 20 points are not allowed"}}) {
    EXPECT_THAT(error_of([&] { f(); }), HasSubstr(line)) << line;
  }
}

}  // namespace
}  // namespace levin
