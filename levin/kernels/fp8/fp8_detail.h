#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// rows, columns, inverse, column_inverse, sums. With one scale for the tensor column_inverse is undefined.
using Fp8Parts = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using MaybeTensor = std::optional<Tensor>;
using MaybeDtype = std::optional<at::ScalarType>;
/// An activation, or none.
using MaybeKind = std::optional<int64_t>;

/// What a cast gives, not filled in. Undefined: not wanted.
Fp8Parts empty_fp8_parts(const Tensor& x, at::ScalarType dtype, bool per_row, bool rows, bool columns,
                         const MaybeDtype& sums);

/// Adds the kernels of fp8_cuda.cpp; nothing in a build without CUDA.
void register_fp8_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
