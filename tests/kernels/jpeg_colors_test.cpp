#include "levin/kernels/jpeg_colors.h"

#include <gtest/gtest.h>

#include "levin/io/images/image.h"

namespace levin::kernels {
namespace {

// Files whose planes are known: squares of one color, in steps of the finest quantization, decode to just their color.
// What libjpeg makes of the borders between them is then only its filter.
struct SquarePlanes {
  Tensor rgb, luma, blue, red;

  SquarePlanes(int64_t height, int64_t width) {
    const int64_t rows = (height + 15) / 16, columns = (width + 15) / 16;
    const Tensor colors = at::randint(256, {rows, columns, 3}, at::kInt);
    const auto large = [](const Tensor& small, int64_t side) {
      return small.repeat_interleave(side, 0).repeat_interleave(side, 1);
    };
    const Tensor r = colors.select(2, 0), g = colors.select(2, 1), b = colors.select(2, 2);
    const auto fixed = [](const Tensor& sum) { return sum.bitwise_right_shift(16).to(at::kByte); };
    luma =
        large(fixed(r * 19595 + g * 38470 + b * 7471 + 32768), 16).slice(0, 0, height).slice(1, 0, width).contiguous();
    const int64_t half_height = (height + 1) / 2, half_width = (width + 1) / 2, middle = (128 << 16) + 32767;
    const auto chroma = [&](const Tensor& sum) {
      return large(fixed(sum), 8).slice(0, 0, half_height).slice(1, 0, half_width).contiguous();
    };
    blue = chroma(r * -11059 + g * -21709 + b * 32768 + middle);
    red = chroma(r * 32768 + g * -27439 + b * -5329 + middle);
    rgb = large(colors, 16).slice(0, 0, height).slice(1, 0, width).to(at::kByte).permute({2, 0, 1});
  }

  JpegPlanesEntry entry(const ImageRegion& region, Tensor& out) const {
    out = at::empty({region.height, region.width, 3}, at::kByte);
    return {.luma = luma.const_data_ptr<uint8_t>(),
            .blue = blue.const_data_ptr<uint8_t>(),
            .red = red.const_data_ptr<uint8_t>(),
            .luma_pitch = static_cast<int32_t>(luma.size(1)),
            .chroma_pitch = static_cast<int32_t>(blue.size(1)),
            .chroma_height = static_cast<int32_t>(blue.size(0)),
            .chroma_width = static_cast<int32_t>(blue.size(1)),
            .half_height = 1,
            .half_width = 1,
            .top = static_cast<int32_t>(region.top),
            .left = static_cast<int32_t>(region.left),
            .height = static_cast<int32_t>(region.height),
            .width = static_cast<int32_t>(region.width),
            .out = out.mutable_data_ptr<uint8_t>()};
  }
};

TEST(JpegColors, AreThoseOfLibjpeg) {
  for (const auto& [height, width] : {std::pair(64, 96), std::pair(37, 53), std::pair(16, 16)}) {
    const SquarePlanes planes(height, width);
    const auto file = encode_image(planes.rgb, {.format = "jpeg", .quality = 100});
    const Tensor expected = decode_image(std::as_bytes(std::span(file)));
    Tensor whole, part;
    const ImageRegion region{3, 5, 11, 7};
    const std::vector<JpegPlanesEntry> entries{planes.entry({0, 0, height, width}, whole), planes.entry(region, part)};
    jpeg_colors(entries, at::kCPU);
    EXPECT_TRUE(whole.permute({2, 0, 1}).equal(expected)) << height << " x " << width;
    EXPECT_TRUE(part.permute({2, 0, 1}).equal(expected.narrow(1, 3, 11).narrow(2, 5, 7)));
  }
}

TEST(JpegColors, ChromaOfHalfTheColumnsIsMixedInThem) {
  const Tensor luma = at::full({2, 8}, 100, at::kByte), blue = at::full({2, 4}, 128, at::kByte);
  Tensor red = at::tensor({128, 148, 128, 108}, at::kByte).expand({2, 4}).contiguous();
  Tensor out = at::empty({2, 8, 3}, at::kByte);
  const std::vector<JpegPlanesEntry> entries{{.luma = luma.const_data_ptr<uint8_t>(),
                                              .blue = blue.const_data_ptr<uint8_t>(),
                                              .red = red.const_data_ptr<uint8_t>(),
                                              .luma_pitch = 8,
                                              .chroma_pitch = 4,
                                              .chroma_height = 2,
                                              .chroma_width = 4,
                                              .half_width = 1,
                                              .height = 2,
                                              .width = 8,
                                              .out = out.mutable_data_ptr<uint8_t>()}};
  jpeg_colors(entries, at::kCPU);
  // 3/4 of the nearer column and 1/4 of the other: 0, 5, 15, 15, 5, -5, -15, -20 times 1.402.
  EXPECT_TRUE(out.select(2, 0)[0].equal(at::tensor({100, 107, 121, 121, 107, 93, 79, 72}, at::kByte)))
      << out.select(2, 0)[0];
}

}  // namespace
}  // namespace levin::kernels
