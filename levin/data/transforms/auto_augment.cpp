#include "levin/data/transforms/auto_augment.h"

#include <array>
#include <cmath>
#include <numbers>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/data/transforms/blur.h"
#include "levin/data/transforms/color.h"
#include "levin/data/transforms/geometry.h"
#include "levin/data/transforms/pixels.h"
#include "levin/data/transforms/tone.h"

namespace levin::transforms {
namespace {

// What a magnitude is between the first and the last bin.
struct Operation {
  std::string_view name;
  double first = 0;
  double last = 0;
  bool is_signed = false;
  bool has_magnitude = true;
};

// The spaces differ in how far they go.
struct Reach {
  double shear;
  double move_x, move_y;
  double degrees;
  double factor;
  double bits;
};

using Space = std::array<Operation, 14>;

Space space_of(const Reach& reach) {
  return {{{.name = "Identity", .has_magnitude = false},
           {"ShearX", 0, reach.shear, true},
           {"ShearY", 0, reach.shear, true},
           {"TranslateX", 0, reach.move_x, true},
           {"TranslateY", 0, reach.move_y, true},
           {"Rotate", 0, reach.degrees, true},
           {"Brightness", 0, reach.factor, true},
           {"Color", 0, reach.factor, true},
           {"Contrast", 0, reach.factor, true},
           {"Sharpness", 0, reach.factor, true},
           {"Posterize", 8, 8 - reach.bits, false},
           {"Solarize", 1, 0, false},
           {.name = "AutoContrast", .has_magnitude = false},
           {.name = "Equalize", .has_magnitude = false}}};
}

Space narrow_space(int64_t height, int64_t width) {
  return space_of({.shear = 0.3,
                   .move_x = 150.0 / 331.0 * static_cast<double>(width),
                   .move_y = 150.0 / 331.0 * static_cast<double>(height),
                   .degrees = 30,
                   .factor = 0.9,
                   .bits = 4});
}

Space wide_space() {
  return space_of({.shear = 0.99, .move_x = 32, .move_y = 32, .degrees = 135, .factor = 0.99, .bits = 6});
}

double magnitude_of(const Operation& operation, int bin, int bins, Random& random) {
  if (!operation.has_magnitude) return 0;
  const double part = bins > 1 ? static_cast<double>(bin) / static_cast<double>(bins - 1) : 0;
  // torch's bins are in single precision.
  double magnitude = static_cast<float>(operation.first + (operation.last - operation.first) * part);
  if (operation.name == "Posterize") magnitude = std::nearbyint(magnitude);
  if (operation.is_signed && random.chance(0.5)) magnitude = -magnitude;
  return magnitude;
}

struct PolicyStep {
  std::string_view name;
  double p;
  int bin;  // of ten; -1 where there is no magnitude
};
struct PolicyPair {
  PolicyStep first, second;
};

// clang-format off
constexpr std::array<PolicyPair, 25> kImageNetPolicy = {{
    {{"Posterize", 0.4, 8}, {"Rotate", 0.6, 9}},
    {{"Solarize", 0.6, 5}, {"AutoContrast", 0.6, -1}},
    {{"Equalize", 0.8, -1}, {"Equalize", 0.6, -1}},
    {{"Posterize", 0.6, 7}, {"Posterize", 0.6, 6}},
    {{"Equalize", 0.4, -1}, {"Solarize", 0.2, 4}},
    {{"Equalize", 0.4, -1}, {"Rotate", 0.8, 8}},
    {{"Solarize", 0.6, 3}, {"Equalize", 0.6, -1}},
    {{"Posterize", 0.8, 5}, {"Equalize", 1.0, -1}},
    {{"Rotate", 0.2, 3}, {"Solarize", 0.6, 8}},
    {{"Equalize", 0.6, -1}, {"Posterize", 0.4, 6}},
    {{"Rotate", 0.8, 8}, {"Color", 0.4, 0}},
    {{"Rotate", 0.4, 9}, {"Equalize", 0.6, -1}},
    {{"Equalize", 0.0, -1}, {"Equalize", 0.8, -1}},
    {{"Invert", 0.6, -1}, {"Equalize", 1.0, -1}},
    {{"Color", 0.6, 4}, {"Contrast", 1.0, 8}},
    {{"Rotate", 0.8, 8}, {"Color", 1.0, 2}},
    {{"Color", 0.8, 8}, {"Solarize", 0.8, 7}},
    {{"Sharpness", 0.4, 7}, {"Invert", 0.6, -1}},
    {{"ShearX", 0.6, 5}, {"Equalize", 1.0, -1}},
    {{"Color", 0.4, 0}, {"Equalize", 0.6, -1}},
    {{"Equalize", 0.4, -1}, {"Solarize", 0.2, 4}},
    {{"Solarize", 0.6, 5}, {"AutoContrast", 0.6, -1}},
    {{"Invert", 0.6, -1}, {"Equalize", 1.0, -1}},
    {{"Color", 0.6, 4}, {"Contrast", 1.0, 8}},
    {{"Equalize", 0.8, -1}, {"Equalize", 0.6, -1}},
}};

constexpr std::array<PolicyPair, 25> kCifar10Policy = {{
    {{"Invert", 0.1, -1}, {"Contrast", 0.2, 6}},
    {{"Rotate", 0.7, 2}, {"TranslateX", 0.3, 9}},
    {{"Sharpness", 0.8, 1}, {"Sharpness", 0.9, 3}},
    {{"ShearY", 0.5, 8}, {"TranslateY", 0.7, 9}},
    {{"AutoContrast", 0.5, -1}, {"Equalize", 0.9, -1}},
    {{"ShearY", 0.2, 7}, {"Posterize", 0.3, 7}},
    {{"Color", 0.4, 3}, {"Brightness", 0.6, 7}},
    {{"Sharpness", 0.3, 9}, {"Brightness", 0.7, 9}},
    {{"Equalize", 0.6, -1}, {"Equalize", 0.5, -1}},
    {{"Contrast", 0.6, 7}, {"Sharpness", 0.6, 5}},
    {{"Color", 0.7, 7}, {"TranslateX", 0.5, 8}},
    {{"Equalize", 0.3, -1}, {"AutoContrast", 0.4, -1}},
    {{"TranslateY", 0.4, 3}, {"Sharpness", 0.2, 6}},
    {{"Brightness", 0.9, 6}, {"Color", 0.2, 8}},
    {{"Solarize", 0.5, 2}, {"Invert", 0.0, -1}},
    {{"Equalize", 0.2, -1}, {"AutoContrast", 0.6, -1}},
    {{"Equalize", 0.2, -1}, {"Equalize", 0.6, -1}},
    {{"Color", 0.9, 9}, {"Equalize", 0.6, -1}},
    {{"AutoContrast", 0.8, -1}, {"Solarize", 0.2, 8}},
    {{"Brightness", 0.1, 3}, {"Color", 0.7, 0}},
    {{"Solarize", 0.4, 5}, {"AutoContrast", 0.9, -1}},
    {{"TranslateY", 0.9, 9}, {"TranslateY", 0.7, 9}},
    {{"AutoContrast", 0.9, -1}, {"Solarize", 0.8, 3}},
    {{"Equalize", 0.8, -1}, {"Invert", 0.1, -1}},
    {{"TranslateY", 0.7, 9}, {"AutoContrast", 0.9, -1}},
}};

constexpr std::array<PolicyPair, 25> kSvhnPolicy = {{
    {{"ShearX", 0.9, 4}, {"Invert", 0.2, -1}},
    {{"ShearY", 0.9, 8}, {"Invert", 0.7, -1}},
    {{"Equalize", 0.6, -1}, {"Solarize", 0.6, 6}},
    {{"Invert", 0.9, -1}, {"Equalize", 0.6, -1}},
    {{"Equalize", 0.6, -1}, {"Rotate", 0.9, 3}},
    {{"ShearX", 0.9, 4}, {"AutoContrast", 0.8, -1}},
    {{"ShearY", 0.9, 8}, {"Invert", 0.4, -1}},
    {{"ShearY", 0.9, 5}, {"Solarize", 0.2, 6}},
    {{"Invert", 0.9, -1}, {"AutoContrast", 0.8, -1}},
    {{"Equalize", 0.6, -1}, {"Rotate", 0.9, 3}},
    {{"ShearX", 0.9, 4}, {"Solarize", 0.3, 3}},
    {{"ShearY", 0.8, 8}, {"Invert", 0.7, -1}},
    {{"Equalize", 0.9, -1}, {"TranslateY", 0.6, 6}},
    {{"Invert", 0.9, -1}, {"Equalize", 0.6, -1}},
    {{"Contrast", 0.3, 3}, {"Rotate", 0.8, 4}},
    {{"Invert", 0.8, -1}, {"TranslateY", 0.0, 2}},
    {{"ShearY", 0.7, 6}, {"Solarize", 0.4, 8}},
    {{"Invert", 0.6, -1}, {"Rotate", 0.8, 4}},
    {{"ShearY", 0.3, 7}, {"TranslateX", 0.9, 3}},
    {{"ShearX", 0.1, 6}, {"Invert", 0.6, -1}},
    {{"Solarize", 0.7, 2}, {"TranslateY", 0.6, 7}},
    {{"ShearY", 0.8, 4}, {"Invert", 0.8, -1}},
    {{"ShearX", 0.7, 9}, {"TranslateY", 0.8, 3}},
    {{"ShearY", 0.8, 5}, {"AutoContrast", 0.7, -1}},
    {{"ShearX", 0.7, 2}, {"Invert", 0.1, -1}},
}};
// clang-format on

const std::array<PolicyPair, 25>& policy_of(const std::string& name) {
  if (name == "imagenet") return kImageNetPolicy;
  if (name == "cifar10") return kCifar10Policy;
  if (name == "svhn") return kSvhnPolicy;
  const std::vector<std::string> known = {"imagenet", "cifar10", "svhn"};
  fail_unknown("transforms.AutoAugment", "policy", name, known);
}

}  // namespace

Tensor augment(const Tensor& image, std::string_view operation, double magnitude, Interpolation interpolation,
               const Fill& fill) {
  detail::check_image(image, "transforms.augment");
  const auto moved = [&](const Point& translate, const Point& shear, std::optional<Point> center) {
    return affine(
        image,
        {.translate = translate, .shear = shear, .interpolation = interpolation, .fill = fill, .center = center});
  };
  const double degrees = std::atan(magnitude) * (180 / std::numbers::pi);
  if (operation == "Identity") return image;
  if (operation == "ShearX") return moved({}, {degrees, 0}, Point{});
  if (operation == "ShearY") return moved({}, {0, degrees}, Point{});
  if (operation == "TranslateX") return moved({std::trunc(magnitude), 0}, {}, {});
  if (operation == "TranslateY") return moved({0, std::trunc(magnitude)}, {}, {});
  if (operation == "Rotate") return rotate(image, magnitude, {.interpolation = interpolation, .fill = fill});
  if (operation == "Brightness") return adjust_brightness(image, 1 + magnitude);
  if (operation == "Color") return adjust_saturation(image, 1 + magnitude);
  if (operation == "Contrast") return adjust_contrast(image, 1 + magnitude);
  if (operation == "Sharpness") return adjust_sharpness(image, 1 + magnitude);
  if (operation == "Posterize") return posterize(image, static_cast<int>(magnitude));
  if (operation == "Solarize") return solarize(image, (detail::is_bytes(image) ? 255 : 1) * magnitude);
  if (operation == "AutoContrast") return autocontrast(image);
  if (operation == "Equalize") return equalize(image);
  if (operation == "Invert") return invert(image);
  std::vector<std::string> known;
  for (const auto& one : wide_space()) known.emplace_back(one.name);
  known.emplace_back("Invert");
  fail_unknown("transforms.augment", "operation", operation, known);
}

Tensor RandAugment::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.RandAugment");
  LEVIN_CHECK(num_ops >= 0 && magnitude >= 0 && magnitude < num_magnitude_bins, "[transforms.RandAugment] magnitude ",
              magnitude, " is not one of ", num_magnitude_bins, " bins, or num_ops ", num_ops, " is below 0");
  const Space space = narrow_space(image.size(1), image.size(2));
  Tensor result = image;
  for (int i = 0; i < num_ops; ++i) {
    const Operation& operation = space[random.below(space.size())];
    const double drawn = magnitude_of(operation, magnitude, num_magnitude_bins, random);
    result = augment(result, operation.name, drawn, interpolation, fill);
  }
  return result;
}

