#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "levin/io/images/image.h"

namespace levin::detail {

/// decode_image into memory of the caller's choice: `make` is called once, with the shape that the pixels will have,
/// after everything the head of the file says has been checked. It returns uint8 [C, H, W] whose memory is [H, W, C].
Tensor decode_image_where(std::span<const std::byte> file, const ImageOptions& options,
                          const std::function<Tensor(const ImageShape&)>& make);

}  // namespace levin::detail
