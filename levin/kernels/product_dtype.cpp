#include "levin/kernels/product_dtype.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

namespace levin::kernels {

at::ScalarType product_dtype(const Tensor& tensor) {
  const auto device = tensor.device().type();
  if (at::autocast::is_autocast_available(device))
    return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : tensor.scalar_type();
  // torch has no autocast of meta tensors, but estimates of memory have: a product of nothing tells.
  const auto nothing = at::empty({0, 0}, tensor.options());
  return at::mm(nothing, nothing).scalar_type();
}

}  // namespace levin::kernels
