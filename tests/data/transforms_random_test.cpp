// What is drawn, how often and in which order; and how steps are put together.
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/data/transforms/transforms.h"
#include "levin/io/images/image.h"

namespace levin::transforms {
namespace {

Tensor gradient(int64_t height, int64_t width) {
  return at::arange(height * width * 3).remainder(251).to(at::kByte).view({height, width, 3}).permute({2, 0, 1});
}

// A step that looks at nothing, to see what is left of the numbers.
uint32_t next_bits(const Random& random) {
  Random copy = random;
  return copy.bits();
}

constexpr int kTimes = 4000;

template <class F>
int count(F&& happens) {
  int result = 0;
  for (int i = 0; i < kTimes; ++i) {
    Random random(11, 2, static_cast<uint64_t>(i));
    result += happens(random) ? 1 : 0;
  }
  return result;
}

// Within five standard deviations.
void expect_rate(int counted, double p) {
  EXPECT_NEAR(counted, kTimes * p, 5 * std::sqrt(kTimes * p * (1 - p)) + 1e-9);
}

TEST(TransformDraws, FlipsComeAsOftenAsAsked) {
  const Tensor image = gradient(2, 3), flipped = horizontal_flip(image), turned = vertical_flip(image);
  for (const double p : {0.0, 0.25, 0.5, 1.0}) {
    expect_rate(count([&](Random& r) { return RandomHorizontalFlip{p}(image, r).equal(flipped); }), p);
    expect_rate(count([&](Random& r) { return RandomVerticalFlip{p}(image, r).equal(turned); }), p);
  }
  expect_rate(count([&](Random& r) { return RandomInvert{0.3}(image, r).equal(invert(image)); }), 0.3);
  expect_rate(count([&](Random& r) { return !RandomGrayscale{}(image, r).equal(image); }), 0.1);
}

TEST(TransformDraws, ResizedCropsHaveTheAskedAreasAndProportions) {
  const RandomResizedCrop step{.size = 8};
  const int64_t height = 375, width = 500;
  double area = 0, log_ratio = 0;
  int tops = 0;
  for (int i = 0; i < kTimes; ++i) {
    Random random(5, 0, static_cast<uint64_t>(i));
    const ImageRegion r = *step.crop(height, width, random);
    ASSERT_TRUE(r.top >= 0 && r.left >= 0 && r.height > 0 && r.width > 0);
    ASSERT_LE(r.top + r.height, height);
    ASSERT_LE(r.left + r.width, width);
    const double part = static_cast<double>(r.height * r.width) / static_cast<double>(height * width);
    const double ratio = static_cast<double>(r.width) / static_cast<double>(r.height);
    EXPECT_GT(part, 0.075);
    EXPECT_TRUE(ratio > 0.74 && ratio < 1.35) << ratio;
    area += part;
    log_ratio += std::log(ratio);
    tops += r.top * 2 > height - r.height;
  }
  // What torchvision's step gives on average: large parts often do not fit, and tall ones less than wide ones.
  EXPECT_NEAR(area / kTimes, 0.434, 0.015);
  EXPECT_NEAR(log_ratio / kTimes, 0.0315, 0.012);
  EXPECT_NEAR(tops, kTimes / 2, 250);
}

TEST(TransformDraws, ResizedCropFallsBackToTheMiddle) {
  const RandomResizedCrop step{.size = 8, .scale = {1, 1}};
  Random random(1, 1, 1);
  const ImageRegion wide = *step.crop(100, 1000, random);
  EXPECT_EQ(std::tuple(wide.top, wide.left, wide.height, wide.width), std::tuple(0, 433, 100, 133));
  const ImageRegion tall = *step.crop(1000, 100, random);
  EXPECT_EQ(std::tuple(tall.top, tall.left, tall.height, tall.width), std::tuple(433, 0, 133, 100));
}

TEST(TransformDraws, RandomCropReachesEveryPlaceEvenly) {
  const Tensor image = gradient(10, 9);
  const RandomCrop step{.size = {8, 8}};
  std::map<std::pair<int64_t, int64_t>, int> places;
  for (int i = 0; i < kTimes; ++i) {
    Random random(8, 0, static_cast<uint64_t>(i));
    const ImageRegion r = *step.crop(10, 9, random);
    ++places[{r.top, r.left}];
  }
  EXPECT_EQ(places.size(), 6u);
  for (const auto& [place, times] : places) EXPECT_NEAR(times, kTimes / 6, 120);
  Random random(0, 0, 0);
  EXPECT_THROW((RandomCrop{.size = 20}(image, random)), Error);
}

TEST(TransformDraws, RandomCropPadsAndCutsAsPadThenCrop) {
  const Tensor image = gradient(6, 5);
  for (int i = 0; i < 200; ++i) {
    for (const RandomCrop& step :
         {RandomCrop{.size = {6, 5}, .padding = 2, .fill = 7, .padding_mode = PaddingMode::kReflect},
          RandomCrop{.size = {9, 4}, .pad_if_needed = true, .fill = {1, 2, 3}}}) {
      Random random(8, 0, static_cast<uint64_t>(i)), same = random;
      const Tensor found = step(image, random);
      const bool needed = step.pad_if_needed;
      const Tensor padded =
          needed ? pad(image, Padding(0, 3, 0, 3), step.fill) : pad(image, Padding(2), 7, PaddingMode::kReflect);
      const int64_t top = same.integer(0, padded.size(1) - step.size.height);
      const int64_t left = same.integer(0, padded.size(2) - step.size.width);
      EXPECT_TRUE(found.equal(crop(padded, {top, left, step.size.height, step.size.width})));
      EXPECT_EQ(next_bits(random), next_bits(same));
    }
  }
}

TEST(TransformDraws, JitterUsesEachFactorOnceInAnyOrder) {
  const Tensor image = gradient(4, 5);
  // Two steps that do not commute tell the order.
  const ColorJitter step{.brightness = {1.75, 1.75}, .contrast = {0.25, 0.25}};
  const Tensor first = adjust_contrast(adjust_brightness(image, 1.75), 0.25);
  const Tensor second = adjust_brightness(adjust_contrast(image, 0.25), 1.75);
  ASSERT_FALSE(first.equal(second));
  int others = 0;
  expect_rate(count([&](Random& r) {
                const Tensor found = step(image, r);
                others += !found.equal(first) && !found.equal(second);
                return found.equal(first);
              }),
              0.5);
  EXPECT_EQ(others, 0);
  Random random(0, 0, 0);
  EXPECT_TRUE(ColorJitter{}(image, random).equal(image));
  EXPECT_EQ(Jitter(0.4).range(1)->low, 0.6);
  EXPECT_EQ(Jitter(2.0).range(1)->low, 0);
  EXPECT_EQ(Jitter(0.1).range(0)->low, -0.1);
  EXPECT_FALSE(Jitter(0).range(1));
  EXPECT_THROW(Jitter(0.6).range(0), Error);
  EXPECT_THROW(Jitter(1.2, 0.8).range(1), Error);
}

TEST(TransformDraws, ErasingTakesTheAskedArea) {
  const Tensor image = at::ones({3, 40, 50});
  double erased = 0;
  const int hits = count([&](Random& r) {
    const Tensor found = RandomErasing{.scale = {0.1, 0.2}}(image, r);
    const double part = 1 - found.mean().item<double>();
    erased += part;
    return part > 0;
  });
  expect_rate(hits, 0.5);
  EXPECT_NEAR(erased / hits, 0.15, 0.01);
  Random random(4, 0, 0);
  const Tensor noisy = RandomErasing{.p = 1, .random_value = true}(image, random);
  EXPECT_GT(noisy.std().item<double>(), 0.05);
  EXPECT_TRUE(image.equal(at::ones({3, 40, 50})));
}

TEST(TransformDraws, AugmentationsAreChosenEvenly) {
  // Nothing to see in a grey image of one value but where it is moved, cut or changed in brightness.
  const Tensor image = gradient(16, 16);
  std::map<std::vector<uint8_t>, int> results;
  for (int i = 0; i < kTimes; ++i) {
    Random random(21, 0, static_cast<uint64_t>(i));
    const Tensor found = RandAugment{.num_ops = 1}(image, random).permute({1, 2, 0}).contiguous();
    const auto* data = found.const_data_ptr<uint8_t>();
    ++results[{data, data + found.numel()}];
  }
  // 14 operations of which 9 have a sign.
  EXPECT_LE(results.size(), 23u);
  EXPECT_GE(results.size(), 18u);
  for (const auto& [bytes, times] : results) EXPECT_GT(times, kTimes / 28 - 80);
  for (const char* policy : {"imagenet", "cifar10", "svhn"}) {
    const int changed = count([&](Random& r) { return !AutoAugment{.policy = policy}(image, r).equal(image); });
    EXPECT_GT(changed, kTimes / 2) << policy;
  }
  EXPECT_GT(count([&](Random& r) { return !TrivialAugmentWide{}(image, r).equal(image); }), kTimes / 2);
  Random random(0, 0, 0);
  EXPECT_THROW((AutoAugment{.policy = "imagenets"}(image, random)), Error);
  EXPECT_THROW((RandAugment{.magnitude = 31}(image, random)), Error);
}

TEST(TransformDraws, MagnitudesAreTorchvisions) {
  const Tensor image = gradient(32, 32);
  // The ninth of 31 bins: 0.3 * 9 / 30, 30 degrees * 9 / 30, 150 / 331 * 32 * 9 / 30 pixels, 8 - 4 * 9 / 30 bits.
  const std::vector<Tensor> expected = {
      augment(image, "ShearX", 0.09),  augment(image, "ShearY", -0.09), augment(image, "Rotate", 9),
      augment(image, "TranslateX", 4), augment(image, "Posterize", 7),  augment(image, "Solarize", 0.7),
      adjust_saturation(image, 1.27),  adjust_contrast(image, 0.73),    adjust_sharpness(image, 1.27)};
  std::vector<int> seen(expected.size());
  for (int i = 0; i < 600; ++i) {
    Random random(2, 0, static_cast<uint64_t>(i));
    const Tensor found = RandAugment{.num_ops = 1}(image, random);
    for (size_t k = 0; k < expected.size(); ++k) seen[k] += found.equal(expected[k]);
  }
  EXPECT_THAT(seen, ::testing::Each(::testing::Gt(0)));
}

TEST(TransformDraws, GeometryStaysInItsRanges) {
  const Tensor image = gradient(20, 20);
  for (int i = 0; i < 50; ++i) {
    Random random(2, 0, static_cast<uint64_t>(i));
    EXPECT_EQ((RandomRotation{.degrees = 30}(image, random)).sizes(), image.sizes());
    EXPECT_GE((RandomRotation{.degrees = {10, 80}, .expand = true}(image, random)).size(1), 20);
    EXPECT_EQ((RandomPerspective{.p = 1}(image, random)).sizes(), image.sizes());
    const Tensor moved = RandomAffine{.degrees = 0, .translate = Point{0.1, 0}}(image, random);
    int matches = 0;
    for (int64_t x = -2; x <= 2; ++x) matches += moved.equal(affine(image, {.translate = {static_cast<double>(x), 0}}));
    EXPECT_EQ(matches, 1);
    EXPECT_EQ(
        (RandomAffine{.degrees = 5, .scale = Range{0.8, 1.2}, .shear = 10, .shear_y = Degrees(2, 3)}(image, random))
            .sizes(),
        image.sizes());
  }
}

TEST(TransformSteps, ComposeRunsInOrderAndEmptyChangesNothing) {
  const Tensor image = gradient(12, 10);
  Random random(1, 0, 0), same = random;
  const Transform all =
      compose({RandomCrop{.size = 8}, Transform(), RandomHorizontalFlip{}, Resize{.size = {4, 4}}, Normalize{}});
  Tensor expected = RandomHorizontalFlip{}(RandomCrop{.size = 8}(image, same), same);
  expected = normalize(resize(expected, 4, 4), {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  EXPECT_TRUE(all(image, random).equal(expected));
  EXPECT_TRUE(compose({}).empty());
  EXPECT_TRUE(compose({Transform()}).empty());
  // Any callable is a step.
  const Transform brighter = [](const Tensor& i, Random&) { return i + 1; };
  EXPECT_TRUE(compose({brighter, brighter})(image, random).equal(image + 2));
}

TEST(TransformSteps, ApplyAndChoiceFollowTheirOdds) {
  const Tensor image = gradient(3, 3);
  const Transform plus = [](const Tensor& i, Random&) { return i + 1; };
  const Transform minus = [](const Tensor& i, Random&) { return i - 1; };
  expect_rate(count([&](Random& r) { return RandomApply{{plus, plus}, 0.3}(image, r).equal(image + 2); }), 0.3);
  expect_rate(count([&](Random& r) { return RandomChoice{{plus, minus}}(image, r).equal(image + 1); }), 0.5);
  expect_rate(count([&](Random& r) { return RandomChoice{{plus, minus}, {3, 1}}(image, r).equal(image + 1); }), 0.75);
  Random random(0, 0, 0);
  EXPECT_THROW(RandomChoice{}(image, random), Error);
  EXPECT_THROW((RandomChoice{{plus}, {1, 2}}(image, random)), Error);
}

TEST(TransformSteps, CropFirstIsTheSameAsTheWholeStep) {
  static_assert(CroppingStep<RandomResizedCrop> && CroppingStep<CenterCrop> && CroppingStep<RandomCrop>);
  static_assert(!CroppingStep<Resize> && ImageStep<Resize>);
  const Tensor image = gradient(30, 40);
  const auto check = [&](const auto& step) {
    for (int i = 0; i < 20; ++i) {
      Random random(3, 0, static_cast<uint64_t>(i)), same = random;
      const auto region = step.crop(30, 40, random);
      const Tensor found = step.after_crop(region ? crop(image, *region) : image, random);
      EXPECT_TRUE(found.equal(step(image, same)));
      EXPECT_EQ(next_bits(random), next_bits(same));
    }
  };
  check(RandomResizedCrop{.size = 7});
  check(CenterCrop{.size = 11});
  check(CenterCrop{.size = {35, 11}});
  check(RandomCrop{.size = 16});
  check(RandomCrop{.size = 16, .padding = 3});
  check(RandomCrop{.size = {32, 8}, .pad_if_needed = true});
}

TEST(TransformSteps, DecodingARegionEqualsDecodingAll) {
  const Tensor image = resize(gradient(40, 60), 90, 130);
  for (const char* format : {"png", "jpeg"}) {
    const std::string text = encode_image(image, {.format = format});
    const auto file = std::as_bytes(std::span(text));
    for (const Transform& step :
         {Transform(RandomResizedCrop{.size = 16}), Transform(CenterCrop{.size = 50}),
          Transform(CenterCrop{.size = 100}), Transform(RandomCrop{.size = {64, 48}}),
          Transform(RandomCrop{.size = 90, .padding = 4}), Transform(Resize{.size = 32}),
          compose({RandomResizedCrop{.size = 16}, RandomHorizontalFlip{}, ColorJitter{.brightness = 0.4}, Normalize{}}),
          Transform()})
      for (uint64_t i = 0; i < 10; ++i) {
        Random random(3, 0, i), same = random;
        EXPECT_TRUE(step.decode(file, random).equal(step(decode_image(file), same))) << format;
        EXPECT_EQ(next_bits(random), next_bits(same));
      }
  }
}

}  // namespace
}  // namespace levin::transforms
