// Every transform against what torchvision made of the same image (make_transform_fixtures.py).
#include "levin/data/transforms/transforms.h"

#include <charconv>
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/io/weights/safetensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::transforms {
namespace {

using Numbers = std::vector<double>;
using testing::error_of;

int64_t whole(double number) {
  return static_cast<int64_t>(number);
}

std::optional<Point> point_at(const Numbers& n, size_t at) {
  if (n.size() <= at) return std::nullopt;
  return Point{n[at], n[at + 1]};
}

Corners corners_of(const Tensor& image) {
  const auto right = static_cast<double>(image.size(2) - 1), bottom = static_cast<double>(image.size(1) - 1);
  return {Point{0, 0}, {right, 0}, {right, bottom}, {0, bottom}};
}

Tensor normalized(const Tensor& image) {
  const auto channels = static_cast<size_t>(image.size(0));
  Numbers mean = {0.485, 0.456, 0.406}, std = {0.229, 0.224, 0.225};
  mean.resize(channels);
  std.resize(channels);
  return normalize(image, mean, std);
}

const std::map<std::string, std::function<Tensor(const Tensor&, const Numbers&)>>& operations() {
  static const std::map<std::string, std::function<Tensor(const Tensor&, const Numbers&)>> all = {
      {"resize",
       [](const Tensor& i, const Numbers& n) {
         return resize(i, whole(n[1]), whole(n[2]), static_cast<Interpolation>(n[0]));
       }},
      {"resize_plain",
       [](const Tensor& i, const Numbers& n) {
         return resize(i, whole(n[1]), whole(n[2]), static_cast<Interpolation>(n[0]), false);
       }},
      {"crop",
       [](const Tensor& i, const Numbers& n) {
         return crop(i, {whole(n[0]), whole(n[1]), whole(n[2]), whole(n[3])});
       }},
      {"center_crop", [](const Tensor& i, const Numbers& n) { return center_crop(i, whole(n[0]), whole(n[1])); }},
      {"pad",
       [](const Tensor& i, const Numbers& n) {
         return pad(i, Padding(whole(n[0]), whole(n[1]), whole(n[2]), whole(n[3])), n[5],
                    static_cast<PaddingMode>(n[4]));
       }},
      {"hflip", [](const Tensor& i, const Numbers&) { return horizontal_flip(i); }},
      {"vflip", [](const Tensor& i, const Numbers&) { return vertical_flip(i); }},
      {"brightness", [](const Tensor& i, const Numbers& n) { return adjust_brightness(i, n[0]); }},
      {"contrast", [](const Tensor& i, const Numbers& n) { return adjust_contrast(i, n[0]); }},
      {"saturation", [](const Tensor& i, const Numbers& n) { return adjust_saturation(i, n[0]); }},
      {"hue", [](const Tensor& i, const Numbers& n) { return adjust_hue(i, n[0]); }},
      {"sharpness", [](const Tensor& i, const Numbers& n) { return adjust_sharpness(i, n[0]); }},
      {"grayscale", [](const Tensor& i, const Numbers& n) { return to_grayscale(i, whole(n[0])); }},
      {"invert", [](const Tensor& i, const Numbers&) { return invert(i); }},
      {"posterize", [](const Tensor& i, const Numbers& n) { return posterize(i, static_cast<int>(n[0])); }},
      {"solarize", [](const Tensor& i, const Numbers& n) { return solarize(i, n[0]); }},
      {"autocontrast", [](const Tensor& i, const Numbers&) { return autocontrast(i); }},
      {"equalize", [](const Tensor& i, const Numbers&) { return equalize(i); }},
      {"blur",
       [](const Tensor& i, const Numbers& n) {
         return gaussian_blur(i, {whole(n[1]), whole(n[0])}, n[2], n[3]);
       }},
      {"affine",
       [](const Tensor& i, const Numbers& n) {
         return affine(i, {.angle = n[0],
                           .translate = {n[1], n[2]},
                           .scale = n[3],
                           .shear = {n[4], n[5]},
                           .interpolation = static_cast<Interpolation>(n[6]),
                           .fill = n[7],
                           .center = point_at(n, 8)});
       }},
      {"rotate",
       [](const Tensor& i, const Numbers& n) {
         return rotate(i, n[0],
                       {.interpolation = static_cast<Interpolation>(n[1]),
                        .expand = n[2] != 0,
                        .center = point_at(n, 4),
                        .fill = n[3]});
       }},
      {"perspective",
       [](const Tensor& i, const Numbers& n) {
         const Corners to = {Point{n[0], n[1]}, {n[2], n[3]}, {n[4], n[5]}, {n[6], n[7]}};
         return perspective(i, corners_of(i), to, static_cast<Interpolation>(n[8]), n[9]);
       }},
      {"normalize", [](const Tensor& i, const Numbers&) { return normalized(i); }},
      {"to_float", [](const Tensor& i, const Numbers&) { return to_dtype(i, at::kFloat, true); }},
      {"to_bytes", [](const Tensor& i, const Numbers&) { return to_dtype(i, at::kByte, true); }},
  };
  return all;
}

struct Case {
  std::string name, input, operation;
  Numbers numbers;
};

std::vector<Case> cases(const SafetensorsFile& file) {
  std::vector<Case> result;
  for (const auto& entry : file.entries()) {
    const size_t first = entry.name.find('/');
    if (first == std::string::npos) continue;
    const size_t second = entry.name.find('/', first + 1);
    Case one{entry.name, entry.name.substr(0, first), entry.name.substr(first + 1, second - first - 1), {}};
    std::istringstream numbers(entry.name.substr(second + 1));
    for (std::string number; std::getline(numbers, number, ',');) one.numbers.push_back(std::stod(number));
    result.push_back(one);
  }
  return result;
}

// The memory of a decoder.
Tensor interleaved(const Tensor& image) {
  return image.permute({1, 2, 0}).contiguous().permute({2, 0, 1});
}

// A part of a larger image, so that rows have a gap between them.
Tensor part_of_larger(const Tensor& image) {
  Tensor larger = at::full({image.size(1) + 3, image.size(2) + 5, image.size(0)}, 99, image.options());
  Tensor part = larger.slice(0, 1, 1 + image.size(1)).slice(1, 2, 2 + image.size(2)).permute({2, 0, 1});
  part.copy_(image);
  return part;
}

void expect_like(const Tensor& found, const Tensor& expected, const Case& one) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << one.name;
  ASSERT_EQ(found.scalar_type(), expected.scalar_type()) << one.name;
  const double off = (found.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  if (one.operation == "blur" && expected.scalar_type() == at::kByte)
    EXPECT_LE(off, 1) << one.name;
  else if (expected.scalar_type() == at::kByte || one.operation == "normalize" || one.operation == "to_float")
    EXPECT_EQ(off, 0) << one.name;
  else
    EXPECT_LE(off, 1e-5) << one.name;
}

class TransformFixtures : public ::testing::Test {
 protected:
  SafetensorsFile file{levin::testing::source_dir() + "/tests/data/fixtures/transforms.safetensors"};
};

TEST_F(TransformFixtures, EveryNumberIsTorchvisions) {
  const auto all = cases(file);
  EXPECT_GT(all.size(), 150u);
  std::map<std::string, int> seen;
  for (const Case& one : all) {
    ASSERT_TRUE(operations().contains(one.operation)) << one.name;
    const auto& run = operations().at(one.operation);
    const Tensor image = file.read(one.input), expected = file.read(one.name), before = image.clone();
    for (const Tensor& memory : {image, interleaved(image), part_of_larger(image)})
      expect_like(run(memory, one.numbers), expected, one);
    EXPECT_TRUE(image.equal(before)) << one.name << " changed its input";
    ++seen[one.operation];
  }
  EXPECT_EQ(seen.size(), operations().size());
}

TEST_F(TransformFixtures, RowsOfAnyWidthResizeAsOneByOne) {
  // Two rows at a time, sixteen bytes at a time: whatever remains must come out the same.
  for (const int64_t channels : {1, 2, 3, 4, 5})
    for (const auto& [h, w, to_h, to_w] : std::vector<std::array<int64_t, 4>>{
             {1, 1, 3, 2}, {2, 9, 1, 4}, {7, 33, 5, 17}, {5, 6, 5, 11}, {6, 5, 13, 5}}) {
      Tensor image = at::randint(256, {channels, h, w}, at::kByte);
      if (channels % 2 == 0) image[channels - 1].fill_(255);  // opaque, or colours would be weighed
      const Tensor together = resize(image, to_h, to_w);
      for (int64_t c = 0; c < channels; ++c)
        EXPECT_TRUE(together[c].equal(resize(image.slice(0, c, c + 1), to_h, to_w)[0]))
            << channels << " " << h << " " << w;
    }
}

TEST(TransformSizes, ResizeKeepsProportionsAsTorchvision) {
  const auto size = [](int64_t h, int64_t w, Size to, int64_t max_size = 0) {
    const Size result = resized_size(h, w, to, max_size);
    return std::pair(result.height, result.width);
  };
  EXPECT_EQ(size(375, 500, 256), std::pair(int64_t{256}, int64_t{341}));
  EXPECT_EQ(size(500, 375, 256), std::pair(int64_t{341}, int64_t{256}));
  EXPECT_EQ(size(100, 1000, 50, 200), std::pair(int64_t{20}, int64_t{200}));
  EXPECT_EQ(size(30, 60, {}, 40), std::pair(int64_t{20}, int64_t{40}));
  EXPECT_EQ(size(30, 60, {7, 9}), std::pair(int64_t{7}, int64_t{9}));
  EXPECT_THROW(size(30, 60, {7, 9}, 20), Error);
  EXPECT_THROW(size(30, 60, 20, 20), Error);
  EXPECT_THROW(size(30, 60, {}), Error);
}

TEST(TransformErrors, SayWhatIsAllowed) {
  const Tensor bytes = at::zeros({3, 8, 8}, at::kByte), numbers = at::zeros({3, 8, 8});
  EXPECT_THAT(error_of([&] { resize(bytes, 0, 4); }), ::testing::HasSubstr("[transforms.resize] to 0 x 4"));
  EXPECT_THAT(error_of([&] { resize(numbers, 4, 4, Interpolation::kLanczos); }), ::testing::HasSubstr("uint8"));
  EXPECT_THAT(error_of([&] { resize(at::zeros({8, 8}, at::kByte), 4, 4); }), ::testing::HasSubstr("[C, H, W]"));
  EXPECT_THAT(error_of([&] { adjust_hue(bytes, 0.6); }), ::testing::HasSubstr("-0.5 and 0.5"));
  EXPECT_THAT(error_of([&] { gaussian_blur(bytes, 4, 1, 1); }), ::testing::HasSubstr("odd"));
  EXPECT_THAT(error_of([&] {
                pad(bytes, Padding(1), {1, 2});
              }),
              ::testing::HasSubstr("2 values, the image 3 channels"));
  EXPECT_THAT(error_of([&] { affine(numbers, {.interpolation = Interpolation::kBicubic}); }),
              ::testing::HasSubstr("bicubic for images of uint8"));
  EXPECT_THAT(error_of([&] { augment(bytes, "Colour", 0.1); }), ::testing::HasSubstr("did you mean \"Color\"?"));
  EXPECT_THAT(error_of([&] { interpolation_of("bilinera"); }), ::testing::HasSubstr("did you mean \"bilinear\"?"));
  EXPECT_EQ(interpolation_of("nearest-exact"), Interpolation::kNearestExact);
}

}  // namespace
}  // namespace levin::transforms
