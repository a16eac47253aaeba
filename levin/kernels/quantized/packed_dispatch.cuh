#pragma once

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/quantized/quantized_launch.h"

/// The kernel of a product with a packed matrix, by what the matrix and x are stored in.
namespace levin::kernels::detail {

template <WeightFormat format>
using FormatTag = std::integral_constant<WeightFormat, format>;

/// Calls launch(product, FormatTag<format>(), T()), which returns a cudaError_t, unless there is nothing to compute.
template <class Product, class Launch>
int launch_packed(const Product& given, Launch&& launch) {
  if (given.m == 0 || given.matrix.rows == 0) return cudaSuccess;
  auto product = given;
  while ((kPackedGroup << product.group_shift) < product.matrix.group) ++product.group_shift;
  const auto in = [&](auto format) -> int {
    return product.type == NumberType::kHalf ? launch(product, format, __half())
                                             : launch(product, format, __nv_bfloat16());
  };
  switch (product.matrix.format) {
    case WeightFormat::kPlain:
      return in(FormatTag<WeightFormat::kPlain>());
    case WeightFormat::kInt8:
      return in(FormatTag<WeightFormat::kInt8>());
    case WeightFormat::kFp8:
      return in(FormatTag<WeightFormat::kFp8>());
    case WeightFormat::kInt4:
      return in(FormatTag<WeightFormat::kInt4>());
    case WeightFormat::kNf4:
      return in(FormatTag<WeightFormat::kNf4>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace levin::kernels::detail
