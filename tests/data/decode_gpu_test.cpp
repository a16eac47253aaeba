// LoaderOptions::decode without a GPU: a decoder that stands in for one, and what happens where there is none.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/data/decode_gpu/gpu_images_work.h"
#include "levin/data/image_dataset.h"
#include "levin/data/loader.h"
#include "levin/data/stages.h"
#include "levin/data/transforms/transforms.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
namespace T = transforms;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

/// Takes what a GPU would, in parts of three files, and lets libjpeg do it.
class FakeDecoder final : public detail::GpuJpegDecoder {
 public:
  bool fails = false;
  std::string name() const override { return "fake"; }
  bool takes(std::span<const std::byte>, const detail::JpegHead& head) const override {
    return detail::is_common_jpeg(head);
  }
  bool decode(std::span<const detail::JpegJob> jobs, int channels, const Use& use) override {
    if (fails) return false;
    for (size_t first = 0; first < jobs.size(); first += 3) {
      std::vector<Tensor> pixels;
      for (size_t i = first; i < std::min(first + 3, jobs.size()); ++i)
        pixels.push_back(decode_image(
            jobs[i].file, {.mode = channels == 1 ? ImageMode::kGray : ImageMode::kRgb, .region = jobs[i].region}));
      use(first, pixels);
      decoded_ += static_cast<int64_t>(pixels.size());
    }
    return true;
  }
};

class DecodeGpu : public testing::FolderTest {
 protected:
  /// JPEG files of unequal sizes, and a PNG file among them.
  std::string write_images(int64_t count, bool png = true) {
    at::manual_seed(1);
    for (int64_t i = 0; i < count; ++i) {
      const auto cls = folder_ / "images" / std::to_string(i % 2);
      fs::create_directories(cls);
      const Tensor small = at::rand({1, 3, 5, 6}) * 255;
      const std::array<int64_t, 2> size = {40 + i, 70 - 3 * i};
      write_image(cls / (std::to_string(i) + (png && i == 3 ? ".png" : ".jpg")),
                  at::upsample_bilinear2d(small, size, false)[0].to(at::kByte));
    }
    return (folder_ / "images").string();
  }
  fs::path file(int64_t i) const { return folder_ / "images" / std::to_string(i % 2) / (std::to_string(i) + ".jpg"); }

  std::optional<Batch> make(const ImageDataset& data, bool skip = false, double on_cpu = 0) {
    std::vector<int64_t> indices(static_cast<size_t>(data.size()));
    std::iota(indices.begin(), indices.end(), 0);
    bad_->skip = skip;
    detail::GpuImagesWork work(
        {.seed = 9, .epoch = 2}, indices, bad_, std::make_shared<detail::BatchMemory>(false, 8), decoder_,
        [&](int64_t index, Random& random, const detail::GpuJpegDecoder* decoder) {
          return data.get_encoded(index, random, decoder);
        },
        on_cpu);
    for (int64_t i = 0; i < work.samples(); ++i) work.make(i);
    work.finish();
    return work.take();
  }
  Batch loaded(const ImageDataset& data, bool skip = false) {
    auto loader = make_loader(
        data, {.batch_size = data.size(), .seed = 9, .num_workers = 0, .bad_samples = skip ? "skip" : "stop"});
    loader.set_epoch(2);
    return *loader.begin();
  }
  void expect_same(const Batch& one, const Batch& other, bool in_memory_too = true) {
    for (const char* name : {"image", "label"}) {
      ASSERT_EQ(one[name].sizes(), other[name].sizes());
      if (in_memory_too) {
        EXPECT_EQ(one[name].strides(), other[name].strides()) << name;
      }
      EXPECT_TRUE(one[name].equal(other[name])) << name;
    }
  }

  std::shared_ptr<FakeDecoder> decoder_ = std::make_shared<FakeDecoder>();
  std::shared_ptr<detail::BadSamples> bad_ = std::make_shared<detail::BadSamples>();
};

TEST_F(DecodeGpu, BatchesAreThoseOfTheCpu) {
  const auto path = write_images(8);
  for (const auto& transform :
       {T::compose({T::RandomResizedCrop{.size = 24}, T::RandomHorizontalFlip{}, T::Normalize{}}),
        T::compose({T::RandomResizedCrop{.size = 24}, T::RandomHorizontalFlip{}}),
        T::compose({T::Resize{.size = 30}, T::CenterCrop{.size = 24}, T::Normalize{.channels_last = true}}),
        Transform(T::RandomCrop{.size = 60, .padding = 12, .fill = 9})}) {
    for (const auto mode : {ImageMode::kRgb, ImageMode::kGray}) {
      const bool grey = mode == ImageMode::kGray;
      const auto whole = grey ? T::compose({T::RandomResizedCrop{.size = 24}}) : transform;
      const ImageDataset data(path, {.transform = whole, .mode = mode});
      ASSERT_EQ(data.why_not_gpu(), "");
      const auto before = decoder_->decoded();
      expect_same(*make(data), loaded(data));
      EXPECT_EQ(decoder_->decoded() - before, 7);  // not the PNG
    }
  }
}

