// Steps that are planned and then done in one pass, against the same steps on pixels: the same bytes.
#include "levin/data/transforms/pixel_plan.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/data/transforms/transforms.h"
#include "levin/io/images/exif.h"
#include "levin/kernels/images/image_resample.h"
#include "levin/testing/error_of.h"

namespace levin::transforms {
namespace {

using levin::testing::error_of;

Tensor noise(int64_t channels, int64_t height, int64_t width) {
  return at::randint(256, {height, width, channels}, at::kByte).permute({2, 0, 1});
}

Tensor part_of(const Tensor& image, const ImageRegion& region) {
  return image.narrow(1, region.top, region.height).narrow(2, region.left, region.width);
}

void expect_planned(const Transform& transform, const Tensor& image, uint64_t seed) {
  ASSERT_EQ(transform.unplanned(), "");
  Random random(seed, 0, 0), same = random;
  const Tensor expected = transform(image, random);
  PixelPlan plan(image.size(1), image.size(2));
  transform.plan(plan, same);
  ASSERT_TRUE(plan.fits());
  EXPECT_EQ(random.bits(), same.bits());
  const Tensor part = part_of(image, plan.region());
  const auto place = plan.placement();
  const Tensor got = kernels::resample_images(std::span(&part, 1), std::span(&place, 1), plan.options());
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes().slice(1), expected.sizes());
  EXPECT_TRUE(got[0].equal(expected)) << (got[0].to(at::kFloat) - expected.to(at::kFloat)).abs().max();
}

TEST(PixelPlan, HasTheBytesOfTheSteps) {
  const std::vector<Transform> transforms = {
      {},
      RandomResizedCrop{.size = 24},
      RandomResizedCrop{.size = Size(20, 31), .interpolation = Interpolation::kBicubic},
      Resize{.size = 40},
      Resize{.size = Size(16, 50)},
      Resize{.size = 20, .max_size = 33},
      compose({Resize{.size = 32}, CenterCrop{.size = 28}}),
      compose({Resize{.size = 20}, CenterCrop{.size = 37}}),
      CenterCrop{.size = 30},
      RandomCrop{.size = 25},
      RandomCrop{.size = 32, .padding = 4, .fill = 7},
      RandomCrop{.size = 90, .pad_if_needed = true},
      compose({RandomCrop{.size = 30, .padding = 3}, RandomHorizontalFlip{}, RandomVerticalFlip{}}),
      compose({RandomHorizontalFlip{.p = 1}, RandomCrop{.size = 21}}),
      compose({RandomVerticalFlip{.p = 1}, RandomCrop{.size = 40, .padding = Padding(1, 2, 3, 4)}}),
      compose({CenterCrop{.size = 36}, Resize{.size = 17}, RandomHorizontalFlip{}}),
      compose({RandomResizedCrop{.size = 24}, RandomHorizontalFlip{}, Normalize{}}),
      compose({RandomResizedCrop{.size = 24}, ToTensor{}, Normalize{.mean = {0.5}, .std = {0.25}}}),
      compose({Resize{.size = 24}, ToDtype{.dtype = at::kFloat, .scale = true}, CenterCrop{.size = 20}}),
  };
  uint64_t seed = 0;
  for (const auto& transform : transforms)
    for (const auto& [height, width] : {std::pair(50, 41), std::pair(37, 120), std::pair(301, 44), std::pair(40, 40)}) {
      SCOPED_TRACE(::testing::Message() << "transform of seed " << seed << ", " << height << " x " << width);
      expect_planned(transform, noise(3, height, width), ++seed);
    }
  expect_planned(
      compose({RandomResizedCrop{.size = 24}, RandomHorizontalFlip{}, Normalize{.mean = {0.5}, .std = {0.5}}}),
      noise(1, 50, 60), 5);
}

TEST(PixelPlan, TurnsImagesUpright) {
  const Tensor stored = noise(3, 22, 40);
  const Tensor packed = stored.permute({1, 2, 0}).contiguous();
  const Transform transform = compose({RandomResizedCrop{.size = 18}, RandomHorizontalFlip{}});
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const bool swaps = levin::detail::swaps_sides(orientation);
    Tensor upright = at::empty({swaps ? 40 : 22, swaps ? 22 : 40, 3}, at::kByte);
    levin::detail::turn_upright(packed.const_data_ptr<uint8_t>(), 22, 40, 3, orientation,
                                upright.mutable_data_ptr<uint8_t>());
    Random random(3, 1, 2), same = random;
    const Tensor expected = transform(upright.permute({2, 0, 1}), random);
    PixelPlan plan(upright.size(0), upright.size(1));
    transform.plan(plan, same);
    const Tensor part = part_of(stored, levin::detail::stored_region(plan.region(), orientation, 22, 40));
    const auto place = plan.placement(orientation);
    EXPECT_TRUE(kernels::resample_images(std::span(&part, 1), std::span(&place, 1), plan.options())[0].equal(expected))
        << orientation;
  }
}

