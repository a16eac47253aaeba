#include "levin/loggers/pixels.h"

#include "levin/core/error.h"

namespace levin::detail {

at::Tensor to_pixels(const std::string& name, const at::Tensor& image) {
  LEVIN_CHECK(image.defined() && (image.dim() == 2 || image.dim() == 3) && image.numel() > 0, "[log_image] \"", name,
              "\" must be [C, H, W] or [H, W], and is ",
              image.defined() ? concat(image.sizes()) : "an undefined tensor");
  const auto type = image.scalar_type();
  LEVIN_CHECK(type == at::kByte || type == at::kBool || at::isFloatingType(type), "[log_image] \"", name,
              "\" must be uint8, or floating point from 0 to 1, and is ", c10::toString(type));
  auto pixels = image.dim() == 2 ? image.detach().unsqueeze(0) : image.detach();
  const auto channels = pixels.size(0);
  LEVIN_CHECK(channels == 1 || channels == 3 || channels == 4, "[log_image] \"", name,
              "\" must have 1 (gray), 3 (RGB) or 4 (RGBA) channels, and is ", image.sizes());
  if (type != at::kByte) pixels = pixels.to(at::kFloat).nan_to_num(0).mul(255).clamp(0, 255).to(at::kByte);
  return pixels.permute({1, 2, 0}).contiguous().cpu();
}

}  // namespace levin::detail
