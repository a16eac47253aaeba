#include "levin/kernels/images/image_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin::kernels {
namespace {

TEST(NormalizeImagesTest, EveryByteIsTheThreeStepsOfTorch) {
  const Tensor images = at::arange(256).to(at::kByte).view({1, 1, 16, 16}).expand({1, 3, 16, 16}).contiguous();
  const std::vector<double> mean = {0.485, 0.456, 0.406}, std = {0.229, 0.224, 0.225};
  const auto column = [](const std::vector<double>& values) {
    return at::tensor(values, at::kFloat).view({1, 3, 1, 1});
  };
  const Tensor expected = images.to(at::kFloat).mul_(1.0 / 255).sub_(column(mean)).div_(column(std));
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    EXPECT_TRUE(normalize_images(images, {.mean = mean, .std = std, .dtype = dtype}).equal(expected.to(dtype)))
        << dtype;
  // Other numbers after the first ones: what is kept of a table must not outlive them.
  EXPECT_TRUE(normalize_images(images, {}).equal(images.to(at::kFloat).mul_(1.0 / 255)));
  EXPECT_TRUE(normalize_images(images, {.mean = {0.5}, .std = {0.5}})
                  .equal(images.to(at::kFloat).mul_(1.0 / 255).sub_(0.5).div_(0.5)));
}

TEST(NormalizeImagesTest, ReadsAnyStridesAndWritesEitherFormat) {
  const Tensor wide = at::randint(256, {4, 9, 12, 3}, at::kByte);
  const Tensor part = wide.slice(1, 2, 8).slice(2, 1, 11).permute({0, 3, 1, 2});
  const Tensor expected = part.to(at::kFloat).mul_(1.0 / 255).contiguous();
  for (const Tensor& images : {part, part.contiguous(), part.contiguous(at::MemoryFormat::ChannelsLast)})
    for (const bool last : {false, true}) {
      const Tensor found = normalize_images(images, {.channels_last = last});
      EXPECT_TRUE(found.equal(expected));
      EXPECT_TRUE(found.is_contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
    }
}

TEST(NormalizeImagesTest, PlacementsCutThenMirror) {
  const Tensor images = at::randint(1, 256, {3, 2, 5, 6}, at::kByte);
  const std::vector<ImagePlacement> places = {{-1, -2, 0}, {2, 3, 1}, {0, -1, 1}};
  const Tensor found = normalize_images(images, {.height = 4, .width = 5, .fill = 9}, places);
  for (int64_t i = 0; i < 3; ++i) {
    const auto& place = places[static_cast<size_t>(i)];
    for (int64_t c = 0; c < 2; ++c)
      for (int64_t y = 0; y < 4; ++y)
        for (int64_t x = 0; x < 5; ++x) {
          const int64_t row = y + place.top, column = (place.flip ? 4 - x : x) + place.left;
          const bool inside = row >= 0 && row < 5 && column >= 0 && column < 6;
          const auto byte = inside ? images[i][c][row][column].item<uint8_t>() : uint8_t{9};
          ASSERT_EQ(found[i][c][y][x].item<float>(), static_cast<float>(byte) * static_cast<float>(1.0 / 255))
              << i << " " << y << " " << x;
        }
  }
}

TEST(NormalizeImagesTest, RefusesWhatItDoesNotKnow) {
  const Tensor images = at::zeros({2, 3, 4, 4}, at::kByte);
  EXPECT_THROW(normalize_images(images[0], {}), Error);
  EXPECT_THROW(normalize_images(images, {.std = {0.0}}), Error);
  EXPECT_THROW(normalize_images(images, {.dtype = at::kDouble}), Error);
  EXPECT_THROW(normalize_images(images, {}, std::vector<ImagePlacement>(3)), Error);
  EXPECT_THROW(normalize_images(at::zeros({1, 9, 4, 4}, at::kByte), {}), Error);
}

TEST(EraseImagesTest, WritesEachRectangleAndNothingElse) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    Tensor images = at::rand({3, 2, 6, 7}).contiguous(format);
    Tensor expected = images.clone();
    expected[0].slice(1, 1, 3).slice(2, 2, 7)[0].fill_(0.5);
    expected[0].slice(1, 1, 3).slice(2, 2, 7)[1].fill_(-1);
    expected[2][0][5][0] = 0.5;
    expected[2][1][5][0] = -1;
    erase_images(images, std::vector<EraseBox>{{1, 2, 2, 5}, {}, {5, 0, 1, 1}}, std::vector<double>{0.5, -1});
    EXPECT_TRUE(images.equal(expected));
  }
  Tensor images = at::rand({3, 2, 6, 7});
  EXPECT_THROW(erase_images(images, std::vector<EraseBox>(2), std::vector<double>{0}), Error);
  EXPECT_THROW(erase_images(images, std::vector<EraseBox>(3), std::vector<double>{0, 1, 2}), Error);
}

}  // namespace
}  // namespace levin::kernels
