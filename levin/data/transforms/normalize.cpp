#include "levin/data/transforms/normalize.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "levin/core/error.h"
#include "levin/data/transforms/pixel_plan.h"
#include "levin/data/transforms/pixels.h"
#include "levin/kernels/images/image_batch.h"

namespace levin::transforms {
namespace {

// [C, H, W] as a batch of one: unsqueeze alone would do, but costs more than this for small images.
Tensor as_batch(const Tensor& image) {
  return image.as_strided({1, image.size(0), image.size(1), image.size(2)},
                          {image.numel(), image.stride(0), image.stride(1), image.stride(2)}, image.storage_offset());
}

// Bytes have no gradient: autograd need not know about the views. For small images that is a tenth of the work.
Tensor normalized_bytes(const Tensor& image, const kernels::NormalizeImages& options) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return kernels::normalize_images(as_batch(image), options).squeeze(0);
}

}  // namespace

Tensor to_dtype(const Tensor& image, at::ScalarType dtype, bool scale) {
  detail::check_image(image, "transforms.to_dtype");
  if (image.scalar_type() == dtype) return image;
  if (!scale) return image.to(dtype);
  const bool to_float = at::isFloatingType(dtype);
  if (detail::is_bytes(image)) {
    LEVIN_CHECK(to_float, "[transforms.to_dtype] bytes are scaled to floating point numbers, not to ", dtype);
    if (dtype == at::kFloat) return normalized_bytes(image, {});
    return image.to(dtype).mul_(1.0 / 255);
  }
  if (to_float) return image.to(dtype);
  LEVIN_CHECK(dtype == at::kByte, "[transforms.to_dtype] floating point numbers are scaled to Byte, not to ", dtype);
  // A little less than 256, so that every byte gets an equal part of the numbers between 0 and 1.
  return image.mul(256.0 - 1e-3).to(at::kByte);
}

Tensor normalize(const Tensor& image, const std::vector<double>& mean, const std::vector<double>& std,
                 bool channels_last) {
  detail::check_image(image, "transforms.normalize");
  if (detail::is_bytes(image))
    return normalized_bytes(image, {.mean = mean, .std = std, .channels_last = channels_last});
  const int64_t channels = image.size(0);
  for (const auto* values : {&mean, &std})
    LEVIN_CHECK(values->size() == 1 || static_cast<int64_t>(values->size()) == channels, "[transforms.normalize] ",
                values == &mean ? "mean" : "std", " has ", values->size(), " values, the image ", channels,
                " channels");
  for (const double one : std) LEVIN_CHECK(one != 0, "[transforms.normalize] a std of 0 would divide by zero");
  const auto per_channel = [&](const std::vector<double>& values) {
    return at::tensor(values, image.options()).view({-1, 1, 1});
  };
  return image.sub(per_channel(mean)).div_(per_channel(std));
}

Tensor ToDtype::operator()(const Tensor& image, Random&) const {
  return to_dtype(image, dtype, scale);
}

Tensor ToTensor::operator()(const Tensor& image, Random&) const {
  return to_dtype(image, at::kFloat, true);
}

Tensor Normalize::operator()(const Tensor& image, Random&) const {
  return normalize(image, mean, std, channels_last);
}

void ToDtype::plan(PixelPlan& plan, Random&) const {
  plan.to_float();
}

std::string ToDtype::unplanned() const {
  return dtype == at::kFloat && scale ? "" : "ToDtype to anything but scaled floats";
}

void ToTensor::plan(PixelPlan& plan, Random&) const {
  plan.to_float();
}

void Normalize::plan(PixelPlan& plan, Random&) const {
  plan.normalize(mean, std, channels_last);
}

}  // namespace levin::transforms