TEST(PixelPlan, ImagesOfUnequalSizesAreOneBatch) {
  const std::vector<Tensor> images = {noise(3, 50, 41), noise(3, 20, 90), noise(3, 24, 24)};
  std::vector<kernels::ResamplePlacement> places;
  for (const auto& image : images)
    places.push_back({.height = static_cast<int32_t>(image.size(1)),
                      .width = static_cast<int32_t>(image.size(2)),
                      .resized_height = 24,
                      .resized_width = 24});
  for (const auto dtype : {at::kByte, at::kFloat, at::kHalf, at::kBFloat16})
    for (const bool last : {false, true}) {
      const Tensor batch =
          kernels::resample_images(images, places, {.height = 24, .width = 24, .dtype = dtype, .channels_last = last});
      EXPECT_EQ(batch.is_contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous), true);
      for (size_t i = 0; i < images.size(); ++i) {
        const Tensor bytes = resize(images[i], 24, 24);
        const Tensor expected = dtype == at::kByte ? bytes : to_dtype(bytes, at::kFloat, true).to(dtype);
        EXPECT_TRUE(batch[static_cast<int64_t>(i)].equal(expected));
      }
    }
}

TEST(PixelPlan, NamesTheStepThatNeedsPixels) {
  EXPECT_EQ(compose({RandomResizedCrop{.size = 24}, ColorJitter{}}).unplanned(), "ColorJitter");
  EXPECT_EQ(Transform(RandomErasing{}).unplanned(), "RandomErasing");
  EXPECT_EQ(Transform([](const Tensor& image, Random&) { return image; }).unplanned(), "a function of the program");
  EXPECT_NE(Transform(Resize{.size = 24, .antialias = false}).unplanned().find("antialias"), std::string::npos);
  EXPECT_NE(Transform(RandomCrop{.size = 24, .padding = 4, .padding_mode = PaddingMode::kReflect}).unplanned(), "");
  PixelPlan plan(10, 10);
  Random random(0, 0, 0);
  EXPECT_NE(error_of([&] { Transform(ColorJitter{}).plan(plan, random); }).find("ColorJitter"), std::string::npos);
}

TEST(PixelPlan, OnePassResizesOnce) {
  Random random(0, 0, 0);
  PixelPlan twice(50, 60);
  compose({Resize{.size = 40}, RandomResizedCrop{.size = 20}}).plan(twice, random);
  EXPECT_FALSE(twice.fits());
  PixelPlan bordered(50, 60);
  compose({RandomCrop{.size = 80, .padding = 40}, Resize{.size = 20}}).plan(bordered, random);
  EXPECT_FALSE(bordered.fits());
  PixelPlan floats(50, 60);
  compose({ToTensor{}, Resize{.size = 20}}).plan(floats, random);
  EXPECT_FALSE(floats.fits());
}

TEST(ResampleImages, RefusesWhatItCannotDo) {
  const Tensor image = noise(3, 10, 12);
  const auto run = [&](const Tensor& one, kernels::ResamplePlacement place, const kernels::ResampleImages& options) {
    return error_of([&] { kernels::resample_images(std::span(&one, 1), std::span(&place, 1), options); });
  };
  const kernels::ResamplePlacement whole{.height = 10, .width = 12, .resized_height = 5, .resized_width = 5};
  EXPECT_EQ(run(image, whole, {.height = 5, .width = 5}), "no error");
  auto beyond = whole;
  beyond.top = 1;
  EXPECT_NE(run(image, beyond, {.height = 5, .width = 5}).find("not within the image"), std::string::npos);
  EXPECT_NE(run(image, whole, {.height = 5, .width = 5, .dtype = at::kDouble}).find("Double"), std::string::npos);
  EXPECT_NE(run(noise(4, 10, 12), whole, {.height = 5, .width = 5}).find("1 or 3 channels"), std::string::npos);
  EXPECT_NE(run(image, whole, {.height = 5, .width = 5, .mean = {1, 2}}).find("mean"), std::string::npos);
}

}  // namespace
}  // namespace levin::transforms
