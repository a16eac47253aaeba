#include "levin/kernels/images/jpeg_colors.h"

#include <cstdio>
#include <cstdlib>

#include <gtest/gtest.h>
#include <jpeglib.h>

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

/// Sampling of luma, with chroma of one column and row: 4:2:0 is 2 x 2.
struct Sampling {
  const char* name;
  int across, down;
};

/// Written by libjpeg itself: encode_image knows but 4:2:0.
std::string jpeg_file(const Tensor& rgb, const Sampling& sampling, int quality) {
  const Tensor rows = rgb.permute({1, 2, 0}).contiguous();
  jpeg_error_mgr errors;
  jpeg_compress_struct codec;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_compress(&codec);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&codec, &bytes, &size);
  codec.image_height = static_cast<JDIMENSION>(rows.size(0));
  codec.image_width = static_cast<JDIMENSION>(rows.size(1));
  codec.input_components = 3;
  codec.in_color_space = JCS_RGB;
  jpeg_set_defaults(&codec);
  if (sampling.across == 0) jpeg_set_colorspace(&codec, JCS_GRAYSCALE);
  jpeg_set_quality(&codec, quality, TRUE);
  codec.comp_info[0].h_samp_factor = std::max(sampling.across, 1);
  codec.comp_info[0].v_samp_factor = std::max(sampling.down, 1);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    auto* row = const_cast<JSAMPLE*>(rows[codec.next_scanline].const_data_ptr<uint8_t>());
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  std::string file(reinterpret_cast<const char*>(bytes), size);
  std::free(bytes);
  return file;
}

/// The planes of a file before libjpeg brings them to one size: what a GPU decoder gives.
std::vector<Tensor> jpeg_planes(const std::string& file) {
  jpeg_error_mgr errors;
  jpeg_decompress_struct codec;
  codec.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&codec);
  jpeg_mem_src(&codec, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&codec, TRUE);
  codec.raw_data_out = TRUE;
  codec.dct_method = JDCT_ISLOW;
  codec.out_color_space = codec.jpeg_color_space;
  jpeg_start_decompress(&codec);
  std::vector<Tensor> whole;  // in full blocks
  std::vector<std::vector<JSAMPROW>> rows(static_cast<size_t>(codec.num_components));
  std::vector<JSAMPARRAY> arrays;
  const int64_t bands = (codec.output_height + codec.max_v_samp_factor * DCTSIZE - 1) /
                        static_cast<unsigned>(codec.max_v_samp_factor * DCTSIZE);
  for (int i = 0; i < codec.num_components; ++i) {
    const auto& part = codec.comp_info[i];
    const int64_t height = bands * part.v_samp_factor * DCTSIZE;
    const int64_t width = (static_cast<int64_t>(part.width_in_blocks) + codec.max_h_samp_factor) * DCTSIZE;
    whole.push_back(at::empty({height, width}, at::kByte));
    rows[static_cast<size_t>(i)].resize(static_cast<size_t>(part.v_samp_factor * DCTSIZE));
  }
  for (int64_t band = 0; band < bands; ++band) {
    arrays.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto count = static_cast<int64_t>(rows[i].size());
      for (int64_t row = 0; row < count; ++row)
        rows[i][static_cast<size_t>(row)] =
            whole[i].mutable_data_ptr<uint8_t>() + (band * count + row) * whole[i].size(1);
      arrays.push_back(rows[i].data());
    }
    jpeg_read_raw_data(&codec, arrays.data(), static_cast<JDIMENSION>(codec.max_v_samp_factor * DCTSIZE));
  }
  std::vector<Tensor> planes;
  for (int i = 0; i < codec.num_components; ++i) {
    const auto& part = codec.comp_info[i];
    planes.push_back(whole[static_cast<size_t>(i)]
                         .slice(0, 0, part.downsampled_height)
                         .slice(1, 0, part.downsampled_width)
                         .contiguous());
  }
  jpeg_destroy_decompress(&codec);
  return planes;
}

TEST(JpegColors, OfLibjpegsOwnPlanesAreItsPixels) {
  at::manual_seed(11);
  bool luma_differs = false;
  for (const Sampling sampling : {Sampling{"4:4:4", 1, 1}, {"4:2:2", 2, 1}, {"4:2:0", 2, 2}, {"4:4:0", 1, 2}})
    for (const auto& [height, width] :
         {std::pair(1, 1), std::pair(2, 3), std::pair(3, 4), std::pair(4, 5), std::pair(7, 6), std::pair(16, 17),
          std::pair(17, 32), std::pair(31, 47), std::pair(64, 48), std::pair(101, 149)}) {
      const std::array<int64_t, 2> size = {height, width};
      const Tensor smooth = at::upsample_bicubic2d(at::rand({1, 3, 5, 5}) * 255, size, false)[0];
      const Tensor picture = (smooth + at::randn({3, height, width}) * 30).clamp(0, 255).to(at::kByte);
      const auto file = jpeg_file(picture, sampling, /*quality=*/90);
      const auto planes = jpeg_planes(file);
      ASSERT_EQ(planes.size(), 3u);
      const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
      Tensor out = at::empty({height, width, 3}, at::kByte);
      const JpegPlanesEntry entry{.luma = planes[0].const_data_ptr<uint8_t>(),
                                  .blue = planes[1].const_data_ptr<uint8_t>(),
                                  .red = planes[2].const_data_ptr<uint8_t>(),
                                  .luma_pitch = number(planes[0].size(1)),
                                  .chroma_pitch = number(planes[1].size(1)),
                                  .chroma_height = number(planes[1].size(0)),
                                  .chroma_width = number(planes[1].size(1)),
                                  .half_height = sampling.down == 2,
                                  .half_width = sampling.across == 2,
                                  .height = height,
                                  .width = width,
                                  .out = out.mutable_data_ptr<uint8_t>()};
      jpeg_colors(std::span(&entry, 1), at::kCPU);
      const Tensor expected = decode_image(std::as_bytes(std::span(file)));
      EXPECT_TRUE(out.permute({2, 0, 1}).equal(expected)) << sampling.name << " " << height << " x " << width;

      Tensor gray = at::empty({height, width}, at::kByte);
      JpegPlanesEntry to_gray = entry;
      to_gray.gray = 1, to_gray.out = gray.mutable_data_ptr<uint8_t>();
      jpeg_colors(std::span(&to_gray, 1), at::kCPU);
      const Tensor expected_gray = decode_image(std::as_bytes(std::span(file)), {.mode = ImageMode::kGray});
      EXPECT_TRUE(gray.equal(expected_gray[0])) << sampling.name << " " << height << " x " << width;
      luma_differs = luma_differs || !planes[0].equal(gray);
    }
  EXPECT_TRUE(luma_differs);  // where colors are out of range
}

TEST(JpegColors, OfGrayFilesAreTheirLuma) {
  at::manual_seed(12);
  const auto file = jpeg_file(at::randint(256, {3, 37, 53}, at::kByte), {"gray", 0, 0}, /*quality=*/90);
  const auto planes = jpeg_planes(file);
  ASSERT_EQ(planes.size(), 1u);
  EXPECT_TRUE(
      decode_image(std::as_bytes(std::span(file)), {.mode = ImageMode::kRgb}).equal(planes[0].expand({3, 37, 53})));
}

}  // namespace
}  // namespace levin::kernels
