#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "levin/io/images/image_options.h"
#include "levin/io/images/jpeg_head.h"
#include "levin/kernels/images/image_resample.h"

namespace levin::detail {

/// A sample of an image dataset whose file is decoded with the rest of its batch, on the device.
struct EncodedImage {
  /// The bytes of the file; empty: it is decoded and transformed already, as `pixels`.
  std::string file;
  JpegHead head;
  /// What is needed of the stored image, and what becomes of it.
  ImageRegion region;
  kernels::ResamplePlacement placement;
  kernels::ResampleImages how;
  int channels = 3;

  at::Tensor pixels;
  /// Undefined where there is none.
  at::Tensor label;
};

}  // namespace levin::detail
