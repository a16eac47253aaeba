#pragma once

#include <ATen/core/Tensor.h>

#include "levin/kernels/number_type.h"

namespace levin::kernels::detail {

/// As copies of the device want it: without gaps, at a multiple of 16 bytes. A view into a buffer may be neither.
inline at::Tensor aligned(const at::Tensor& x) {
  const auto dense = x.contiguous();
  return dense.is_meta() || is_pack_aligned(dense.const_data_ptr()) ? dense : dense.clone();
}

}  // namespace levin::kernels::detail
