#pragma once

#include <ATen/core/Tensor.h>

namespace levin::detail {

/// The number behind a CPU tensor of one element, without an operator where that is possible.
inline double cpu_number(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return *static_cast<const float*>(tensor.const_data_ptr());
    case at::kDouble:
      return *static_cast<const double*>(tensor.const_data_ptr());
    case at::kLong:
      return static_cast<double>(*static_cast<const int64_t*>(tensor.const_data_ptr()));
    default:
      return tensor.item<double>();
  }
}

}  // namespace levin::detail
