// nvJPEG against libjpeg, and a loader that decodes on the GPU against one that does not.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/data/decode_gpu/jpeg_decoder.h"
#include "levin/data/image_dataset.h"
#include "levin/data/loader.h"
#include "levin/data/transforms/transforms.h"
#include "levin/devices/accelerator.h"
#include "levin/kernels/images/image_resample.h"
#include "levin/kernels/images/jpeg_colors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
namespace T = transforms;
using testing::error_of;

// nvJPEG gives the planes of libjpeg's own cosine transform ("islow"), and all that follows is whole numbers.
void expect_equal(const Tensor& got, const Tensor& expected, const std::string& what, int most = 0) {
  ASSERT_EQ(got.sizes(), expected.sizes()) << what;
  const Tensor difference = (got.cpu().to(at::kInt) - expected.cpu().to(at::kInt)).abs();
  EXPECT_LE(difference.max().item<int>(), most)
      << what << ": " << difference.gt(0).sum().item<int64_t>() << " of " << difference.numel() << " values differ";
}

class DecodeJpegGpu : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    std::string why;
    decoder_ = detail::shared_jpeg_decoder(device_, why);
    if (!decoder_) GTEST_SKIP() << why;
    say(decoder_->name());
  }
  void TearDown() override {
    if (!IsSkipped()) say("the test is over");
  }

  /// A line with the seconds since the test began. A test that hangs shows where.
  void say(const std::string& line) const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    std::printf("%6.2f s %s\n", passed.count(), line.c_str());
    std::fflush(stdout);
  }
  static std::string encoded(int64_t height, int64_t width) {
    return encode_image(
        at::upsample_bicubic2d(at::rand({1, 3, 7, 7}) * 255, {height, width}, false)[0].clamp(0, 255).to(at::kByte),
        {.format = "jpeg", .quality = 90});
  }

  /// Photographs of noise and gradients in two classes; one of them progressive.
  std::string write_images(int64_t count) {
    at::manual_seed(3);
    for (int64_t i = 0; i < count; ++i) {
      const auto cls = temporary_.path() / std::to_string(i % 2);
      fs::create_directories(cls);
      const std::array<int64_t, 2> size = {180 + 7 * i, 260 - 5 * i};
      const Tensor smooth = at::upsample_bicubic2d(at::rand({1, 3, 9, 9}) * 255, size, false)[0];
      write_image(cls / (std::to_string(i) + ".jpg"),
                  (smooth + at::randn({3, size[0], size[1]}) * 4).clamp(0, 255).to(at::kByte), {.quality = 92});
    }
    fs::copy_file(fs::path(testing::source_dir()) / "tests/io/fixtures/images/large_progressive.jpg",
                  temporary_.path() / "0/progressive.jpg");
    return temporary_.path().string();
  }
  auto loader(const std::string& path, const Transform& transform, const char* decode,
              ImageMode mode = ImageMode::kRgb) {
    return make_loader(ImageDataset(path, {.transform = transform, .mode = mode, .apply_exif = true}),
                       {.batch_size = 5, .shuffle = true, .seed = 4, .num_workers = 3, .decode = decode})
        .placed({.device = device_});
  }

  const c10::Device device_{c10::kCUDA, 0};
  const testing::TemporaryFolder temporary_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::shared_ptr<detail::GpuJpegDecoder> decoder_;
};

TEST_F(DecodeJpegGpu, HasThePixelsOfTheCpu) {
  const auto folder = fs::path(testing::source_dir()) / "tests/io/fixtures/images";
  int taken = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jpg") continue;
    const auto file = read_file(entry.path());
    const auto bytes = std::as_bytes(std::span(file));
    const auto head = detail::jpeg_head(bytes);
    const auto name = entry.path().filename().string();
    if (!head || !decoder_->takes(bytes, *head)) {
      std::printf("the CPU decodes %s\n", name.c_str());
      continue;
    }
    ++taken;
    const ImageRegion whole{0, 0, head->height, head->width}, part{1, 2, head->height / 2, head->width / 2};
    const std::vector<detail::JpegJob> jobs{{bytes, *head, whole}, {bytes, *head, part}};
    for (const int channels : {3, 1}) {
      const Tensor expected = decode_image(bytes, {.mode = channels == 3 ? ImageMode::kRgb : ImageMode::kGray});
      EXPECT_TRUE(decoder_->decode(jobs, channels, [&](size_t, std::span<const Tensor> pixels) {
        ASSERT_EQ(pixels.size(), 2u);
        expect_equal(pixels[0], expected, name);
        if (head->height < 4 || head->width < 4) return;
        expect_equal(pixels[1], expected.narrow(1, 1, part.height).narrow(2, 2, part.width), name);
      }));
    }
  }
  EXPECT_GE(taken, 3);
}

