#include "levin/kernels/linear/product_dtype.h"

#include "levin/kernels/played_device.h"

namespace levin::kernels {

at::ScalarType product_dtype(const Tensor& tensor) {
  return detail::autocast_dtype(tensor).value_or(tensor.scalar_type());
}

}  // namespace levin::kernels