Tensor TrivialAugmentWide::operator()(const Tensor& image, Random& random) const {
  LEVIN_CHECK(num_magnitude_bins > 0, "[transforms.TrivialAugmentWide] num_magnitude_bins ", num_magnitude_bins,
              " must be at least 1");
  const Space space = wide_space();
  const Operation& operation = space[random.below(space.size())];
  const int bin =
      operation.has_magnitude ? static_cast<int>(random.below(static_cast<uint64_t>(num_magnitude_bins))) : 0;
  return augment(image, operation.name, magnitude_of(operation, bin, num_magnitude_bins, random), interpolation, fill);
}

Tensor AutoAugment::operator()(const Tensor& image, Random& random) const {
  detail::check_image(image, "transforms.AutoAugment");
  const Space space = narrow_space(image.size(1), image.size(2));
  const PolicyPair& pair = policy_of(policy)[random.below(25)];
  Tensor result = image;
  for (const PolicyStep& step : {pair.first, pair.second}) {
    if (!random.chance(step.p)) continue;
    double magnitude = 0;
    for (const Operation& operation : space)
      if (operation.name == step.name && step.bin >= 0) magnitude = magnitude_of(operation, step.bin, 10, random);
    result = augment(result, step.name, magnitude, interpolation, fill);
  }
  return result;
}

}  // namespace levin::transforms
