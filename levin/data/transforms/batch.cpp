#include "levin/data/transforms/batch.h"

#include <cmath>

#include "levin/core/error.h"
#include "levin/data/transforms/erasing.h"
#include "levin/kernels/images/image_batch.h"

namespace levin::transforms {
namespace {

const Tensor& images_of(const Batch& batch, const std::string& name, const char* operation) {
  const Tensor& images = batch[name];
  LEVIN_CHECK(images.defined() && images.dim() == 4, "[", operation, "] \"", name, "\" must be [B, C, H, W]",
              images.defined() ? levin::detail::concat(", not ", images.sizes()) : std::string());
  return images;
}

void check_share(double alpha, const char* operation) {
  LEVIN_CHECK(alpha > 0, "[", operation, "] alpha ", alpha, " must be above 0");
}

}  // namespace

BatchTransform compose_batch(std::vector<BatchTransform> steps) {
  return [steps = std::move(steps)](Batch& batch, Random& random) {
    for (const auto& step : steps) step(batch, random);
  };
}

void BatchNormalize::operator()(Batch& batch, Random& random) const {
  const Tensor& images = images_of(batch, image, "transforms.BatchNormalize");
  const int64_t height = images.size(2) + padding.top + padding.bottom;
  const int64_t width = images.size(3) + padding.left + padding.right;
  const bool cuts = crop.height > 0;
  LEVIN_CHECK(cuts || padding.empty(), "[transforms.BatchNormalize] a padding needs a crop");
  LEVIN_CHECK(!cuts || (crop.height <= height && crop.width <= width), "[transforms.BatchNormalize] a crop of ",
              crop.height, " x ", crop.width, " is larger than the images with their border, ", height, " x ", width);
  LEVIN_CHECK(fill >= 0 && fill <= 255, "[transforms.BatchNormalize] fill ", fill, " is not between 0 and 255");
  std::vector<kernels::ImagePlacement> placements;
  if (cuts || flip_p > 0) {
    placements.resize(static_cast<size_t>(images.size(0)));
    for (auto& place : placements) {
      if (cuts) {
        const int64_t spare_y = height - crop.height, spare_x = width - crop.width;
        place.top = static_cast<int32_t>((spare_y ? random.integer(0, spare_y) : 0) - padding.top);
        place.left = static_cast<int32_t>((spare_x ? random.integer(0, spare_x) : 0) - padding.left);
      }
      if (flip_p > 0) place.flip = random.chance(flip_p) ? 1 : 0;
    }
  }
  batch[image] = kernels::normalize_images(images,
                                           {.mean = mean,
                                            .std = std,
                                            .dtype = dtype,
                                            .channels_last = channels_last,
                                            .height = cuts ? crop.height : 0,
                                            .width = cuts ? crop.width : 0,
                                            .fill = fill},
                                           placements);
}

Tensor mix_images(const Tensor& images, double lam) {
  LEVIN_CHECK(images.is_floating_point(), "[transforms.MixUp] mixes floating point images, not ", images.scalar_type(),
              "; normalize them before");
  return images.roll(1, 0).mul_(1 - lam).add_(images.mul(lam));
}

Tensor cut_images(const Tensor& images, int64_t x1, int64_t y1, int64_t x2, int64_t y2) {
  const auto part = [&](const Tensor& all) { return all.slice(2, y1, y2).slice(3, x1, x2); };
  Tensor result = images.clone();
  if (x1 < x2 && y1 < y2) part(result).copy_(part(images).roll(1, 0));
  return result;
}

Tensor mix_labels(const Tensor& labels, double lam, int64_t num_classes) {
  LEVIN_CHECK(labels.dim() == 1 || labels.dim() == 2,
              "[transforms.mix_labels] labels are indices [B] or probabilities [B, classes], not ", labels.sizes());
  Tensor shares = labels;
  if (labels.dim() == 1) {
    LEVIN_CHECK(num_classes > 0, "[transforms.mix_labels] labels that are indices need num_classes");
    shares = at::zeros({labels.size(0), num_classes}, labels.options().dtype(at::kFloat))
                 .scatter_(1, labels.to(at::kLong).unsqueeze(1), 1.0);
  } else {
    LEVIN_CHECK(!num_classes || labels.size(1) == num_classes, "[transforms.mix_labels] num_classes is ", num_classes,
                ", the labels have ", labels.size(1));
    if (!shares.is_floating_point()) shares = shares.to(at::kFloat);
  }
  return shares.roll(1, 0).mul_(1 - lam).add_(shares.mul(lam));
}

void MixUp::operator()(Batch& batch, Random& random) const {
  check_share(alpha, "transforms.MixUp");
  const double lam = random.beta(alpha, alpha);
  batch[image] = mix_images(images_of(batch, image, "transforms.MixUp"), lam);
  batch[label] = mix_labels(batch[label], lam, num_classes);
}

void CutMix::operator()(Batch& batch, Random& random) const {
  check_share(alpha, "transforms.CutMix");
  const Tensor& images = images_of(batch, image, "transforms.CutMix");
  const int64_t height = images.size(2), width = images.size(3);
  const double lam = random.beta(alpha, alpha);
  const int64_t x = random.integer(0, width - 1), y = random.integer(0, height - 1);
  const double half = 0.5 * std::sqrt(1 - lam);
  const auto half_width = static_cast<int64_t>(half * static_cast<double>(width));
  const auto half_height = static_cast<int64_t>(half * static_cast<double>(height));
  const int64_t x1 = std::max<int64_t>(x - half_width, 0), x2 = std::min(x + half_width, width);
  const int64_t y1 = std::max<int64_t>(y - half_height, 0), y2 = std::min(y + half_height, height);
  const double kept = 1 - static_cast<double>((x2 - x1) * (y2 - y1)) / static_cast<double>(width * height);
  batch[image] = cut_images(images, x1, y1, x2, y2);
  batch[label] = mix_labels(batch[label], kept, num_classes);
}

void BatchRandomErasing::operator()(Batch& batch, Random& random) const {
  const Tensor& images = images_of(batch, image, "transforms.BatchRandomErasing");
  std::vector<kernels::EraseBox> boxes(static_cast<size_t>(images.size(0)));
  for (auto& box : boxes) {
    if (!random.chance(p)) continue;
    if (const auto region = erased_region(images.size(2), images.size(3), scale, ratio, random))
      box = {static_cast<int32_t>(region->top), static_cast<int32_t>(region->left),
             static_cast<int32_t>(region->height), static_cast<int32_t>(region->width)};
  }
  kernels::erase_images(batch[image], boxes, value.values);
}

}  // namespace levin::transforms