TEST_F(DecodeJpegGpu, LeavesWhatItCannotDoToTheCpu) {
  const auto folder = fs::path(testing::source_dir()) / "tests/io/fixtures/images";
  for (const char* name : {"progressive_420.jpg", "arithmetic.jpg", "cmyk.jpg", "adobe_rgb.jpg"}) {
    const auto file = read_file(folder / name);
    const auto bytes = std::as_bytes(std::span(file));
    EXPECT_FALSE(decoder_->takes(bytes, *detail::jpeg_head(bytes))) << name;
  }
  const auto cut = read_file(folder / "large_420.jpg").substr(0, 2000);
  const auto head = detail::jpeg_head(std::as_bytes(std::span(cut)));
  EXPECT_TRUE(!head || !decoder_->takes(std::as_bytes(std::span(cut)), *head));
}

TEST_F(DecodeJpegGpu, LoadersGiveTheSameBatches) {
  const auto path = write_images(16);
  const auto crop = T::compose({T::RandomResizedCrop{.size = 64}, T::RandomHorizontalFlip{}});
  const auto middle = T::compose({T::Resize{.size = 80}, T::CenterCrop{.size = 64}});
  for (const auto& transform : {crop, middle, Transform(T::RandomCrop{.size = 300, .padding = 70})})
    for (const auto mode : {ImageMode::kRgb, ImageMode::kGray}) {
      auto on_gpu = loader(path, transform, "gpu", mode), on_cpu = loader(path, transform, "cpu", mode);
      for (int epoch = 0; epoch < 2; ++epoch) {
        auto one = on_gpu.begin(), other = on_cpu.begin();
        for (; other != on_cpu.end(); ++one, ++other) {
          ASSERT_TRUE(one != on_gpu.end());
          EXPECT_TRUE((*one)["image"].is_cuda());
          ASSERT_EQ((*one)["image"].sizes(), (*other)["image"].sizes());
          EXPECT_TRUE((*one)["label"].equal((*other)["label"]));
          expect_equal((*one)["image"], (*other)["image"], "batch");
        }
        EXPECT_TRUE(one == on_gpu.end());
      }
      // All but the progressive one, in both epochs; each loader counts its own.
      EXPECT_EQ(on_gpu.stats().decoded_on_gpu, 32);
      EXPECT_EQ(on_cpu.stats().decoded_on_gpu, 0);
      say(mode == ImageMode::kRgb ? "two loaders, RGB" : "two loaders, gray");
    }
}

TEST_F(DecodeJpegGpu, BatchesHaveAnyNumberOfFiles) {
  at::manual_seed(8);
  const std::string file = encoded(208, 240);
  const auto bytes = std::as_bytes(std::span(file));
  const auto head = detail::jpeg_head(bytes);
  const Tensor expected = decode_image(bytes);
  for (const size_t count : {4, 5, 5, 2, 4, 1, 70, 3, 64}) {
    const std::vector<detail::JpegJob> jobs(count, {bytes, *head, {.height = 208, .width = 240}});
    size_t seen = 0;
    EXPECT_TRUE(decoder_->decode(jobs, 3, [&](size_t first, std::span<const Tensor> pixels) {
      EXPECT_EQ(first, seen);
      seen += pixels.size();
      for (const auto& one : pixels) expect_equal(one, expected, std::to_string(count) + " files");
    })) << count;
    EXPECT_EQ(seen, count);
  }
}

