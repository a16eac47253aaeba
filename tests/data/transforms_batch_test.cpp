// Whole batches on the CPU: against the steps for one image, and against torchvision's formulas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/data/transforms/transforms.h"
#include "levin/kernels/images/image_batch.h"
#include "levin/testing/error_of.h"

namespace levin::transforms {
namespace {

using testing::error_of;

const std::vector<double> kMean = {0.4914, 0.4822, 0.4465}, kStd = {0.247, 0.243, 0.261};

Tensor some_images(int64_t batch, int64_t height, int64_t width, bool channels_last) {
  return at::randint(256, {batch, 3, height, width}, at::kByte)
      .contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

TEST(BatchTransforms, NormalizeEqualsTheStepsOfOneImage) {
  for (const bool in_last : {false, true})
    for (const bool out_last : {false, true})
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Tensor images = some_images(5, 9, 7, in_last);
        Batch batch{{"image", images}};
        Random random(6, 0, 0), same = random;
        BatchNormalize{.mean = kMean, .std = kStd, .dtype = dtype, .channels_last = out_last, .flip_p = 0.5}(batch,
                                                                                                             random);
        const Tensor found = batch["image"];
        EXPECT_EQ(found.scalar_type(), dtype);
        EXPECT_TRUE(found.is_contiguous(out_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
        for (int64_t i = 0; i < 5; ++i) {
          const Tensor image = RandomHorizontalFlip{}(images[i], same);
          EXPECT_TRUE(found[i].equal(normalize(image, kMean, kStd).to(dtype))) << i;
        }
      }
}

TEST(BatchTransforms, CropWithABorderEqualsTheStepsOfOneImage) {
  const Tensor images = some_images(40, 10, 12, true);
  for (const bool out_last : {false, true}) {
    Batch batch{{"pixels", images}};
    Random random(6, 0, 0), same = random;
    BatchNormalize{.mean = kMean,
                   .std = kStd,
                   .channels_last = out_last,
                   .flip_p = 0.5,
                   .crop = {10, 11},
                   .padding = 4,
                   .fill = 33,
                   .image = "pixels"}(batch, random);
    for (int64_t i = 0; i < images.size(0); ++i) {
      Tensor image = RandomCrop{.size = {10, 11}, .padding = 4, .fill = 33}(images[i], same);
      image = RandomHorizontalFlip{}(image, same);
      EXPECT_TRUE(batch["pixels"][i].equal(normalize(image, kMean, kStd))) << i;
    }
  }
}

TEST(BatchTransforms, CutsFarOutsideAreAllFill) {
  const Tensor images = some_images(2, 4, 4, false);
  const std::vector<kernels::ImagePlacement> places = {{-9, 0, 0}, {1, 6, 1}};
  const Tensor found = kernels::normalize_images(images, {.fill = 255}, places);
  EXPECT_TRUE(found.equal(at::ones({2, 3, 4, 4})));
  EXPECT_TRUE(kernels::normalize_images(images.slice(0, 0, 0), {}).equal(at::empty({0, 3, 4, 4})));
}

TEST(BatchTransforms, MixUpIsTheFormula) {
  const Tensor images = at::rand({4, 3, 5, 6}), labels = at::tensor({2, 0, 1, 2}, at::kLong);
  Batch batch{{"image", images}, {"label", labels}};
  Random random(9, 0, 0), same = random;
  MixUp{.alpha = 0.4, .num_classes = 3}(batch, random);
  const double lam = same.beta(0.4, 0.4);
  EXPECT_TRUE(at::allclose(batch["image"], images * lam + images.roll(1, 0) * (1 - lam)));
  const Tensor hot = at::one_hot(labels, 3).to(at::kFloat);
  EXPECT_TRUE(at::allclose(batch["label"], hot * lam + hot.roll(1, 0) * (1 - lam)));
  // Probabilities are mixed as they are.
  EXPECT_TRUE(at::allclose(mix_labels(hot, lam, 0), batch["label"]));
  EXPECT_THROW(mix_labels(labels, 0.5, 0), Error);
  EXPECT_THROW(mix_labels(hot, 0.5, 4), Error);
  Batch bytes{{"image", some_images(2, 3, 3, false)}, {"label", at::zeros({2}, at::kLong)}};
  EXPECT_THROW((MixUp{.num_classes = 2}(bytes, random)), Error);
}

TEST(BatchTransforms, CutMixSharesLabelsByArea) {
  const Tensor images = at::arange(3).to(at::kFloat).view({3, 1, 1, 1}).expand({3, 3, 8, 10}).contiguous();
  const Tensor labels = at::arange(3);
  for (uint64_t i = 0; i < 50; ++i) {
    Batch batch{{"image", images}, {"label", labels}};
    Random random(9, 0, i);
    CutMix{.num_classes = 3}(batch, random);
    // Image 1 holds pixels of 1 and of 0, as many as its label says.
    const double kept = batch["image"][1].mean().item<double>();
    EXPECT_NEAR(batch["label"][1][1].item<double>(), kept, 1e-6);
    EXPECT_NEAR(batch["label"][1][0].item<double>(), 1 - kept, 1e-6);
    EXPECT_NEAR(batch["label"].sum().item<double>(), 3, 1e-5);
  }
}

TEST(BatchTransforms, ErasingEqualsTheStepOfOneImage) {
  const Tensor images = at::rand({30, 3, 12, 14});
  Batch batch{{"image", images.clone()}};
  Random random(9, 0, 0), same = random;
  BatchRandomErasing{.value = {0.1, 0.2, 0.3}}(batch, random);
  const RandomErasing step{.value = {0.1, 0.2, 0.3}};
  for (int64_t i = 0; i < 30; ++i) EXPECT_TRUE(batch["image"][i].equal(step(images[i], same))) << i;
}

TEST(BatchTransforms, ComposeRunsInOrder) {
  const BatchTransform all = compose_batch(
      {BatchNormalize{.flip_p = 0.5}, MixUp{.num_classes = 4}, [](Batch& b, Random&) { b["image"].add_(1); }});
  Batch batch{{"image", some_images(4, 6, 6, true)}, {"label", at::arange(4)}};
  Random random(1, 0, 0);
  all(batch, random);
  EXPECT_EQ(batch["label"].size(1), 4);
  EXPECT_EQ(batch["image"].scalar_type(), at::kFloat);
}

TEST(BatchTransforms, ErrorsNameWhatIsWrong) {
  Random random(1, 0, 0);
  const auto line = [&](const BatchTransform& step, Batch batch) -> std::string {
    return error_of([&] { step(batch, random); });
  };
  const Tensor images = some_images(2, 4, 4, false);
  EXPECT_THAT(line(BatchNormalize{.crop = 9}, {{"image", images}}), ::testing::HasSubstr("9 x 9 is larger"));
  EXPECT_THAT(line(BatchNormalize{.padding = 2}, {{"image", images}}), ::testing::HasSubstr("needs a crop"));
  EXPECT_THAT(line(BatchNormalize{.mean = {1, 2}}, {{"image", images}}), ::testing::HasSubstr("mean has 2 values"));
  EXPECT_THAT(line(BatchNormalize{.dtype = at::kInt}, {{"image", images}}), ::testing::HasSubstr("BFloat16"));
  EXPECT_THAT(line(BatchNormalize{}, {{"image", images.to(at::kFloat)}}), ::testing::HasSubstr("uint8 [B, C, H, W]"));
  EXPECT_THAT(line(BatchNormalize{}, {{"image", images[0]}}), ::testing::HasSubstr("\"image\" must be [B, C, H, W]"));
  EXPECT_THAT(line(BatchNormalize{.image = "pixels"}, {{"image", images}}), ::testing::HasSubstr("pixels"));
}

}  // namespace
}  // namespace levin::transforms
