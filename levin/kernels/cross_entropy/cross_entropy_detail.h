#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// The step by operators of ATen, on any device.
void cross_entropy_by_aten(const Tensor& logits, const Tensor& targets, const Tensor& losses, int64_t classes,
                           int64_t ignore_index, bool gradient, const std::optional<Tensor>& scale);

void scale_by_aten(const Tensor& x, const Tensor& factor);
void scale_rows_by_aten(const Tensor& out, const Tensor& x, const Tensor& factors);

/// Adds the kernels of CUDA to the operators.
void register_cross_entropy_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