// The caller's stream is late: memory is not written again before it has read the pixels.
TEST_F(DecodeJpegGpu, PixelsStayUntilTheyAreUsed) {
  at::manual_seed(9);
  std::vector<std::string> files;
  for (int i = 0; i < 24; ++i) files.push_back(encoded(300, 400));
  Tensor busy = at::rand({4096, 4096}, device_);
  std::vector<Tensor> copies;
  for (const auto& file : files) {
    const auto bytes = std::as_bytes(std::span(file));
    const std::vector<detail::JpegJob> jobs{{bytes, *detail::jpeg_head(bytes), {.height = 300, .width = 400}}};
    EXPECT_TRUE(decoder_->decode(jobs, 3, [&](size_t, std::span<const Tensor> pixels) {
      for (int i = 0; i < 4; ++i) busy = busy.mm(busy).mul_(1e-3);
      copies.push_back(pixels[0].clone());
    }));
  }
  for (size_t i = 0; i < files.size(); ++i)
    // In noise, some values of a plane have been seen one apart, which makes up to three in a colour.
    expect_equal(copies.at(i), decode_image(std::as_bytes(std::span(files[i]))), "file " + std::to_string(i), 3);
}

// A loader that goes in the middle of an epoch, while its threads decode, holds up neither itself nor the others.
TEST_F(DecodeJpegGpu, LoadersEndAnywhere) {
  const auto path = write_images(16);
  const Transform transform = T::RandomResizedCrop{.size = 64};
  auto stays = loader(path, transform, "gpu");
  for (int i = 0; i < 8; ++i) {
    const auto goes = loader(path, transform, "gpu");
    auto one = goes.begin(), other = stays.begin();
    for (int taken = 0; taken < i % 4; ++taken) ++one, ++other;
    EXPECT_TRUE(one != goes.end());
    EXPECT_TRUE(other != stays.end());
  }
  int64_t batches = 0;
  for (const auto& batch : stays) batches += batch["image"].is_cuda();
  EXPECT_EQ(batches, 4);
}

// More files than the hardware is given at a time: CUDA has some of them, and threads a part.
TEST_F(DecodeJpegGpu, AllBackendsHaveThePixelsOfTheCpu) {
  const auto path = write_images(40);
  const ImageDataset data(path, {.transform = T::RandomResizedCrop{.size = 64}});
  const auto all = [&](const char* decode, double on_cpu) {
    auto loader = make_loader(data, {.batch_size = 41, .num_workers = 4, .decode = decode, .decode_on_cpu = on_cpu})
                      .placed({.device = device_});
    std::vector<Tensor> images;
    for (int epoch = 0; epoch < 8; ++epoch)
      for (auto& batch : loader) images.push_back(batch["image"].cpu());
    return at::cat(images);
  };
  const Tensor expected = all("cpu", 0);
  for (const double on_cpu : {0.0, 0.3}) expect_equal(all("gpu", on_cpu), expected, "all epochs");
}

TEST_F(DecodeJpegGpu, NormalizedBatchesToo) {
  const auto path = write_images(8);
  const auto transform = T::compose({T::RandomResizedCrop{.size = 48}, T::RandomHorizontalFlip{}, T::Normalize{}});
  auto on_gpu = loader(path, transform, "gpu"), on_cpu = loader(path, transform, "cpu");
  const Batch one = *on_gpu.begin(), other = *on_cpu.begin();
  EXPECT_EQ(one["image"].scalar_type(), at::kFloat);
  EXPECT_TRUE(one["image"].cpu().equal(other["image"].cpu()));
}

TEST_F(DecodeJpegGpu, ABrokenFileHasTheErrorOfTheCpu) {
  const auto path = write_images(6);
  const auto broken = temporary_.path() / "1/3.jpg";
  const auto bytes = read_file(broken);
  const auto transform = T::compose({T::RandomResizedCrop{.size = 32}});
  // Cut off; cut off with an end that pretends otherwise; a head that promises other tables.
  std::ofstream(broken, std::ios::binary) << bytes.substr(0, bytes.size() / 3);
  const auto first_error = [&](const char* decode) {
    return error_of([&] {
      auto all = loader(path, transform, decode);
      for (auto& batch : all) (void)batch;
    });
  };
  const auto line = first_error("gpu");
  EXPECT_NE(line.find("3.jpg"), std::string::npos) << line;
  EXPECT_EQ(line, first_error("cpu"));
}