TEST_F(DecodeGpu, APartOfTheImagesIsLeftToTheThreads) {
  const ImageDataset data(write_images(8, false),
                          {.transform = T::compose({T::RandomResizedCrop{.size = 24}, T::Normalize{}})});
  for (const auto& [share, decoded] : {std::pair(0.25, 6), std::pair(0.5, 4), std::pair(0.7, 3), std::pair(1.0, 0)}) {
    const auto before = decoder_->decoded();
    expect_same(*make(data, false, share), loaded(data), /*in_memory_too=*/share < 1);
    EXPECT_EQ(decoder_->decoded() - before, decoded) << share;
  }
  EXPECT_THAT(error_of([&] { make_loader(data, {.decode_on_cpu = 1.5}); }), HasSubstr("decode_on_cpu 1.5"));
}

TEST_F(DecodeGpu, ABrokenFileHasTheErrorOfTheCpu) {
  const auto path = write_images(6, false);
  const auto bytes = read_file(file(4));
  std::ofstream(file(4), std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  const ImageDataset data(path, {.transform = T::RandomResizedCrop{.size = 16}});
  const auto line = error_of([&] { make(data); });
  EXPECT_EQ(line, error_of([&] { loaded(data); }));
  EXPECT_THAT(line, AllOf(HasSubstr("4.jpg"), HasSubstr("ends")));
  expect_same(*make(data, true), loaded(data, true), false);
}

TEST_F(DecodeGpu, WhatTheDecoderFailsAtTheCpuDoes) {
  const ImageDataset data(write_images(6), {.transform = T::RandomResizedCrop{.size = 16}});
  decoder_->fails = true;
  expect_same(*make(data), loaded(data));
  EXPECT_EQ(decoder_->decoded(), 0);
}

TEST_F(DecodeGpu, ImagesOfUnequalSizesAreTheErrorOfTheCpu) {
  const ImageDataset data(write_images(3, false));
  EXPECT_EQ(error_of([&] { make(data); }), error_of([&] { loaded(data); }));
}

TEST_F(DecodeGpu, StepsInAnOrderOfTheirOwnAreDoneByTheCpu) {
  const ImageDataset data(write_images(4, false),
                          {.transform = T::compose({T::Resize{.size = 32}, T::Resize{.size = T::Size(9, 9)}})});
  expect_same(*make(data), loaded(data));
  EXPECT_EQ(decoder_->decoded(), 0);
}

TEST_F(DecodeGpu, ASubsetLeavesItsImagesToTheLoader) {
  const ImageDataset data(write_images(4));
  static_assert(detail::EncodedDataset<stages::Subset<ImageDataset>>);
  static_assert(!detail::EncodedDataset<TensorDataset>);
}

TEST_F(DecodeGpu, WithoutAGpuTheCpuDecodes) {
  const ImageDataset data(write_images(4), {.transform = T::RandomResizedCrop{.size = 16}});
  for (const char* mode : {"gpu", "auto"}) {
    auto loader = make_loader(data, {.batch_size = 4, .num_workers = 0, .decode = mode});
    auto other = make_loader(data, {.batch_size = 4, .num_workers = 0});
    expect_same(*loader.begin(), *other.begin());
    EXPECT_EQ(loader.stats().decoded_on_gpu, 0);
  }
}

TEST_F(DecodeGpu, RefusesWhatCannotBeDone) {
  const auto path = write_images(4);
  const auto error = [](const auto& data, const char* mode) {
    return error_of([&] { make_loader(data, {.batch_size = 4, .num_workers = 0, .decode = mode}).begin(); });
  };
  const ImageDataset jittered(path, {.transform = T::compose({T::RandomResizedCrop{.size = 16}, T::ColorJitter{}})});
  EXPECT_THAT(error(jittered, "gpu"), AllOf(HasSubstr("decode"), HasSubstr("ColorJitter")));
  EXPECT_EQ(error(jittered, "auto"), "no error");
  EXPECT_THAT(error(ImageDataset(path, {.mode = ImageMode::kRgba}), "gpu"), HasSubstr("alpha"));
  EXPECT_THAT(error(TensorDataset({{"image", at::zeros({4, 3})}}), "gpu"), HasSubstr("ImageDataset"));
  EXPECT_THAT(error(jittered, "gpus"), AllOf(HasSubstr("decode"), HasSubstr("gpu")));
}

}  // namespace
}  // namespace levin