TEST_F(DecodeJpegGpu, KernelsHaveTheNumbersOfTheCpu) {
  at::manual_seed(5);
  std::vector<Tensor> here, there;
  std::vector<kernels::ResamplePlacement> places;
  for (int32_t i = 0; i < 24; ++i) {
    const int32_t height = 30 + 41 * (i % 7), width = 20 + 53 * (i % 5);
    here.push_back(at::randint(256, {height, width, 3}, at::kByte).permute({2, 0, 1}));
    there.push_back(here.back().to(device_));
    const bool turned = i % 8 >= 4;
    const int32_t up_height = turned ? width : height, up_width = turned ? height : width;
    places.push_back({.top = i % 3,
                      .left = i % 4,
                      .height = up_height - 5 - i % 3,
                      .width = up_width - 6 - i % 4,
                      .resized_height = 20 + 3 * i,
                      .resized_width = i % 6 == 0 ? up_width - 6 - i % 4 : 90 - 3 * i,
                      .window_top = i % 5 - 2,
                      .window_left = 3 - i % 7,
                      .flip_x = i % 2 == 0,
                      .flip_y = i % 3 == 0,
                      .orientation = 1 + i % 8});
  }
  for (const bool bicubic : {false, true})
    for (const auto dtype : {at::kByte, at::kFloat, at::kHalf, at::kBFloat16})
      for (const bool last : {false, true}) {
        const kernels::ResampleImages how{.height = 45,
                                          .width = 37,
                                          .dtype = dtype,
                                          .mean = {0.5, 0.4, 0.3},
                                          .std = {0.2},
                                          .channels_last = last,
                                          .fill = {1, 2, 3},
                                          .bicubic = bicubic};
        EXPECT_TRUE(
            kernels::resample_images(there, places, how).cpu().equal(kernels::resample_images(here, places, how)));
      }
  // Weights that do not fit into shared memory.
  const Tensor wide = at::randint(256, {3, 7, 9000}, at::kByte), wide_there = wide.to(device_);
  const kernels::ResamplePlacement small{.height = 7, .width = 9000, .resized_height = 7, .resized_width = 11};
  const kernels::ResampleImages how{.height = 7, .width = 11};
  EXPECT_TRUE(kernels::resample_images(std::span(&wide_there, 1), std::span(&small, 1), how)
                  .cpu()
                  .equal(kernels::resample_images(std::span(&wide, 1), std::span(&small, 1), how)));
}

TEST_F(DecodeJpegGpu, ColorsHaveTheNumbersOfTheCpu) {
  at::manual_seed(6);
  for (const auto& [half_height, half_width] : {std::pair(0, 0), std::pair(0, 1), std::pair(1, 1), std::pair(1, 0)})
    for (const int32_t width : {3, 41, 64}) {
      const int32_t height = 37, rows = half_height ? 19 : 37, columns = half_width ? (width + 1) / 2 : width;
      const Tensor planes[] = {at::randint(256, {height, width}, at::kByte),
                               at::randint(256, {rows, columns}, at::kByte),
                               at::randint(256, {rows, columns}, at::kByte)};
      const Tensor there[] = {planes[0].to(device_), planes[1].to(device_), planes[2].to(device_)};
      Tensor out = at::empty({height - 3, width - 1, 3}, at::kByte),
             out_there = at::empty_like(out, out.options().device(device_));
      const auto entry = [&, half_h = half_height, half_w = half_width](const Tensor* from, Tensor& to) {
        return kernels::JpegPlanesEntry{.luma = from[0].const_data_ptr<uint8_t>(),
                                        .blue = from[1].const_data_ptr<uint8_t>(),
                                        .red = from[2].const_data_ptr<uint8_t>(),
                                        .luma_pitch = width,
                                        .chroma_pitch = columns,
                                        .chroma_height = rows,
                                        .chroma_width = columns,
                                        .half_height = half_h,
                                        .half_width = half_w,
                                        .top = 2,
                                        .left = 1,
                                        .height = height - 3,
                                        .width = width - 1,
                                        .out = to.mutable_data_ptr<uint8_t>()};
      };
      const auto one = entry(planes, out), other = entry(there, out_there);
      kernels::jpeg_colors(std::span(&one, 1), at::kCPU);
      kernels::jpeg_colors(std::span(&other, 1), device_);
      EXPECT_TRUE(out_there.cpu().equal(out)) << half_height << half_width << " " << width;
    }
}

}  // namespace
}  // namespace levin
